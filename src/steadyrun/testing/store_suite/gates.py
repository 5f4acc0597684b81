"""Promises about gates: what happens to them is told, once, and belongs to no agent. And about what
else is remembered."""

from collections.abc import Sequence
from datetime import timedelta

import anyio

from steadyrun.model.event import Event, Foreign, GateClosed, GateOpened, StoredEvent
from steadyrun.model.gate import Gate
from steadyrun.store import Store, follow
from steadyrun.testing.store_suite.harness import StoreHarness
from steadyrun.testing.store_suite.scene import PATIENCE_SECONDS, set_working

MINUTE = timedelta(minutes=1)


async def check_a_gate_that_closes_and_opens_is_told(harness: StoreHarness) -> None:
    store, now = await harness.open(), harness.clock.now()
    until = now + MINUTE

    await store.set_gate(Gate("claude", "work", until, "rate limit"))
    await store.set_gate(Gate("claude", "work"))

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
    assert await store.last_events() == events


async def check_what_changes_nothing_about_a_gate_is_not_told(harness: StoreHarness) -> None:
    store, until = await harness.open(), harness.clock.now() + MINUTE
    await store.set_gate(Gate("claude"))
    assert await store.events() == []
    for reason in ("limit", "the same again"):
        await store.set_gate(Gate("claude", "", until, reason))
    assert len(await store.events()) == 1
    assert await store.gates() == [Gate("claude", "", until, "the same again")]

    harness.clock.advance(MINUTE)
    await store.set_gate(Gate("claude"))

    assert len(await store.events()) == 1, "it had opened by itself"


async def check_a_closed_gate_is_not_closed_for_a_shorter_time(harness: StoreHarness) -> None:
    store, now = await harness.open(), harness.clock.now()
    longer = Gate("claude", "", now + 3 * MINUTE, "longer")
    await store.set_gate(longer)

    await store.set_gate(Gate("claude", "", now + MINUTE, "shorter"))
    await store.set_gate(Gate("claude", "", now - MINUTE, "over"))
    assert await store.gates() == [longer]
    assert len(await store.events()) == 1
    harness.clock.advance(3 * MINUTE)
    shorter = Gate("claude", "", harness.clock.now() + MINUTE, "anew")
    await store.set_gate(shorter)

    assert await store.gates() == [shorter]
    assert len(await store.events()) == 2


async def check_events_of_gates_leave_no_gap_in_those_of_agents(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene = working.store, working.scene
    for n in range(3):
        await store.append(working.claim, working.batch(10 * n, 10 * n + 10))
        until = harness.clock.now() + (n + 1) * MINUTE
        await store.set_gate(Gate("codex", "", until, "limit"))

    events = await store.events()

    assert [event.cursor for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.seq for event in events] == [1, None, 2, None, 3, None]
    assert [event.seq for event in await store.events(agent=scene.agent)] == [1, 2, 3]
    assert [event.seq for event in await store.events(run=working.run)] == [1, 2, 3]
    pages = [await store.events(after, limit=1) for after in range(6)]
    assert [event for page in pages for event in page] == events
    assert await store.last_events(limit=2) == events[-2:]
    assert (await store.run(working.run)).events == 3


async def check_followers_of_everything_hear_of_gates(harness: StoreHarness) -> None:
    store, until = await harness.open(), harness.clock.now() + MINUTE

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.set_gate, Gate("claude", "", until, "limit"))
            feed = follow(store)
            seen = await anext(feed)
            await feed.aclose()

    assert _told([seen]) == [GateClosed("claude", until, "limit", 0)]


async def check_a_gate_keeps_no_secret(harness: StoreHarness) -> None:
    store, word = await harness.open(), harness.secret.reveal()
    await store.set_gate(Gate("claude", "", harness.clock.now() + MINUTE, f"said {word}"))

    assert word not in str(await store.gates())
    assert word not in str(await store.events())


async def check_what_is_remembered_is_recalled(harness: StoreHarness) -> None:
    store, other = await harness.open(), await harness.open()
    assert await store.recall("beat") is None

    await store.remember("beat", b"\x00one")
    await store.remember("", b"")
    await other.remember("beat", b"two")

    assert [await _recalled(each) for each in (store, other)] == [(b"two", b"")] * 2


async def _recalled(store: Store) -> tuple[bytes | None, bytes | None]:
    return await store.recall("beat"), await store.recall("")


def _told(events: Sequence[StoredEvent]) -> list[Event | Foreign]:
    return [event.event for event in events]
