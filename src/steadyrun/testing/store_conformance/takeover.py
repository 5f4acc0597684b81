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
    expect_refused,
    read_everything,
    reap_claims,
    run_overlapping,
    set_abandoned,
    set_scene,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_removed_holder_claims_nothing(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, gone = scene.store, (await scene.store.join("test")).id
    await scene.send()
    await store.leave(gone)

    await expect_refused(store, HolderGone, store.start(gone, _refuse_start))
    await expect_refused(store, HolderGone, store.reap(gone))

    assert (await scene.claim_next()).holder == scene.holder


def _refuse_start(_: Agent, __: Item) -> Created:
    raise AssertionError("nothing is to be begun")


async def check_the_lane_of_a_dead_holder_is_reaped(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    item = await scene.send()
    dead = await harness.claim_and_exit()
    assert (dead.agent, dead.item.id) == (scene.agent, item.id)
    assert (await scene.store.lane(scene.agent)).status == "held"

    [claim] = await scene.reap_claims()

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
    dead = await harness.claim_and_exit()

    for store in (scene.store, other):
        found = {holder.id: holder.is_alive for holder in await store.holders()}
        assert found == {scene.holder: True, dead.holder: False}

    await scene.store.reap(scene.holder)
    for store in (scene.store, other):
        assert [(each.id, each.is_alive) for each in await store.holders()] == [
            (scene.holder, True)
        ]


async def check_lanes_of_living_holders_are_not_reaped(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next()
    other = await harness.open()
    reaper = await other.join("reaper")

    assert await other.reap(reaper.id) == []
    assert await scene.store.reap(scene.holder) == []

    assert (await scene.finish(claim)).status == "completed"


async def check_the_lane_of_a_holder_that_left_is_reaped(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next()
    other = await harness.open()
    reaper = await other.join("reaper")
    await scene.store.leave(scene.holder)

    [abandoned] = await reap_claims(other, reaper.id)

    assert (abandoned.item.id, abandoned.fence) == (claim.item.id, claim.fence + 1)
    await expect_refused(other, LeaseLost, scene.store.settle(claim, scene.make_end()))


async def check_a_lane_is_reaped_once(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    others = [await harness.open() for _ in range(3)]
    reapers = [(store, (await store.join("reaper")).id) for store in others]
    for name in ("bo", "cy"):
        await scene.send(to=await scene.add_agent(name))
        await harness.claim_and_exit()

    answers = await run_overlapping(harness, [s.reap(h) for s, h in reapers * 2])

    claims = [claim for answer in answers for claim in answer]
    assert len({claim.agent for claim in claims}) == len(claims) == 2
    assert await others[0].reap(reapers[0][1]) == []


async def check_a_reaped_lane_is_settled_by_its_new_holder(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    dead = await harness.claim_and_exit()
    run = await scene.begin(dead)
    followup = await scene.send("later")
    await scene.store.offer_followups(dead)
    [claim] = await scene.reap_claims()
    assert claim.item.run == run

    item = await scene.store.settle(claim, Orphaned(harness.clock.now()))

    assert (item.status, item.id) == ("failed", dead.item.id)
    assert (await scene.store.run(run)).stop_reason == "orphaned"
    returned = await scene.store.item(followup.id)
    assert (returned.status, returned.delivery) == ("queued", "returned")
    assert (await scene.claim_next()).item.id == followup.id


async def check_late_writes_of_a_dead_holder_are_refused(harness: StoreHarness) -> None:
    working, offer = await _set_dead(harness)
    store = working.store
    [claim] = await working.reap_claims()

    for name, write in _list_writes(working, offer):
        error = await expect_refused(store, LeaseLost, write())
        assert (error.agent, error.fence) == (claim.agent, working.claim.fence), name

    await store.settle(claim, Orphaned(harness.clock.now()))
    for _, write in _list_writes(working, offer):
        await expect_refused(store, LeaseLost, write())


async def check_a_lane_claimed_again_refuses_the_old_claim(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    old = await scene.claim_next()
    await scene.finish(old, "cancelled", stop_reason="shutdown")
    new = await scene.claim_next()
    assert (new.agent, new.holder, new.item.id) == (old.agent, old.holder, old.item.id)

    verbs = scene.store.offer_followups(old), scene.finish(old), scene.create(old)
    for verb in verbs:
        await expect_refused(scene.store, LeaseLost, verb)

    assert (await scene.finish(new)).status == "completed"


async def check_a_settle_concurrent_with_a_reap_has_one_outcome(harness: StoreHarness) -> None:
    for n in range(6):
        working, _ = await _set_dead(harness, f"ada{n}")
        other = await harness.open()
        verbs: list[Awaitable[Any]] = [
            other.reap(working.holder),
            _try_to_finish(working),
        ]

        answers = await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        claims, is_settled = answers if n % 2 else answers[::-1]
        assert is_settled == (not claims)
        item = await other.item(working.claim.item.id)
        assert item.status == ("completed" if is_settled else "running")
        await other.set_paused(item.agent, is_paused=True)


async def check_reaping_changes_only_lanes(harness: StoreHarness) -> None:
    working, _ = await _set_dead(harness)
    before = await read_everything(working.store)

    await working.store.reap(working.holder)

    after = await read_everything(working.store)
    assert {name for name in after if after[name] != before[name]} == {"lanes"}


async def _set_dead(harness: StoreHarness, name: str = "ada") -> tuple[Working, ItemId]:
    """A run with a process and an open offer whose holder is gone."""
    working = await set_abandoned(harness, name)
    await working.send("later")
    [offer] = await working.store.offer_followups(working.claim)
    return working, offer.id


async def _try_to_finish(working: Working) -> bool:
    try:
        await working.finish(working.claim)
    except LeaseLost:
        return False
    return True


def _list_writes(
    working: Working, offer: ItemId
) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    """Every write that names a claim."""
    store, claim = working.store, working.claim
    now, new = working.harness.clock.now(), working.harness.ids.make_run()
    opened = Process(
        working.harness.ids.make_process(), claim.agent, "claude", "here", "/keepers/2", now
    )
    created = Created(new, claim.agent, claim.item.id, "claude", now)
    return [
        ("offer_followups", lambda: store.offer_followups(claim)),
        ("close_offer absorbed", lambda: store.close_offer(claim, offer, "absorbed")),
        ("close_offer returned", lambda: store.close_offer(claim, offer, "returned")),
        ("continue_with", lambda: store.continue_with(claim, offer)),
        (
            "continue_with in a warm lane",
            lambda: store.continue_with(working.lease, Message(claim.agent, "by itself", "self")),
        ),
        (
            "continue_with a message",
            lambda: store.continue_with(claim, Message(claim.agent, "by itself", "self")),
        ),
        ("retry", lambda: store.retry(claim, spends=True)),
        ("settle", lambda: store.settle(claim, working.make_end())),
        ("settle warm", lambda: store.settle(claim, working.make_end(), keep_warm=True)),
        (
            "settle with a batch",
            lambda: store.settle(claim, working.make_end(), working.make_batch(0, 5)),
        ),
        ("change", lambda: store.change(claim, working.run, Launched(now))),
        ("create", lambda: store.change(claim, new, created)),
        ("open_process", lambda: store.open_process(claim, opened)),
        ("close_process", lambda: store.close_process(claim, working.process)),
        ("append", lambda: store.append(claim, working.make_batch(0, 5))),
        ("retire_token", lambda: store.retire_token(claim, "claude", "corrupt")),
        (
            "append ours",
            lambda: store.append(claim, working.make_batch(0, 0, working.make_note("r", 1))),
        ),
    ]
