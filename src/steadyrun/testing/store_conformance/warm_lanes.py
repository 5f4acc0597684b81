"""Promises about warm lanes: nothing runs in them, and their holder keeps a process."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from steadyrun.errors import ChangeRefused, LeaseLost
from steadyrun.model.gate import Closed
from steadyrun.model.item import Lease, Message
from steadyrun.model.process import Process
from steadyrun.store import Lane
from steadyrun.testing.store_conformance.fixtures import (
    Working,
    claim_lanes,
    expect_refused,
    read_everything,
    read_process,
    run_overlapping,
    set_abandoned,
    set_scene,
    set_warm,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_settled_lane_may_stay_warm(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    later = [await working.send(text) for text in ("absorbed", "offered", "queued")]
    await store.offer_followups(working.claim, limit=2)
    await store.close_offer(working.claim, later[0].id, "absorbed")
    harness.clock.advance(timedelta(seconds=1))

    item = await store.settle(
        working.claim, working.make_end(text="words"), working.make_batch(0, 10), keep_warm=True
    )

    assert (item.status, item.reply, item.run) == ("completed", "words", working.run)
    assert item == await store.item(item.id)
    assert (await read_process(store, working.process)).offset == 10
    found = [await store.item(each.id) for each in later]
    assert [(i.status, i.delivery) for i in found] == [
        ("completed", "absorbed"),
        ("queued", "returned"),
        ("queued", "none"),
    ]
    lane, claim = await store.lane(working.agent), working.claim
    assert (lane.status, lane.holder, lane.fence) == ("warm", claim.holder, claim.fence)
    assert (lane.queued, lane.ready_at) == (2, harness.clock.now())


async def check_only_a_lane_whose_run_has_ended_becomes_warm(harness: StoreHarness) -> None:
    working = await set_working(harness)

    await expect_refused(
        working.store, ChangeRefused, working.store.settle(working.claim, keep_warm=True)
    )

    await working.store.settle(working.claim, working.make_end("failed"), keep_warm=True)
    assert (await _load_lane(working)).status == "warm"


async def check_a_warm_lane_is_claimed_only_by_its_holder(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    other = await harness.open()
    rival = await other.join("worker")
    assert await working.claim_lanes() == []
    item = await working.send("next")

    assert await claim_lanes(other, rival.id, limit=5) == []
    claim = await working.claim_next()

    assert (claim.item.id, claim.fence) == (item.id, working.claim.fence)
    lane = await _load_lane(working)
    assert (lane.status, lane.holder, lane.queued) == ("held", working.holder, 0)
    assert lane.ready_at is None


async def check_a_warm_lane_is_claimed_in_the_order_of_ready_lanes(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    scene, other = working, await set_scene(harness, "bo", store=working.store)
    await other.send("first")
    await scene.send("second")

    claims = await claim_lanes(working.store, scene.holder, limit=5)

    assert [claim.agent for claim in claims] == [other.agent, scene.agent]


async def check_a_paused_or_gated_warm_lane_is_unclaimable(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    store = working.store
    await working.send("next")
    await store.set_paused(working.agent, is_paused=True)
    assert await working.claim_lanes() == []
    await store.set_paused(working.agent, is_paused=False)
    until = harness.clock.now() + timedelta(minutes=1)
    await store.update_gate("claude", Closed(until, "limit"))
    assert await working.claim_lanes() == []

    harness.clock.advance(timedelta(minutes=1))

    assert (await working.claim_next()).fence == working.claim.fence


async def check_a_warm_lane_writes_for_its_process(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    store, lease = working.store, working.lease

    appended = await store.append(
        lease, working.make_batch(0, 10, run=None, token=working.make_token("one"))
    )
    opened = harness.ids.make_process()
    await store.open_process(
        lease, Process(opened, lease.agent, "claude", "here", "/keepers/2", harness.clock.now())
    )
    await store.close_process(lease, working.process)

    assert appended.count == 1
    assert [process.id for process in await store.processes()] == [opened]
    session = (await store.sessions(lease.agent)).get("claude")
    assert session is not None
    assert session.current == working.make_token("one")


async def check_the_claim_on_a_warm_lane_runs_nothing(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    store, claim = working.store, working.claim
    await working.send("next")

    for verb in (
        store.offer_followups(claim),
        store.settle(claim, working.make_end()),
        store.settle(claim, working.make_end(), keep_warm=True),
        store.retry(claim, spends=False),
        store.continue_with(claim, Message(claim.agent, "by itself", "self")),
        store.change(claim, working.run, working.make_end("cancelled")),
        working.create(claim),
    ):
        await expect_refused(store, ChangeRefused, verb)


async def check_an_unprompted_turn_runs_before_queued_items(
    harness: StoreHarness,
) -> None:
    working = await set_warm(harness)
    store = working.store
    queued = await working.send("queued")
    await store.set_paused(working.agent, is_paused=True)
    until = harness.clock.now() + timedelta(hours=1)
    await store.update_gate("claude", Closed(until, "limit"))

    claim = await store.continue_with(working.lease, Message(working.agent, "by itself", "self"))

    item, lane = claim.item, await _load_lane(working)
    assert (claim.holder, claim.fence) == (working.holder, working.claim.fence)
    assert (item.kind, item.status, item.delivery, item.attempt) == ("self", "running", "none", 1)
    assert (item.seq, item.started_at) == (queued.seq + 1, harness.clock.now())
    assert item == await store.item(item.id)
    assert (lane.status, lane.queued, lane.ready_at) == ("held", 1, None)
    await working.begin(claim)
    assert (await store.settle(claim, working.make_end(), keep_warm=True)).status == "completed"


async def check_only_a_warm_lane_starts_an_unprompted_turn_or_is_released(
    harness: StoreHarness,
) -> None:
    working = await set_warm(harness)
    store = working.store
    await working.send("next", key="k")
    lease, message = working.lease, Message(working.agent, "by itself", "self")
    elsewhere = await set_scene(harness, "bo", store=store)

    for wrong in (
        Message(elsewhere.agent, "not ours", "self"),
        Message(working.agent, "", key="k"),
        working.claim.item.id,
    ):
        await expect_refused(store, ChangeRefused, store.continue_with(lease, wrong))
    await working.claim_next()

    await expect_refused(store, ChangeRefused, store.continue_with(lease, message))
    await expect_refused(store, ChangeRefused, store.release_lane(lease))


async def check_a_released_lane_is_idle_or_ready(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    store, lease = working.store, working.lease
    await store.release_lane(lease)
    lane = await _load_lane(working)
    assert (lane.status, lane.holder, lane.ready_at) == ("idle", None, None)
    for verb in _list_writes(working):
        await expect_refused(store, LeaseLost, verb())

    busy = await set_warm(harness, "bo", store=store)
    await busy.send("next")
    since = (await _load_lane(busy)).ready_at
    harness.clock.advance(timedelta(seconds=1))
    await store.release_lane(busy.lease)

    lane = await _load_lane(busy)
    assert (lane.status, lane.holder, lane.queued) == ("ready", None, 1)
    assert lane.ready_at == since
    assert (await busy.claim_next()).fence == busy.claim.fence + 1


async def check_a_warm_lane_whose_only_item_is_cancelled_stays_warm(
    harness: StoreHarness,
) -> None:
    working = await set_warm(harness)
    item = await working.send("next")

    await working.store.cancel(item.id)

    lane = await _load_lane(working)
    assert (lane.status, lane.queued, lane.ready_at) == ("warm", 0, None)
    assert await working.claim_lanes() == []


async def check_an_accept_concurrent_with_a_warm_settle_is_never_lost(
    harness: StoreHarness,
) -> None:
    for n in range(6):
        working = await set_working(harness, f"ada{n}")
        other = await harness.open()
        verbs: list[Awaitable[object]] = [
            other.accept(Message(working.agent, "second")),
            working.store.settle(working.claim, working.make_end(), keep_warm=True),
        ]

        await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        lane = await _load_lane(working)
        assert (lane.status, lane.queued) == ("warm", 1)
        assert (await working.claim_next()).item.text == "second"


async def check_an_accept_concurrent_with_a_release_is_never_lost(harness: StoreHarness) -> None:
    for n in range(6):
        working = await set_warm(harness, f"ada{n}")
        other = await harness.open()
        verbs: list[Awaitable[object]] = [
            other.accept(Message(working.agent, "second")),
            working.store.release_lane(working.lease),
        ]

        await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        lane = await _load_lane(working)
        assert (lane.status, lane.queued, lane.holder) == ("ready", 1, None)
        assert (await working.claim_next()).item.text == "second"


async def check_a_claim_concurrent_with_a_release_has_one_outcome(harness: StoreHarness) -> None:
    for n in range(6):
        working = await set_warm(harness, f"ada{n}")
        store, scene, lease = working.store, working, working.lease
        await scene.send("next")
        verbs: list[Awaitable[object]] = [
            claim_lanes(store, scene.holder),
            _try_to_release(working),
        ]

        answers = await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        claims, is_let_go = answers if n % 2 else answers[::-1]
        assert [claim.fence for claim in claims] == [lease.fence + is_let_go]
        assert (await _load_lane(working)).status == "held"
        await store.set_paused(scene.agent, is_paused=True)


async def check_a_warm_lane_is_reaped_without_an_item(harness: StoreHarness) -> None:
    working = await _set_dead_and_warm(harness)
    store = working.store

    [abandoned] = await store.reap(working.holder)

    assert abandoned.lease == Lease(working.agent, working.holder, working.claim.fence + 1)
    assert abandoned.agent == await store.agent("ada")
    assert abandoned.run is None
    assert [process.id for process in abandoned.processes] == [working.process]
    assert (await _load_lane(working)).status == "warm"
    for verb in _list_writes(working):
        await expect_refused(store, LeaseLost, verb())
    await store.append(abandoned.lease, working.make_batch(0, 10, run=None))
    await store.release_lane(abandoned.lease)


async def check_a_queued_item_of_a_reaped_warm_lane_is_claimed(harness: StoreHarness) -> None:
    working = await _set_dead_and_warm(harness)
    item = await working.send("next")
    before = await read_everything(working.store)

    [abandoned] = await working.store.reap(working.holder)

    after = await read_everything(working.store)
    assert {name for name in after if after[name] != before[name]} == {"lanes"}
    claim = await working.claim_next()
    assert (claim.item.id, claim.fence) == (item.id, abandoned.lease.fence)


async def _set_dead_and_warm(harness: StoreHarness) -> Working:
    """A warm lane with an open process whose holder is gone."""
    working = await set_abandoned(harness)
    token = working.make_batch(0, 0, working.make_note("r", 1), token=working.make_token("one"))
    await working.store.settle(working.claim, working.make_end(), token, keep_warm=True)
    return working


async def _load_lane(working: Working) -> Lane:
    return await working.store.lane(working.agent)


async def _try_to_release(working: Working) -> bool:
    try:
        await working.store.release_lane(working.lease)
    except ChangeRefused:
        return False
    return True


def _list_writes(working: Working) -> list[Callable[[], Awaitable[object]]]:
    """Every write that a warm lane allows."""
    store, lease, ids = working.store, working.lease, working.harness.ids
    now = working.harness.clock.now()
    opened = Process(ids.make_process(), lease.agent, "claude", "here", "/keepers/2", now)
    return [
        lambda: store.continue_with(lease, Message(lease.agent, "by itself", "self")),
        lambda: store.release_lane(lease),
        lambda: store.append(lease, working.make_batch(0, 10, run=None)),
        lambda: store.open_process(lease, opened),
        lambda: store.close_process(lease, working.process),
        lambda: store.settle(working.claim, keep_warm=True),
    ]
