"""Promises about gates, and about values under a key. Runs and users close and open gates. Each
change is one event, which belongs to no agent."""

from collections.abc import Sequence
from datetime import timedelta

import anyio

from steadyrun.model.event import (
    ErrorFact,
    Event,
    Foreign,
    GateClosed,
    GateOpened,
    GateSuspect,
    StoredEvent,
)
from steadyrun.model.gate import Booted, Closed, Gate, Opened, Suspected, find_opening_time
from steadyrun.model.run import Finished
from steadyrun.store import Store, follow
from steadyrun.testing.store_conformance.fixtures import (
    TIMEOUT_SECONDS,
    make_run_creator,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

MINUTE = timedelta(minutes=1)


async def check_a_gate_writes_an_event_when_it_closes_and_opens(harness: StoreHarness) -> None:
    store, now = await harness.open(), harness.clock.now()
    until = now + MINUTE

    closed = await store.update_gate("claude", Closed(until, "rate limit"))
    assert await store.gates() == [closed]
    assert (closed.account, closed.until, closed.reason) == ("", until, "rate limit")
    opened = await store.update_gate("claude", Opened())

    assert await store.gates() == [opened] == [Gate("claude")]
    events = await store.events()
    assert _list_events(events) == [
        GateClosed("claude", until, "rate limit", 0),
        GateOpened("claude"),
    ]
    assert [(e.cursor, e.seq, e.agent, e.run, e.at) for e in events] == [
        (1, None, None, None, now),
        (2, None, None, None, now),
    ]
    assert len({event.id for event in events}) == 2
    assert await store.events(newest=True) == events


async def check_an_unchanged_gate_writes_no_event(harness: StoreHarness) -> None:
    store, until = await harness.open(), harness.clock.now() + MINUTE
    await store.update_gate("claude", Opened())
    await store.update_gate("claude", Booted(is_probe_over=True))
    assert (await store.gates(), await store.events()) == ([], [])
    for reason in ("limit", "the same again"):
        await store.update_gate("claude", Closed(until, reason))

    assert len(await store.events()) == 1
    [gate] = await store.gates()
    assert gate.reason == "the same again"


async def check_a_failed_launch_requeues_its_item_and_closes_the_gate(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    item = await scene.send()
    waits, error = [], ErrorFact("launch_failed", "no such program")

    for _ in range(3):
        [started] = await scene.start()
        ended = Finished(harness.clock.now(), "failed", "launch_failed", error=error)
        assert (await scene.store.settle(started.claim, ended)).status == "queued"
        assert await scene.start() == []
        [gate] = await scene.store.gates()
        assert gate.reason == "launch_failed: no such program"
        opens_at = find_opening_time(gate, harness.clock.now())
        assert opens_at
        waits.append((opens_at - harness.clock.now()).total_seconds())
        harness.clock.advance(opens_at - harness.clock.now())
    [started] = await scene.start()
    await scene.store.settle(started.claim, Finished(harness.clock.now(), "completed"))

    assert waits == [2, 4, 8]
    assert (await scene.store.item(item.id)).attempt == 4
    [gate] = await scene.store.gates()
    assert (gate.is_closed, gate.failed_launches) == (False, 0)


async def check_a_suspicion_is_an_event_and_ends(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    until = harness.clock.now() + timedelta(seconds=2)

    await scene.store.update_gate("claude", Suspected(timedelta(seconds=2), "asked to wait"))

    assert _list_events(await scene.store.events()) == [
        GateSuspect("claude", until, "asked to wait")
    ]
    assert await scene.start() == []
    harness.clock.advance(timedelta(seconds=2))
    assert len(await scene.start()) == 1


async def check_a_rate_limited_run_closes_its_gate(harness: StoreHarness) -> None:
    """The gate closes in the transaction that ends the run, for every way to end it."""
    scene = await set_scene(harness)
    for n, keep_warm in enumerate((False, True)):
        await scene.send()
        [started] = await scene.start()
        now, stated = harness.clock.now(), harness.clock.now() + (n + 2) * MINUTE
        fact = ErrorFact("rate_limited", "too much", retry_at=stated)

        end = Finished(now, "rate_limited", error=fact)
        await scene.store.settle(started.claim, end, keep_warm=keep_warm)

        [gate] = await scene.store.gates()
        assert (gate.is_closed, gate.until, gate.is_stated) == (True, stated, True)
        assert (gate.run, gate.hit_at) == (started.run.id, now)
        last = (await scene.store.events(limit=1, newest=True))[0]
        assert last.event == GateClosed("claude", stated, f"{started.run.id} was rate limited", 0)
        await scene.store.update_gate("claude", Opened())


async def check_the_event_of_a_limit_follows_the_events_of_its_batch(harness: StoreHarness) -> None:
    working = await set_working(harness)
    end = Finished(harness.clock.now(), "rate_limited")

    appended = await working.store.append(working.claim, working.make_batch(0, 10, change=end))

    events = await working.store.events()
    assert [event.cursor for event in events] == list(range(1, len(events) + 1))
    assert isinstance(events[-1].event, GateClosed)
    assert appended.cursor == events[-1].cursor
    assert appended.count == len(events) - 1, "the event of the gate belongs to no agent"
    assert {row.run for row in appended.rows} == {working.run}
    seqs = [event.seq for event in events if event.seq is not None]
    assert seqs == list(range(1, len(seqs) + 1))


async def check_a_ready_gate_admits_one_run(harness: StoreHarness) -> None:
    """One run starts for all callers together; the next starts when the first has an answer."""
    scene, other = await set_scene(harness), await harness.open()
    workers = [scene] + [await set_scene(harness, n, store=scene.store) for n in ("bo", "cy", "di")]
    for each in workers:
        await each.send()
    await scene.store.update_gate("claude", Closed(harness.clock.now() + MINUTE, "limit"))
    harness.clock.advance(MINUTE)

    [probe] = await scene.start()
    assert await scene.start() == []
    holder = (await other.join("worker")).id
    assert await other.start(holder, make_run_creator(), 5) == []
    [gate] = await scene.store.gates()
    assert gate.probe == probe.run.id
    await scene.finish(probe.claim)

    assert await scene.store.gates() == [Gate("claude")]
    assert len(await scene.start()) == 3


async def check_an_inconclusive_probe_admits_the_next_one(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    for _ in range(2):
        await scene.send()
    await scene.store.update_gate("claude", Closed(harness.clock.now() + MINUTE, "limit"))
    harness.clock.advance(MINUTE)
    [probe] = await scene.start()

    await scene.finish(probe.claim, "failed")

    [gate] = await scene.store.gates()
    assert (gate.is_closed, gate.probe) == (True, None)
    [second] = await scene.start()
    assert (await scene.store.gates())[0].probe == second.run.id


async def check_events_of_gates_leave_no_gap_in_those_of_agents(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    for n in range(3):
        await store.append(working.claim, working.make_batch(10 * n, 10 * n + 10))
        until = harness.clock.now() + (n + 1) * MINUTE
        await store.update_gate("codex", Closed(until, "limit"))

    events = await store.events()

    assert [event.cursor for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.seq for event in events] == [1, None, 2, None, 3, None]
    assert [event.seq for event in await store.events(agent=working.agent)] == [1, 2, 3]
    assert [event.seq for event in await store.events(run=working.run)] == [1, 2, 3]
    pages = [await store.events(after, limit=1) for after in range(6)]
    assert [event for page in pages for event in page] == events
    assert await store.events(limit=2, newest=True) == events[-2:]
    assert (await store.run(working.run)).events == 3


async def check_a_follower_of_all_events_gets_gate_events(harness: StoreHarness) -> None:
    store, until = await harness.open(), harness.clock.now() + MINUTE

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.update_gate, "claude", Closed(until, "limit"))
            feed = follow(store)
            seen = await anext(feed)
            await feed.aclose()

    assert _list_events([seen]) == [GateClosed("claude", until, "limit", 0)]


async def check_a_gate_has_no_secret(harness: StoreHarness) -> None:
    store, word = await harness.open(), harness.secret.reveal()
    await store.update_gate("claude", Closed(harness.clock.now() + MINUTE, f"said {word}"))

    assert word not in str(await store.gates())
    assert word not in str(await store.events())


async def check_a_stored_value_is_read_by_every_store(harness: StoreHarness) -> None:
    store, other = await harness.open(), await harness.open()
    assert await store.get("beat") is None

    await store.put("beat", b"\x00one")
    await store.put("", b"")
    await other.put("beat", b"two")

    assert [await _read_values(each) for each in (store, other)] == [(b"two", b"")] * 2


async def _read_values(store: Store) -> tuple[bytes | None, bytes | None]:
    return await store.get("beat"), await store.get("")


def _list_events(events: Sequence[StoredEvent]) -> list[Event | Foreign]:
    return [event.event for event in events]
