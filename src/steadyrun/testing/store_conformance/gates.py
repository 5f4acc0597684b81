"""Promises about gates: runs close and open them as they begin and end, a person whenever they
like; what happens is told, once, and belongs to no agent. And about what else is remembered."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import anyio

from steadyrun.model.agent import Agent
from steadyrun.model.event import (
    ErrorFact,
    Event,
    Foreign,
    GateClosed,
    GateOpened,
    GateSuspect,
    StoredEvent,
)
from steadyrun.model.gate import Booted, Closed, Gate, Opened, Suspected
from steadyrun.model.item import Item
from steadyrun.model.run import Created, Finished
from steadyrun.store import Started, Store, follow
from steadyrun.testing.store_conformance.fixtures import (
    PATIENCE_SECONDS,
    Scene,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

MINUTE = timedelta(minutes=1)


async def check_a_gate_that_closes_and_opens_is_told(harness: StoreHarness) -> None:
    store, now = await harness.open(), harness.clock.now()
    until = now + MINUTE

    closed = await store.update_gate("claude", Closed(until, "rate limit"))
    assert await store.gates() == [closed]
    assert (closed.account, closed.until, closed.reason) == ("", until, "rate limit")
    opened = await store.update_gate("claude", Opened())

    assert await store.gates() == [opened] == [Gate("claude")]
    events = await store.events()
    assert _told(events) == [
        GateClosed("claude", until, "rate limit", 0),
        GateOpened("claude"),
    ]
    assert [(e.cursor, e.seq, e.agent, e.run, e.at) for e in events] == [
        (1, None, None, None, now),
        (2, None, None, None, now),
    ]
    assert len({event.id for event in events}) == 2
    assert await store.events(newest=True) == events


async def check_what_changes_nothing_about_a_gate_is_not_told(harness: StoreHarness) -> None:
    store, until = await harness.open(), harness.clock.now() + MINUTE
    await store.update_gate("claude", Opened())
    await store.update_gate("claude", Booted(is_probe_over=True))
    assert (await store.gates(), await store.events()) == ([], [])
    for reason in ("limit", "the same again"):
        await store.update_gate("claude", Closed(until, reason))

    assert len(await store.events()) == 1
    [gate] = await store.gates()
    assert gate.reason == "the same again"


async def check_a_suspicion_is_told_and_passes(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    until = harness.clock.now() + timedelta(seconds=2)

    await scene.store.update_gate("claude", Suspected(timedelta(seconds=2), "asked to wait"))

    assert _told(await scene.store.events()) == [GateSuspect("claude", until, "asked to wait")]
    assert await _started(scene) == []
    harness.clock.advance(timedelta(seconds=2))
    assert len(await _started(scene)) == 1


async def check_a_run_that_is_limited_closes_its_gate(harness: StoreHarness) -> None:
    """The gate closes in the transaction that ends the run, for every way to end it."""
    scene = await set_scene(harness)
    for n, keep_warm in enumerate((False, True)):
        await scene.send()
        [started] = await _started(scene)
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


async def check_a_limit_that_comes_with_events_keeps_them_in_order(harness: StoreHarness) -> None:
    working = await set_working(harness)
    end = Finished(harness.clock.now(), "rate_limited")

    appended = await working.store.append(working.claim, working.batch(0, 10, change=end))

    events = await working.store.events()
    assert [event.cursor for event in events] == list(range(1, len(events) + 1))
    assert isinstance(events[-1].event, GateClosed)
    assert appended.cursor == events[-1].cursor
    seqs = [event.seq for event in events if event.seq is not None]
    assert seqs == list(range(1, len(seqs) + 1))


async def check_a_gate_that_is_ready_takes_one(harness: StoreHarness) -> None:
    """One run starts for all callers together; the next starts when the first has an answer."""
    scene, other = await set_scene(harness), await harness.open()
    crew = [scene] + [await set_scene(harness, n, store=scene.store) for n in ("bo", "cy", "di")]
    for each in crew:
        await each.send()
    await scene.store.update_gate("claude", Closed(harness.clock.now() + MINUTE, "limit"))
    harness.clock.advance(MINUTE)

    [probe] = await _started(scene)
    assert await _started(scene) == []
    holder = (await other.join("worker")).id
    assert await other.start(holder, _opened(harness), 5) == []
    [gate] = await scene.store.gates()
    assert gate.probe == probe.run.id
    await scene.finish(probe.claim)

    assert await scene.store.gates() == [Gate("claude")]
    assert len(await _started(scene)) == 3


async def check_a_probe_that_shows_nothing_makes_room_for_the_next(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    for _ in range(2):
        await scene.send()
    await scene.store.update_gate("claude", Closed(harness.clock.now() + MINUTE, "limit"))
    harness.clock.advance(MINUTE)
    [probe] = await _started(scene)

    await scene.finish(probe.claim, "failed")

    [gate] = await scene.store.gates()
    assert (gate.is_closed, gate.probe) == (True, None)
    [second] = await _started(scene)
    assert (await scene.store.gates())[0].probe == second.run.id


async def check_events_of_gates_leave_no_gap_in_those_of_agents(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene = working.store, working.scene
    for n in range(3):
        await store.append(working.claim, working.batch(10 * n, 10 * n + 10))
        until = harness.clock.now() + (n + 1) * MINUTE
        await store.update_gate("codex", Closed(until, "limit"))

    events = await store.events()

    assert [event.cursor for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.seq for event in events] == [1, None, 2, None, 3, None]
    assert [event.seq for event in await store.events(agent=scene.agent)] == [1, 2, 3]
    assert [event.seq for event in await store.events(run=working.run)] == [1, 2, 3]
    pages = [await store.events(after, limit=1) for after in range(6)]
    assert [event for page in pages for event in page] == events
    assert await store.events(limit=2, newest=True) == events[-2:]
    assert (await store.run(working.run)).events == 3


async def check_followers_of_everything_hear_of_gates(harness: StoreHarness) -> None:
    store, until = await harness.open(), harness.clock.now() + MINUTE

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.update_gate, "claude", Closed(until, "limit"))
            feed = follow(store)
            seen = await anext(feed)
            await feed.aclose()

    assert _told([seen]) == [GateClosed("claude", until, "limit", 0)]


async def check_a_gate_keeps_no_secret(harness: StoreHarness) -> None:
    store, word = await harness.open(), harness.secret.reveal()
    await store.update_gate("claude", Closed(harness.clock.now() + MINUTE, f"said {word}"))

    assert word not in str(await store.gates())
    assert word not in str(await store.events())


async def check_what_is_remembered_is_recalled(harness: StoreHarness) -> None:
    store, other = await harness.open(), await harness.open()
    assert await store.get("beat") is None

    await store.put("beat", b"\x00one")
    await store.put("", b"")
    await other.put("beat", b"two")

    assert [await _recalled(each) for each in (store, other)] == [(b"two", b"")] * 2


async def _recalled(store: Store) -> tuple[bytes | None, bytes | None]:
    return await store.get("beat"), await store.get("")


async def _started(scene: Scene) -> list[Started]:
    return await scene.store.start(scene.holder, _opened(scene.harness), limit=5)


def _opened(harness: StoreHarness) -> Callable[[Agent, Item], Created]:
    def opened(agent: Agent, item: Item) -> Created:
        now = harness.clock.now()
        return Created(harness.ids.make_run(), agent.id, item.id, agent.provider, now)

    return opened


def _told(events: Sequence[StoredEvent]) -> list[Event | Foreign]:
    return [event.event for event in events]
