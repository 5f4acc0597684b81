"""How does news reach those who listen in this process? Stored first, then live.

A listener first reads what is stored; from then on it gets events as they were stored, once they
are, and deltas and raw output as they come. One that is slow loses deltas, never stored events: it
reads them from the store again.
"""

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import get_args

from steadyrun.lib.notifier import Hint
from steadyrun.lib.signal import Signal
from steadyrun.model.agent import Agent
from steadyrun.model.event import LiveEvent, RunEnded, StoredEvent
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.events.scrubber import LiveScrubber
from steadyrun.store import Store

MOST_WAITING = 20_000
# Batches of events are read whole; a page that ends inside one has it read twice.
_PAGE = 5000


class StreamSignal(Enum):
    """In place of news: look into the store."""

    AGAIN = auto()


News = LiveEvent | list[StoredEvent] | StreamSignal


class Subscription:
    """What one listener has not heard yet."""

    def __init__(self) -> None:
        self._news: deque[News] = deque()
        self._waiting = 0
        self._changed = Signal()
        self.is_over = False

    def tell(self, news: News) -> None:
        if news is StreamSignal.AGAIN and self._news and self._news[-1] is StreamSignal.AGAIN:
            return
        self._waiting += len(news) if isinstance(news, list) else 1
        if self._waiting > MOST_WAITING:
            self._news.clear()
            self._waiting, news = 1, StreamSignal.AGAIN
        self._news.append(news)
        self._changed.notify()

    def end(self) -> None:
        self.is_over = True
        self._changed.notify()

    async def next(self) -> News | None:
        """The next thing; None once it is over and all is read."""
        while not self._news and not self.is_over:
            await self._changed.wait()
        if not self._news:
            return None
        news = self._news.popleft()
        self._waiting -= len(news) if isinstance(news, list) else 1
        return news


class EventBus:
    """Passes news of all feeds of this process to whoever listens to everything."""

    def __init__(self) -> None:
        self._listeners: set[Subscription] = set()

    @contextmanager
    def listen(self) -> Iterator[Subscription]:
        listener = Subscription()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def tell(self, news: News) -> None:
        for listener in self._listeners:
            listener.tell(news)


class Feed:
    """Passes news of one agent to whoever listens; live events without secrets."""

    def __init__(self, scrubber: Scrubber, hub: EventBus | None = None) -> None:
        self._live = LiveScrubber(scrubber)
        self._hub = hub or EventBus()
        self._listeners: set[Subscription] = set()
        self._is_over = False

    @contextmanager
    def listen(self) -> Iterator[Subscription]:
        listener = Subscription()
        listener.is_over = self._is_over
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners) or self._hub.has_listeners

    def tell(self, news: News) -> None:
        if not self.has_listeners:
            return
        told: list[News]
        if isinstance(news, LiveEvent):
            told = [*self._live.passed(news)]
        else:
            told = [*self._live.rest(is_over=self._is_over), news] if self._live.held else [news]
        for each in told:
            for listener in self._listeners:
                listener.tell(each)
            self._hub.tell(each)

    def end(self) -> None:
        """Nothing more will come; what is stored may still have to be read."""
        self._is_over = True
        self.tell(StreamSignal.AGAIN)
        for listener in self._listeners:
            listener.end()


async def events_of(
    store: Store, run: RunId, feed: Feed
) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
    """Everything of a run in order, up to its last event: what is stored, then what comes."""
    reader = _Reader(store, run)
    with feed.listen() as listener:
        news: News | None = StreamSignal.AGAIN
        while news is not None:
            if isinstance(news, LiveEvent):
                if news.run == run:
                    yield news
            else:
                for event in await reader.new(news):
                    yield event
                    if type(event.event) in LAST:
                        return
            news = await listener.next()


async def follow_live(
    store: Store, hub: EventBus, after: int, *, agent: Agent | None = None, run: RunId | None = None
) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
    """Every event after a cursor, of an agent, a run or all: what is stored, then what comes, and
    what comes from other processes, too. Never ends."""
    reader = _Follower(store, after, agent.id if agent else None, run)
    name = agent.name if agent else None
    with (
        hub.listen() as listener,
        store.hints.watch(reader.agent, Hint.STATE) as watch,
    ):
        watch.on_notify = lambda: listener.tell(StreamSignal.AGAIN)
        news: News | None = StreamSignal.AGAIN
        while news is not None:
            if not isinstance(news, LiveEvent):
                async for event in reader.new(news):
                    yield event
            elif name in {None, news.agent} and run in {None, news.run}:
                yield news
            news = await listener.next()


class _Follower:
    """Knows the last event that was heard, so that each is heard once and in its order."""

    def __init__(self, store: Store, after: int, agent: AgentId | None, run: RunId | None) -> None:
        self.agent = agent
        self._store, self._cursor, self._run = store, after, run

    async def new(
        self, news: list[StoredEvent] | StreamSignal
    ) -> AsyncGenerator[StoredEvent, None]:
        """What is told is taken as it is only where nothing can lie between."""
        told = [] if isinstance(news, StreamSignal) else news
        if told and told[-1].cursor <= self._cursor:
            return
        is_all = self.agent is None and self._run is None
        if not (told and is_all and told[0].cursor == self._cursor + 1):
            told = await self._page()
        while told:
            for event in told:
                yield event
                self._cursor = event.cursor
            told = await self._page()

    async def _page(self) -> list[StoredEvent]:
        return await self._store.events(self._cursor, agent=self.agent, run=self._run, limit=_PAGE)


LAST: frozenset[type] = frozenset(get_args(RunEnded))


class _Reader:
    """Knows what of a run has been heard, so that each event is heard once."""

    def __init__(self, store: Store, run: RunId) -> None:
        self._store = store
        self._run = run
        self._cursor = 0
        # The agent's next event, if it is known: told without it, something was left out.
        self._seq: int | None = None

    async def new(self, news: list[StoredEvent] | StreamSignal) -> list[StoredEvent]:
        if isinstance(news, StreamSignal) or self._seq not in {None, news[0].seq}:
            found = await self._read()
            self._seq = None
        else:
            run, cursor = self._run, self._cursor
            found = [event for event in news if event.run == run and event.cursor > cursor]
            # News of a run: each has its number.
            self._seq = (news[-1].seq or 0) + 1
        if found:
            self._cursor = found[-1].cursor
        return found

    async def _read(self) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        after = self._cursor
        while page := await self._store.events(after, run=self._run, limit=_PAGE):
            found += page
            after = page[-1].cursor
        return found
