"""Streams events: those that are stored first, then new ones as they come.

Each stored event is given once and in order. Live events, which are not stored, are given between
them as they come, but never after a stored event of a later place in the same journal.
"""

from collections.abc import AsyncGenerator, Iterable
from typing import get_args

from steadyrun.lib.notifier import Hint
from steadyrun.model.agent import Agent
from steadyrun.model.event import LiveEvent, RunEnded, StoredEvent, parse_journal_position
from steadyrun.model.ids import AgentId, RunId
from steadyrun.runtime.events.bus import BusMessage, EventBus, EventPublisher, StreamSignal
from steadyrun.store import Store

RUN_END_EVENTS: frozenset[type] = frozenset(get_args(RunEnded))
# Batches of events are read whole; a page that ends inside a batch causes it to be read twice.
_PAGE = 5000


async def stream_run(
    store: Store, run: RunId, publisher: EventPublisher
) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
    """Stream a run that this process drives, up to its last event."""
    reader = _RunReader(store, run)
    with publisher.subscribe() as subscription:
        message: BusMessage | None = StreamSignal.RESYNC
        while message is not None:
            if isinstance(message, LiveEvent):
                if message.run == run and not reader.live.is_outdated(message):
                    yield message
            else:
                for event in await reader.read_new(message):
                    yield event
                    if type(event.event) in RUN_END_EVENTS:
                        return
            message = await subscription.next()


async def stream_events(
    store: Store, bus: EventBus, after: int, *, agent: Agent | None = None, run: RunId | None = None
) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
    """Stream every event after a cursor: of an agent, of a run or of all, also those that other
    processes store. The stream has no end."""
    reader = _StreamReader(store, after, agent.id if agent else None, run)
    name = agent.name if agent else None
    with (
        bus.subscribe() as subscription,
        store.hints.watch(reader.agent, Hint.STATE) as watch,
    ):
        watch.on_notify = lambda: subscription.put(StreamSignal.RESYNC)
        message: BusMessage | None = StreamSignal.RESYNC
        while message is not None:
            if not isinstance(message, LiveEvent):
                async for event in reader.read_new(message):
                    yield event
            elif (
                name in {None, message.agent}
                and run in {None, message.run}
                and not reader.live.is_outdated(message)
            ):
                yield message
            message = await subscription.next()


class _LiveFilter:
    """Finds live events that come too late.

    A read of the store may return events before the bus delivers the deltas that were published
    before them. Such a delta is a part of a text that the stream has given already.
    """

    def __init__(self) -> None:
        # The last place in the journal of each process that was read from the store.
        self._read_to: dict[str, tuple[int, int]] = {}

    def note_read(self, events: Iterable[StoredEvent]) -> None:
        """These events were read from the store."""
        for event in events:
            if position := parse_journal_position(event.id):
                process, offset, n = position
                self._read_to[process] = (offset, n)

    def is_outdated(self, live: LiveEvent) -> bool:
        if not self._read_to or (position := parse_journal_position(live.id)) is None:
            return False
        process, offset, n = position
        return (offset, n) <= self._read_to.get(process, (0, 0))


class _StreamReader:
    """Keeps the cursor of the last event, so that each event is given once and in order."""

    def __init__(self, store: Store, after: int, agent: AgentId | None, run: RunId | None) -> None:
        self.agent = agent
        self.live = _LiveFilter()
        self._store, self._cursor, self._run = store, after, run

    async def read_new(
        self, message: list[StoredEvent] | StreamSignal
    ) -> AsyncGenerator[StoredEvent, None]:
        """Yield new events.

        Those of the message are used as they are only if no other event can lie between them and
        the cursor; otherwise they are read from the store.
        """
        events = [] if isinstance(message, StreamSignal) else message
        if events and events[-1].cursor <= self._cursor:
            return
        is_all = self.agent is None and self._run is None
        if not (events and is_all and events[0].cursor == self._cursor + 1):
            events = await self._read_page()
        while events:
            for event in events:
                yield event
                self._cursor = event.cursor
            events = await self._read_page()

    async def _read_page(self) -> list[StoredEvent]:
        page = await self._store.events(self._cursor, agent=self.agent, run=self._run, limit=_PAGE)
        self.live.note_read(page)
        return page


class _RunReader:
    """Keeps the cursor of the last event of a run, so that each event is given once."""

    def __init__(self, store: Store, run: RunId) -> None:
        self.live = _LiveFilter()
        self._store = store
        self._run = run
        self._cursor = 0
        # The number of the agent's next event, if it is known. A message that begins with another
        # number means that events were missed.
        self._seq: int | None = None

    async def read_new(self, message: list[StoredEvent] | StreamSignal) -> list[StoredEvent]:
        if isinstance(message, StreamSignal) or self._seq not in {None, message[0].seq}:
            events = await self._read_all()
            self._seq = None
        else:
            run, cursor = self._run, self._cursor
            events = [event for event in message if event.run == run and event.cursor > cursor]
            # Every event of a run has a number.
            self._seq = (message[-1].seq or 0) + 1
        if events:
            self._cursor = events[-1].cursor
        return events

    async def _read_all(self) -> list[StoredEvent]:
        events: list[StoredEvent] = []
        after = self._cursor
        while page := await self._store.events(after, run=self._run, limit=_PAGE):
            events += page
            after = page[-1].cursor
        self.live.note_read(events)
        return events
