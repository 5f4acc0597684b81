"""Promises about warm lanes: nothing runs in them, and the holder of the process keeps them."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from steadyrun.errors import ChangeRefused, LeaseLost
from steadyrun.model.gate import Closed
from steadyrun.model.item import Lease, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Cancelled
from steadyrun.store import Lane
from steadyrun.testing.store_conformance.fixtures import (
    Working,
    claim_lanes,
    create,
    expect_refused,
    read_everything,
    run_overlapping,
    set_scene,
    set_warm,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_resting_settles_the_item_and_keeps_the_lane(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene = working.store, working.scene
    later = [await scene.send(text) for text in ("absorbed", "offered", "queued")]
    await store.offer_followups(working.claim, limit=2)
    await store.absorb(working.claim, later[0].id)
    harness.clock.advance(timedelta(seconds=1))

    item = await store.settle(
        working.claim, scene.ended(text="words"), working.batch(0, 10), keep_warm=True
    )

    assert (item.status, item.reply, item.run) == ("completed", "words", working.run)
    assert item == await store.item(item.id)
    assert (await store.process(working.process)).offset == 10
    found = [await store.item(each.id) for each in later]
    assert [(i.status, i.delivery) for i in found] == [
        ("completed", "absorbed"),
        ("queued", "returned"),
        ("queued", "none"),
    ]
    lane, claim = await store.lane(scene.agent), working.claim
    assert (lane.status, lane.holder, lane.fence) == ("warm", claim.holder, claim.fence)
    assert (lane.queued, lane.ready_at) == (2, harness.clock.now())


async def check_only_an_ended_run_lets_its_lane_rest(harness: StoreHarness) -> None:
    working = await set_working(harness)

    await expect_refused(
        working.store, ChangeRefused, working.store.settle(working.claim, keep_warm=True)
    )

    await working.store.settle(working.claim, working.scene.ended("failed"), keep_warm=True)
    assert (await _lane(working)).status == "warm"


async def check_a_warm_lane_is_given_to_its_holder_only(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    other = await harness.open()
    rival = await other.join("worker")
    assert await claim_lanes(working.store, working.scene.holder) == []
    item = await working.scene.send("next")

    assert await claim_lanes(other, rival.id, limit=5) == []
    claim = await working.scene.claim()

    assert (claim.item.id, claim.fence) == (item.id, working.claim.fence)
    lane = await _lane(working)
    assert (lane.status, lane.holder, lane.queued) == ("held", working.scene.holder, 0)
    assert lane.ready_at is None


async def check_a_warm_lane_waits_its_turn(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    scene, other = working.scene, await set_scene(harness, "bo", store=working.store)
    await other.send("first")
    await scene.send("second")

    claims = await claim_lanes(working.store, scene.holder, limit=5)

    assert [claim.agent for claim in claims] == [other.agent, scene.agent]


async def check_a_paused_or_gated_warm_lane_is_unclaimable(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    scene, store = working.scene, working.store
    await scene.send("next")
    await store.pause(scene.agent)
    assert await claim_lanes(store, scene.holder) == []
    await store.resume(scene.agent)
    until = harness.clock.now() + timedelta(minutes=1)
    await store.update_gate("claude", Closed(until, "limit"))
    assert await claim_lanes(store, scene.holder) == []

    harness.clock.advance(timedelta(minutes=1))

    assert (await scene.claim()).fence == working.claim.fence


async def check_a_warm_lane_writes_for_its_process(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    store, hold = working.store, _hold(working)

    appended = await store.append(hold, working.batch(0, 10, run=None, token=working.token("one")))
    opened = harness.ids.make_process()
    await store.open_process(
        hold, Process(opened, hold.agent, "claude", "here", "/keepers/2", harness.clock.now())
    )
    await store.close_process(hold, working.process)

    assert appended.count == 1
    assert [process.id for process in await store.open_processes()] == [opened]
    session = await store.session(hold.agent, "claude")
    assert session is not None
    assert session.current == working.token("one")


async def check_what_has_rested_runs_nothing_more(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    store, claim, scene = working.store, working.claim, working.scene
    await scene.send("next")

    for verb in (
        store.offer_followups(claim),
        store.settle(claim, scene.ended()),
        store.settle(claim, scene.ended(), keep_warm=True),
        store.retry(claim, spends=False),
        store.continue_with(claim, Message(claim.agent, "by itself", "self")),
        store.change(claim, working.run, Cancelled(harness.clock.now())),
        create(harness, store, claim),
    ):
        await expect_refused(store, ChangeRefused, verb)


async def check_a_turn_begun_in_a_warm_lane_runs_before_what_is_queued(
    harness: StoreHarness,
) -> None:
    working = await set_warm(harness)
    scene, store = working.scene, working.store
    queued = await scene.send("queued")
    await store.pause(scene.agent)
    until = harness.clock.now() + timedelta(hours=1)
    await store.update_gate("claude", Closed(until, "limit"))

    claim = await store.start_unprompted(_hold(working), Message(scene.agent, "by itself", "self"))

    item, lane = claim.item, await _lane(working)
    assert (claim.holder, claim.fence) == (scene.holder, working.claim.fence)
    assert (item.kind, item.status, item.delivery, item.attempt) == ("self", "running", "none", 1)
    assert (item.seq, item.started_at) == (queued.seq + 1, harness.clock.now())
    assert item == await store.item(item.id)
    assert (lane.status, lane.queued, lane.ready_at) == ("held", 1, None)
    await scene.begin(claim)
    assert (await store.settle(claim, scene.ended(), keep_warm=True)).status == "completed"


async def check_only_a_warm_lane_is_woken_or_let_go(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    scene, store = working.scene, working.store
    await scene.send("next", key="k")
    hold, message = _hold(working), Message(scene.agent, "by itself", "self")
    elsewhere = await set_scene(harness, "bo", store=store)

    for wrong in (Message(elsewhere.agent, "not ours", "self"), Message(scene.agent, "", key="k")):
        await expect_refused(store, ChangeRefused, store.start_unprompted(hold, wrong))
    await scene.claim()

    await expect_refused(store, ChangeRefused, store.start_unprompted(hold, message))
    await expect_refused(store, ChangeRefused, store.release_lane(hold))


async def check_a_lane_let_go_is_idle_or_ready(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    store, hold = working.store, _hold(working)
    await store.release_lane(hold)
    lane = await _lane(working)
    assert (lane.status, lane.holder, lane.ready_at) == ("idle", None, None)
    for verb in _writes(working):
        await expect_refused(store, LeaseLost, verb())

    busy = await set_warm(harness, "bo", store=store)
    await busy.scene.send("next")
    since = (await _lane(busy)).ready_at
    harness.clock.advance(timedelta(seconds=1))
    await store.release_lane(_hold(busy))

    lane = await _lane(busy)
    assert (lane.status, lane.holder, lane.queued) == ("ready", None, 1)
    assert lane.ready_at == since
    assert (await busy.scene.claim()).fence == busy.claim.fence + 1


async def check_a_warm_lane_whose_only_item_is_cancelled_waits_again(
    harness: StoreHarness,
) -> None:
    working = await set_warm(harness)
    item = await working.scene.send("next")

    await working.store.cancel(item.id)

    lane = await _lane(working)
    assert (lane.status, lane.queued, lane.ready_at) == ("warm", 0, None)
    assert await claim_lanes(working.store, working.scene.holder) == []


async def check_a_wake_up_beside_resting_is_never_lost(harness: StoreHarness) -> None:
    for n in range(6):
        working = await set_working(harness, f"ada{n}")
        scene, other = working.scene, await harness.open()
        verbs: list[Awaitable[object]] = [
            other.accept(Message(scene.agent, "second")),
            working.store.settle(working.claim, scene.ended(), keep_warm=True),
        ]

        await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        lane = await _lane(working)
        assert (lane.status, lane.queued) == ("warm", 1)
        assert (await scene.claim()).item.text == "second"


async def check_a_wake_up_beside_letting_go_is_never_lost(harness: StoreHarness) -> None:
    for n in range(6):
        working = await set_warm(harness, f"ada{n}")
        scene, other = working.scene, await harness.open()
        verbs: list[Awaitable[object]] = [
            other.accept(Message(scene.agent, "second")),
            working.store.release_lane(_hold(working)),
        ]

        await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        lane = await _lane(working)
        assert (lane.status, lane.queued, lane.holder) == ("ready", 1, None)
        assert (await scene.claim()).item.text == "second"


async def check_starting_beside_letting_go_has_one_winner(harness: StoreHarness) -> None:
    for n in range(6):
        working = await set_warm(harness, f"ada{n}")
        store, scene, hold = working.store, working.scene, _hold(working)
        await scene.send("next")
        verbs: list[Awaitable[object]] = [claim_lanes(store, scene.holder), _let_go(working)]

        answers = await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        claims, is_let_go = answers if n % 2 else answers[::-1]
        assert [claim.fence for claim in claims] == [hold.fence + is_let_go]
        assert (await _lane(working)).status == "held"
        await store.pause(scene.agent)


async def check_a_warm_lane_is_reaped_without_an_item(harness: StoreHarness) -> None:
    working = await _set_dead_and_warm(harness)
    store, scene = working.store, working.scene

    [lost] = await store.reap(scene.holder)

    assert lost.lease == Lease(scene.agent, scene.holder, working.claim.fence + 1)
    assert lost.agent == await store.agent("ada")
    assert lost.run is None
    assert [process.id for process in lost.processes] == [working.process]
    assert (await _lane(working)).status == "warm"
    for verb in _writes(working):
        await expect_refused(store, LeaseLost, verb())
    await store.append(lost.lease, working.batch(0, 10, run=None))
    await store.release_lane(lost.lease)


async def check_what_was_queued_in_a_reaped_warm_lane_runs(harness: StoreHarness) -> None:
    working = await _set_dead_and_warm(harness)
    item = await working.scene.send("next")
    before = await read_everything(working.store)

    [lost] = await working.store.reap(working.scene.holder)

    after = await read_everything(working.store)
    assert {name for name in after if after[name] != before[name]} == {"lanes"}
    claim = await working.scene.claim()
    assert (claim.item.id, claim.fence) == (item.id, lost.lease.fence)


async def _set_dead_and_warm(harness: StoreHarness) -> Working:
    """A warm lane with an open process whose holder is gone."""
    scene = await set_scene(harness)
    await scene.send()
    dead = await harness.claim_and_die()
    working = Working(scene, dead, await scene.begin(dead), await scene.open_process(dead))
    token = working.batch(0, 0, working.noted("r", 1), token=working.token("one"))
    await scene.store.settle(dead, scene.ended(), token, keep_warm=True)
    return working


def _hold(working: Working) -> Lease:
    claim = working.claim
    return Lease(claim.agent, claim.holder, claim.fence)


async def _lane(working: Working) -> Lane:
    return await working.store.lane(working.scene.agent)


async def _let_go(working: Working) -> bool:
    try:
        await working.store.release_lane(_hold(working))
    except ChangeRefused:
        return False
    return True


def _writes(working: Working) -> list[Callable[[], Awaitable[object]]]:
    """Every write that a warm lane allows."""
    store, hold, ids = working.store, _hold(working), working.scene.harness.ids
    now = working.scene.harness.clock.now()
    opened = Process(ids.make_process(), hold.agent, "claude", "here", "/keepers/2", now)
    return [
        lambda: store.start_unprompted(hold, Message(hold.agent, "by itself", "self")),
        lambda: store.release_lane(hold),
        lambda: store.append(hold, working.batch(0, 10, run=None)),
        lambda: store.open_process(hold, opened),
        lambda: store.close_process(hold, working.process),
        lambda: store.settle(working.claim, keep_warm=True),
    ]
