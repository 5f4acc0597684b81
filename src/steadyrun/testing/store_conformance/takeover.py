"""Promises about holders that are gone: their lanes are taken over, their late writes refused."""

from collections.abc import Awaitable, Callable
from typing import Any

from steadyrun.errors import HolderGone, LeaseLost
from steadyrun.model.agent import Agent
from steadyrun.model.ids import ItemId
from steadyrun.model.item import Item, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Launched, Orphaned
from steadyrun.testing.store_conformance.fixtures import (
    Working,
    add_agent,
    claim_lanes,
    create,
    expect_refused,
    read_everything,
    reap_claims,
    run_overlapping,
    send,
    set_scene,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_who_is_no_holder_any_more_gets_nothing(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, gone = scene.store, (await scene.store.join("test")).id
    await scene.send()
    await store.leave(gone)

    await expect_refused(store, HolderGone, claim_lanes(store, gone))
    await expect_refused(store, HolderGone, store.start(gone, _never))
    await expect_refused(store, HolderGone, store.reap(gone))

    assert (await scene.claim()).holder == scene.holder


def _never(_: Agent, __: Item) -> Created:
    raise AssertionError("nothing is to be begun")


async def check_a_holder_that_is_gone_is_reaped(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    item = await scene.send()
    dead = await harness.claim_and_die()
    assert (dead.agent, dead.item.id) == (scene.agent, item.id)
    assert (await scene.store.lane(scene.agent)).status == "held"

    [claim] = await reap_claims(scene.store, scene.holder)

    assert (claim.agent, claim.holder, claim.fence) == (scene.agent, scene.holder, dead.fence + 1)
    assert claim.item == await scene.store.item(item.id)
    assert (claim.item.status, claim.item.attempt) == ("running", 1)
    lane = await scene.store.lane(scene.agent)
    assert (lane.status, lane.holder, lane.fence) == ("held", scene.holder, claim.fence)
    assert dead.holder not in {holder.id for holder in await scene.store.holders()}


async def check_a_dead_holder_is_listed_as_not_alive_until_it_is_reaped(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    await scene.send()
    dead = await harness.claim_and_die()

    for store in (scene.store, other):
        found = {holder.id: holder.is_alive for holder in await store.holders()}
        assert found == {scene.holder: True, dead.holder: False}

    await scene.store.reap(scene.holder)
    for store in (scene.store, other):
        assert [(each.id, each.is_alive) for each in await store.holders()] == [
            (scene.holder, True)
        ]


async def check_the_living_are_not_reaped(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim()
    other = await harness.open()
    reaper = await other.join("reaper")

    assert await other.reap(reaper.id) == []
    assert await scene.store.reap(scene.holder) == []

    await scene.begin(claim)
    assert (await scene.finish(claim)).status == "completed"


async def check_who_left_is_reaped(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim()
    other = await harness.open()
    reaper = await other.join("reaper")
    await scene.store.leave(scene.holder)

    [lost] = await reap_claims(other, reaper.id)

    assert (lost.item.id, lost.fence) == (claim.item.id, claim.fence + 1)
    await expect_refused(other, LeaseLost, scene.store.settle(claim, scene.ended()))


async def check_a_lane_is_reaped_once(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    others = [await harness.open() for _ in range(3)]
    reapers = [(store, (await store.join("reaper")).id) for store in others]
    for name in ("bo", "cy"):
        await send(harness, scene.store, await add_agent(harness, scene.store, name), "work")
        await harness.claim_and_die()

    answers = await run_overlapping(harness, [s.reap(h) for s, h in reapers * 2])

    claims = [claim for answer in answers for claim in answer]
    assert len({claim.agent for claim in claims}) == len(claims) == 2
    assert await others[0].reap(reapers[0][1]) == []


async def check_a_reaped_lane_is_settled_by_its_new_holder(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    dead = await harness.claim_and_die()
    run = await scene.begin(dead)
    followup = await scene.send("later")
    await scene.store.offer_followups(dead)
    [claim] = await reap_claims(scene.store, scene.holder)
    assert claim.item.run == run

    item = await scene.store.settle(claim, Orphaned(harness.clock.now()))

    assert (item.status, item.id) == ("failed", dead.item.id)
    assert (await scene.store.run(run)).stop_reason == "orphaned"
    returned = await scene.store.item(followup.id)
    assert (returned.status, returned.delivery) == ("queued", "returned")
    assert (await scene.claim()).item.id == followup.id


async def check_late_writes_of_the_dead_are_refused(harness: StoreHarness) -> None:
    working, offer = await _set_dead(harness)
    store = working.store
    [claim] = await reap_claims(store, working.scene.holder)

    for name, write in _writes(working, offer):
        error = await expect_refused(store, LeaseLost, write())
        assert (error.agent, error.fence) == (claim.agent, working.claim.fence), name

    await store.settle(claim, Orphaned(harness.clock.now()))
    for _, write in _writes(working, offer):
        await expect_refused(store, LeaseLost, write())


async def check_a_lane_won_again_refuses_the_old_claim(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    old = await scene.claim()
    await scene.finish(old, "cancelled", stop_reason="shutdown")
    new = await scene.claim()
    assert (new.agent, new.holder, new.item.id) == (old.agent, old.holder, old.item.id)

    verbs = scene.store.offer_followups(old), scene.finish(old), create(harness, scene.store, old)
    for verb in verbs:
        await expect_refused(scene.store, LeaseLost, verb)

    await scene.begin(new)
    assert (await scene.finish(new)).status == "completed"


async def check_a_late_settle_beside_a_reap_has_one_winner(harness: StoreHarness) -> None:
    for n in range(6):
        working, _ = await _set_dead(harness, f"ada{n}")
        other = await harness.open()
        verbs: list[Awaitable[Any]] = [
            other.reap(working.scene.holder),
            _settled_or_lost(working),
        ]

        answers = await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        claims, is_settled = answers if n % 2 else answers[::-1]
        assert is_settled == (not claims)
        item = await other.item(working.claim.item.id)
        assert item.status == ("completed" if is_settled else "running")
        await other.pause(item.agent)


async def check_nothing_runs_again_by_reaping(harness: StoreHarness) -> None:
    working, _ = await _set_dead(harness)
    before = await read_everything(working.store)

    await working.store.reap(working.scene.holder)

    after = await read_everything(working.store)
    assert {name for name in after if after[name] != before[name]} == {"lanes"}


async def _set_dead(harness: StoreHarness, name: str = "ada") -> tuple[Working, ItemId]:
    """A run with a process and an open offer whose holder is gone."""
    scene = await set_scene(harness, name)
    await scene.send()
    dead = await harness.claim_and_die()
    run = await scene.begin(dead)
    process = await scene.open_process(dead)
    await scene.send("later")
    [offer] = await scene.store.offer_followups(dead)
    return Working(scene, dead, run, process), offer.id


async def _settled_or_lost(working: Working) -> bool:
    try:
        await working.scene.finish(working.claim)
    except LeaseLost:
        return False
    return True


def _writes(working: Working, offer: ItemId) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    """Every write that names a claim."""
    scene, store, claim = working.scene, working.store, working.claim
    now, new = scene.harness.clock.now(), scene.harness.ids.make_run()
    opened = Process(
        scene.harness.ids.make_process(), claim.agent, "claude", "here", "/keepers/2", now
    )
    created = Created(new, claim.agent, claim.item.id, "claude", now)
    return [
        ("offer_followups", lambda: store.offer_followups(claim)),
        ("absorb", lambda: store.absorb(claim, offer)),
        ("return_offer", lambda: store.return_offer(claim, offer)),
        ("continue_with", lambda: store.continue_with(claim, offer)),
        (
            "continue_with a message",
            lambda: store.continue_with(claim, Message(claim.agent, "by itself", "self")),
        ),
        ("retry", lambda: store.retry(claim, spends=True)),
        ("settle", lambda: store.settle(claim, scene.ended())),
        ("settle warm", lambda: store.settle(claim, scene.ended(), keep_warm=True)),
        ("settle with a batch", lambda: store.settle(claim, scene.ended(), working.batch(0, 5))),
        ("change", lambda: store.change(claim, working.run, Launched(now))),
        ("create", lambda: store.change(claim, new, created)),
        ("open_process", lambda: store.open_process(claim, opened)),
        ("close_process", lambda: store.close_process(claim, working.process)),
        ("append", lambda: store.append(claim, working.batch(0, 5))),
        ("retire_token", lambda: store.retire_token(claim, "claude", "corrupt")),
        ("append ours", lambda: store.append(claim, working.batch(0, 0, working.noted("r", 1)))),
    ]
