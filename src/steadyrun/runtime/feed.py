"""How does news reach those who listen in this process? Stored first, then live.

A listener is told how far the record reaches and reads it itself; deltas and raw output come as
they are. One that is slow loses deltas, never stored events.
"""

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import get_args

import anyio

from steadyrun.model.event import LiveEvent, RunEnded, StoredEvent
from steadyrun.model.ids import RunId
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.live import LiveScrubber
from steadyrun.store import Store

MOST_WAITING = 4096
# Batches of events are read whole; a page that ends inside one has it read twice.
_PAGE = 5000

News = LiveEvent | int


class Listener:
    """What one listener has not read yet: live events, and cursors up to which to read."""

    def __init__(self) -> None:
        self._news: deque[News] = deque()
        self._rung = anyio.Event()
        self.is_over = False

    def tell(self, news: News) -> None:
        if isinstance(news, int) and self._news and isinstance(self._news[-1], int):
            self._news[-1] = news
        elif isinstance(news, int) or len(self._news) < MOST_WAITING:
            self._news.append(news)
        self._rung.set()

    def end(self) -> None:
        self.is_over = True
        self._rung.set()

    async def next(self) -> News | None:
        """The next thing; None once it is over and all is read."""
        while not self._news and not self.is_over:
            self._rung = anyio.Event()
            await self._rung.wait()
        return self._news.popleft() if self._news else None


class Feed:
    """Passes news of one runner to whoever listens; live events without secrets."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._live = LiveScrubber(scrubber)
        self._listeners: set[Listener] = set()
        self._is_over = False

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        listener = Listener()
        listener.is_over = self._is_over
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def tell(self, news: News) -> None:
        if not self._listeners:
            return
        if isinstance(news, LiveEvent):
            told: list[News] = [*self._live.passed(news)]
        else:
            told = [*self._live.rest(is_over=self._is_over), news]
        for each in told:
            for listener in self._listeners:
                listener.tell(each)

    def end(self) -> None:
        """Nothing more will come; what is stored may still have to be read."""
        self._is_over = True
        self.tell(0)
        for listener in self._listeners:
            listener.end()


async def events_of(
    store: Store, run: RunId, feed: Feed
) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
    """Everything of a run in order, up to its last event: what is stored, then what comes."""
    reader = _Reader(store, run)
    with feed.listen() as listener:
        news: News | None = 0
        while news is not None:
            if isinstance(news, LiveEvent):
                if news.run == run:
                    yield news
            else:
                for event in await reader.up_to(news):
                    yield event
                    if type(event.event) in LAST:
                        return
            news = await listener.next()


LAST: frozenset[type] = frozenset(get_args(RunEnded))


class _Reader:
    """Reads a run's events as far as it is told to, each once."""

    def __init__(self, store: Store, run: RunId) -> None:
        self._store = store
        self._run = run
        self._cursor = 0
        # Read already, but not due yet: live events come before them.
        self._ahead: deque[StoredEvent] = deque()

    async def up_to(self, cursor: int) -> list[StoredEvent]:
        """The events that are new up to a cursor; 0 is without limit."""
        while not cursor or self._cursor < cursor:
            page = await self._store.events(self._cursor, run=self._run, limit=_PAGE)
            if not page:
                break
            self._cursor = page[-1].cursor
            self._ahead += page
        due = []
        while self._ahead and (not cursor or self._ahead[0].cursor <= cursor):
            due.append(self._ahead.popleft())
        return due
