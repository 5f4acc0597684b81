"""Promises about reading: pages equal the whole, and waiters are notified of changes."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace

import anyio

from steadyrun.lib.notifier import Hint, Notifier
from steadyrun.model.event import StoredEvent
from steadyrun.model.gate import Closed
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Message
from steadyrun.model.run import Launched
from steadyrun.store import Store, follow
from steadyrun.testing.store_conformance.fixtures import (
    ALL,
    TIMEOUT_SECONDS,
    Working,
    add_agent,
    read_process,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

POLL_SECONDS = 0.02


class LostHints(Notifier):
    """Drops every hint."""

    def notify(self, agents: Iterable[str], hint: Hint = Hint.WORK) -> None:
        """Send nothing."""

    def notify_all(self) -> None:
        """Send nothing."""


class DoubledHints(Notifier):
    """Sends every hint twice, and to all waiters too."""

    def notify(self, agents: Iterable[str], hint: Hint = Hint.WORK) -> None:
        names = list(agents)
        super().notify(names)
        super().notify(names)
        super().notify_all()

    def notify_all(self) -> None:
        super().notify_all()
        super().notify_all()


class LateHints(Notifier):
    """Sends each hint only with the next one; the last is never sent."""

    def __init__(self) -> None:
        super().__init__()
        self._held_back: list[str] | None = None

    def notify(self, agents: Iterable[str], hint: Hint = Hint.WORK) -> None:
        late, self._held_back = self._held_back, list(agents)
        if late is not None:
            super().notify(late)

    def notify_all(self) -> None:
        self.notify([])


async def check_pages_equal_the_whole(harness: StoreHarness) -> None:
    store, workers = await _set_record(harness)
    selections: list[tuple[AgentId | None, RunId | None]] = [(None, None)]
    selections += [(working.agent, None) for working in workers]
    selections += [(None, working.run) for working in workers]
    selections += [(working.agent, working.run) for working in workers]
    whole = await store.events(limit=ALL)
    assert len(whole) == 3 * sum(range(6)) + 2

    for agent, run in selections:
        chosen = await store.events(agent=agent, run=run, limit=ALL)
        assert chosen == [e for e in whole if _is_in(e, workers, agent, run)]
        for limit in (1, 2, 3, 7, len(chosen), len(chosen) + 1):
            assert await _read_pages(store, limit, agent, run) == chosen
            last = await store.events(agent=agent, run=run, limit=limit, newest=True)
            assert last == chosen[-limit:]


async def check_events_are_read_after_any_cursor(harness: StoreHarness) -> None:
    store, workers = await _set_record(harness)
    whole = await store.events(limit=ALL)
    agent = workers[1].agent
    mine = await store.events(agent=agent, limit=ALL)

    for after in range(len(whole) + 3):
        assert await store.events(after, limit=ALL) == whole[after:]
        assert await store.events(after, agent=agent) == [e for e in mine if e.cursor > after]
        assert await store.events(after, limit=2) == whole[after : after + 2]


async def check_a_limit_of_zero_returns_nothing(harness: StoreHarness) -> None:
    store, _ = await _set_record(harness)

    assert await store.events(limit=0) == []
    assert await store.events(limit=0, newest=True) == []


async def check_the_run_of_another_agent_has_no_events(harness: StoreHarness) -> None:
    store, workers = await _set_record(harness)

    assert await store.events(agent=workers[0].agent, run=workers[1].run) == []
    assert await store.events(agent=workers[0].agent, run=workers[1].run, newest=True) == []


async def check_follow_gives_stored_then_live_events_once(harness: StoreHarness) -> None:
    working = await set_working(harness)
    for n in range(5):
        await working.store.append(working.claim, working.make_batch(n * 10, n * 10 + 10))
    other = await harness.open()

    seen = await _follow_while_writing(working, other, poll_seconds=5)

    assert seen == await other.events(limit=ALL)


async def check_follow_starts_after_its_cursor(harness: StoreHarness) -> None:
    store, workers = await _set_record(harness)
    mine = await store.events(run=workers[2].run, limit=ALL)
    feed = _feed(store, after=mine[3].cursor, run=workers[2].run)

    seen = []
    with anyio.fail_after(TIMEOUT_SECONDS):
        async with aclosing(feed) as events:
            async for event in events:
                seen.append(event)
                if event == mine[-1]:
                    break

    assert seen == mine[4:]


async def check_a_waiter_is_notified_of_a_write_in_another_store(harness: StoreHarness) -> None:
    working = await set_working(harness)
    waiter, writer, agent = await harness.open(), working.store, working.agent
    now = harness.clock.now()

    for verb in (
        lambda: writer.accept(Message(agent, "hello")),
        lambda: writer.append(working.claim, working.make_batch(0, 10)),
        lambda: writer.change(working.claim, working.run, Launched(now)),
        lambda: writer.cancel(working.claim.item.id),
        lambda: writer.set_paused(agent, is_paused=True),
        lambda: writer.update_gate("codex", Closed(None, "by hand")),
        lambda: writer.settle(working.claim, working.make_end()),
    ):
        with anyio.fail_after(TIMEOUT_SECONDS), waiter.hints.watch(agent) as watch:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(verb)
                assert await watch.wait(TIMEOUT_SECONDS)


async def check_a_waiter_is_notified_of_a_write_in_its_own_store(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.agent

    with anyio.fail_after(TIMEOUT_SECONDS), store.hints.watch(agent) as watch:
        await store.accept(Message(agent, "hello"))
        assert await watch.wait(TIMEOUT_SECONDS)


async def check_a_write_before_the_wait_is_notified(harness: StoreHarness) -> None:
    working = await set_working(harness)
    waiter, agent = await harness.open(), working.agent

    with anyio.fail_after(TIMEOUT_SECONDS), waiter.hints.watch(None) as watch:
        await working.store.accept(Message(agent, "hello"))
        assert await watch.wait(TIMEOUT_SECONDS)


async def check_lost_hints_only_cost_time(harness: StoreHarness) -> None:
    await _check_work_goes_on(harness, LostHints(), LostHints())


async def check_doubled_hints_change_nothing(harness: StoreHarness) -> None:
    await _check_work_goes_on(harness, DoubledHints(), DoubledHints())


async def check_late_hints_only_cost_time(harness: StoreHarness) -> None:
    await _check_work_goes_on(harness, LateHints(), LateHints())


async def _check_work_goes_on(harness: StoreHarness, front: Notifier, back: Notifier) -> None:
    """Accept messages through one store; run and follow them through another."""
    inbox, store = await harness.open(front), await harness.open(back)
    working = await set_working(harness, store=store)
    agent = await add_agent(harness, inbox, "bo")
    settled: list[str] = []

    async def work() -> None:
        with store.hints.watch(None) as watch:
            while len(settled) < 10:
                claims = await working.claim_lanes()
                settled.extend([(await working.finish(claim)).text for claim in claims])
                await watch.wait(POLL_SECONDS)

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            for n in range(10):
                await replace(working, store=inbox).send(str(n), to=agent)

    assert settled == [str(n) for n in range(10)]
    before = await store.events(limit=ALL)
    seen = await _follow_while_writing(working, inbox, poll_seconds=POLL_SECONDS)
    assert seen[: len(before)] == before
    assert seen == await inbox.events(limit=ALL)


async def _follow_while_writing(
    working: Working, reader: Store, *, poll_seconds: float
) -> list[StoredEvent]:
    """Everything `reader` follows while `working` appends twenty events more."""
    stored = await reader.events(limit=ALL)
    seen: list[StoredEvent] = []
    start = (await read_process(reader, working.process)).offset

    async def watch() -> None:
        async with aclosing(_feed(reader, poll_seconds=poll_seconds)) as events:
            async for event in events:
                seen.append(event)
                if len(seen) == len(stored) + 20:
                    return

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for n in range(start, start + 200, 20):
                events = working.make_event(n + 10), working.make_event(n + 20)
                await working.store.append(working.claim, working.make_batch(n, n + 20, *events))
    return seen


async def _set_record(harness: StoreHarness) -> tuple[Store, list[Working]]:
    """Three agents whose batches of 0 to 5 events lie interleaved, and two events of no run."""
    store = await harness.open()
    workers = [await set_working(harness, name, store=store) for name in ("ada", "bo", "cy")]
    for n in range(6):
        for working in workers:
            start, events = n * 10, [working.make_event(n * 10 + 10, k) for k in range(n)]
            batch = working.make_batch(start, start + 10, *events) if events else None
            empty = working.make_batch(start, start + 10, working.make_note("s", 0))
            await store.append(working.claim, batch or empty)
    extra = workers[1].make_batch(
        60, 70, workers[1].make_event(65), workers[1].make_event(70), run=None
    )
    await store.append(workers[1].claim, extra)
    return store, workers


def _is_in(
    event: StoredEvent, workers: list[Working], agent: AgentId | None, run: RunId | None
) -> bool:
    names = {
        working.agent: name for working, name in zip(workers, ("ada", "bo", "cy"), strict=True)
    }
    return (agent is None or event.agent == names[agent]) and run in {None, event.run}


async def _read_pages(
    store: Store, limit: int, agent: AgentId | None, run: RunId | None
) -> list[StoredEvent]:
    events: list[StoredEvent] = []
    after = 0
    while page := await store.events(after, agent=agent, run=run, limit=limit):
        assert len(page) <= limit
        assert page[0].cursor > after, "a page that does not go on would be read for ever"
        events += page
        after = page[-1].cursor
    return events


def _feed(
    store: Store, *, after: int = 0, run: RunId | None = None, poll_seconds: float = POLL_SECONDS
) -> AsyncGenerator[StoredEvent, None]:
    return follow(store, after, run=run, poll_seconds=poll_seconds)
