"""Promises about reading: pages equal the whole, and news reach those who wait."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

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
    PATIENCE_SECONDS,
    Working,
    add_agent,
    begin,
    claim_lanes,
    send,
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
        known = list(agents)
        super().notify(known)
        super().notify(known)
        super().notify_all()

    def notify_all(self) -> None:
        super().notify_all()
        super().notify_all()


class LateHints(Notifier):
    """Each hint is heard only when the next one comes; the last is never heard."""

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
    store, crew = await _set_record(harness)
    selections: list[tuple[AgentId | None, RunId | None]] = [(None, None)]
    selections += [(working.scene.agent, None) for working in crew]
    selections += [(None, working.run) for working in crew]
    selections += [(working.scene.agent, working.run) for working in crew]
    whole = await store.events(limit=ALL)
    assert len(whole) == 3 * sum(range(6)) + 2

    for agent, run in selections:
        chosen = await store.events(agent=agent, run=run, limit=ALL)
        assert chosen == [e for e in whole if _is_in(e, crew, agent, run)]
        for limit in (1, 2, 3, 7, len(chosen), len(chosen) + 1):
            assert await _paged(store, limit, agent, run) == chosen
            last = await store.events(agent=agent, run=run, limit=limit, newest=True)
            assert last == chosen[-limit:]


async def check_reading_goes_on_after_any_cursor(harness: StoreHarness) -> None:
    store, crew = await _set_record(harness)
    whole = await store.events(limit=ALL)
    agent = crew[1].scene.agent
    mine = await store.events(agent=agent, limit=ALL)

    for after in range(len(whole) + 3):
        assert await store.events(after, limit=ALL) == whole[after:]
        assert await store.events(after, agent=agent) == [e for e in mine if e.cursor > after]
        assert await store.events(after, limit=2) == whole[after : after + 2]


async def check_no_limit_of_zero_means_all(harness: StoreHarness) -> None:
    store, _ = await _set_record(harness)

    assert await store.events(limit=0) == []
    assert await store.events(limit=0, newest=True) == []


async def check_an_agent_and_anothers_run_have_nothing_in_common(harness: StoreHarness) -> None:
    store, crew = await _set_record(harness)

    assert await store.events(agent=crew[0].scene.agent, run=crew[1].run) == []
    assert await store.events(agent=crew[0].scene.agent, run=crew[1].run, newest=True) == []


async def check_follow_gives_stored_then_live_events_once(harness: StoreHarness) -> None:
    working = await set_working(harness)
    for n in range(5):
        await working.store.append(working.claim, working.batch(n * 10, n * 10 + 10))
    other = await harness.open()

    seen = await _followed_while_writing(working, other, poll_seconds=5)

    assert seen == await other.events(limit=ALL)


async def check_follow_starts_after_its_cursor(harness: StoreHarness) -> None:
    store, crew = await _set_record(harness)
    mine = await store.events(run=crew[2].run, limit=ALL)
    feed = _feed(store, after=mine[3].cursor, run=crew[2].run)

    seen = []
    with anyio.fail_after(PATIENCE_SECONDS):
        async with aclosing(feed) as events:
            async for event in events:
                seen.append(event)
                if event == mine[-1]:
                    break

    assert seen == mine[4:]


async def check_a_waiter_is_woken_by_a_write_elsewhere(harness: StoreHarness) -> None:
    working = await set_working(harness)
    waiter, writer, agent = await harness.open(), working.store, working.scene.agent
    now = harness.clock.now()

    for verb in (
        lambda: writer.accept(Message(agent, "hello")),
        lambda: writer.append(working.claim, working.batch(0, 10)),
        lambda: writer.change(working.claim, working.run, Launched(now)),
        lambda: writer.cancel(working.claim.item.id),
        lambda: writer.pause(agent),
        lambda: writer.update_gate("codex", Closed(None, "by hand")),
        lambda: writer.settle(working.claim, working.scene.ended()),
    ):
        with anyio.fail_after(PATIENCE_SECONDS), waiter.hints.watch(agent) as watch:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(verb)
                assert await watch.wait(PATIENCE_SECONDS)


async def check_a_waiter_is_woken_by_a_write_of_its_own_store(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.scene.agent

    with anyio.fail_after(PATIENCE_SECONDS), store.hints.watch(agent) as watch:
        await store.accept(Message(agent, "hello"))
        assert await watch.wait(PATIENCE_SECONDS)


async def check_news_before_the_waiting_are_heard(harness: StoreHarness) -> None:
    working = await set_working(harness)
    waiter, agent = await harness.open(), working.scene.agent

    with anyio.fail_after(PATIENCE_SECONDS), waiter.hints.watch(None) as watch:
        await working.store.accept(Message(agent, "hello"))
        assert await watch.wait(PATIENCE_SECONDS)


async def check_lost_hints_only_cost_time(harness: StoreHarness) -> None:
    await _check_work_goes_on(harness, LostHints(), LostHints())


async def check_doubled_hints_change_nothing(harness: StoreHarness) -> None:
    await _check_work_goes_on(harness, DoubledHints(), DoubledHints())


async def check_late_hints_only_cost_time(harness: StoreHarness) -> None:
    await _check_work_goes_on(harness, LateHints(), LateHints())


async def _check_work_goes_on(harness: StoreHarness, front: Notifier, back: Notifier) -> None:
    """Messages in through one store, worked off and followed through another."""
    inbox, store = await harness.open(front), await harness.open(back)
    working = await set_working(harness, store=store)
    agent = await add_agent(harness, inbox, "bo")
    settled: list[str] = []

    async def work() -> None:
        with store.hints.watch(None) as watch:
            while len(settled) < 10:
                for claim in await claim_lanes(store, working.scene.holder):
                    await begin(harness, store, claim)
                    settled.append((await working.scene.finish(claim)).text)
                await watch.wait(POLL_SECONDS)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            for n in range(10):
                await send(harness, inbox, agent, str(n))

    assert settled == [str(n) for n in range(10)]
    before = await store.events(limit=ALL)
    seen = await _followed_while_writing(working, inbox, poll_seconds=POLL_SECONDS)
    assert seen[: len(before)] == before
    assert seen == await inbox.events(limit=ALL)


async def _followed_while_writing(
    working: Working, reader: Store, *, poll_seconds: float
) -> list[StoredEvent]:
    """Everything `reader` follows while `working` appends twenty events more."""
    stored = await reader.events(limit=ALL)
    seen: list[StoredEvent] = []
    start = (await reader.process(working.process)).offset

    async def watch() -> None:
        async with aclosing(_feed(reader, poll_seconds=poll_seconds)) as events:
            async for event in events:
                seen.append(event)
                if len(seen) == len(stored) + 20:
                    return

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for n in range(start, start + 200, 20):
                said = working.said(n + 10), working.said(n + 20)
                await working.store.append(working.claim, working.batch(n, n + 20, *said))
    return seen


async def _set_record(harness: StoreHarness) -> tuple[Store, list[Working]]:
    """Three agents whose batches of 0 to 5 events lie interleaved, and two events of no run."""
    store = await harness.open()
    crew = [await set_working(harness, name, store=store) for name in ("ada", "bo", "cy")]
    for n in range(6):
        for working in crew:
            start, said = n * 10, [working.said(n * 10 + 10, k) for k in range(n)]
            batch = working.batch(start, start + 10, *said) if said else None
            empty = working.batch(start, start + 10, working.noted("s", 0))
            await store.append(working.claim, batch or empty)
    extra = crew[1].batch(60, 70, crew[1].said(65), crew[1].said(70), run=None)
    await store.append(crew[1].claim, extra)
    return store, crew


def _is_in(
    event: StoredEvent, crew: list[Working], agent: AgentId | None, run: RunId | None
) -> bool:
    names = {
        working.scene.agent: name for working, name in zip(crew, ("ada", "bo", "cy"), strict=True)
    }
    return (agent is None or event.agent == names[agent]) and run in {None, event.run}


async def _paged(
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
