"""Writes the output of a process into the record: in order, each commit with its journal offset."""

import asyncio
from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Any

from anyio.abc import TaskGroup

from steadyrun.driver import JournalBatch
from steadyrun.model.agent import Agent
from steadyrun.model.batch import AppendResult, Batch, StoredRow
from steadyrun.model.event import (
    LIVE_ONLY,
    Emitted,
    Event,
    LiveEvent,
    StatsUpdated,
    StoredEvent,
    TokenBound,
    TokenRotated,
    make_event_id,
    make_place,
)
from steadyrun.model.event_codec import EventRow, decode_row
from steadyrun.model.ids import RunId
from steadyrun.model.process import Checkpoint, Process
from steadyrun.model.run import Finished, Launched, RunChange, Touched
from steadyrun.model.session import ResumeToken
from steadyrun.runtime.agent.lease import LaneLease
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.events.bus import EventPublisher

_MOST_GATHERED = 5000
_MOST_GATHERED_BYTES = 4 * 1024 * 1024
# How far the record may lag behind the journal where there is nothing to record.
_MOST_UNWRITTEN = 1024 * 1024


class Recorder:
    """Writes the record of one process for one lease, and publishes what is stored.

    Invariants: events are written in the order of the journal; `offset` is the end of what is
    stored; output that arrives while a commit is under way is gathered and written with the next.
    `LiveProcess` makes a new one for each connection.
    """

    def __init__(
        self,
        deps: Deps,
        lease: LaneLease,
        process: Process,
        *,
        agent: Agent,
        feed: EventPublisher,
        tasks: TaskGroup,
    ) -> None:
        # The run whose turn is open; events outside of a turn belong to none.
        self.run: RunId | None = None
        self.token = _TokenReader(process, agent)
        self.offset = process.offset
        self._deps, self._lease = deps, lease
        self._publisher = _Publisher(feed, agent, process)
        self._own_events = process.marks.r
        # What waits to be written while an earlier part is, and where that ends.
        self._gathered: list[Emitted] = []
        self._gathered_to = process.offset
        # Writes in the background while more output is read.
        self._tasks = tasks
        self._is_behind = False
        self._lock = asyncio.Lock()

    async def write(self, events: Sequence[Emitted], offset: int, *, has_more: bool) -> None:
        """Record events up to `offset`. If more output is there already, this returns at once and
        the events are written in the background."""
        self._gathered += events
        self._gathered_to = offset
        is_much = (
            len(self._gathered) > _MOST_GATHERED or offset - self.offset > _MOST_GATHERED_BYTES
        )
        if is_much or not has_more:
            await self.flush()
        elif not self._is_behind:
            self._is_behind = True
            self._tasks.start_soon(self._catch_up)

    async def _catch_up(self) -> None:
        await self.flush()
        self._is_behind = False

    async def flush(self) -> None:
        """Write what has been gathered."""
        async with self._lock:
            await self._flush()

    async def begin(self, run: RunId, events: Sequence[Emitted], offset: int) -> None:
        """The turn of `run` began: the events that follow belong to it."""
        async with self._lock:
            await self._flush()
            self.run = run
            launched = Launched(self._deps.clock.now(), self._publisher.process.id)
            await self._append(events, offset, launched, None)

    async def end(
        self,
        finished: Finished | Touched,
        events: Sequence[Emitted],
        batch: JournalBatch,
        ours: Sequence[Event] = (),
    ) -> None:
        """A turn ended, with its run or before the run's own. The same commit has the checkpoint
        from which a later holder reads on, and the events of the runtime itself: `ours`."""
        saved = None if batch.memory is None else Checkpoint(batch.memory, batch.sent)
        async with self._lock:
            await self._flush()
            events = [*events, *map(self._to_emitted, ours)]
            await self._append(events, batch.offset, finished, saved)
            self.run = None

    async def note(self, *events: Event) -> None:
        """Record events of the runtime itself."""
        async with self._lock:
            await self._flush()
            emitted = [self._to_emitted(event) for event in events]
            await self._append(emitted, self.offset, None, None)

    def _to_emitted(self, event: Event) -> Emitted:
        self._own_events += 1
        return Emitted(make_place("r", self._own_events), 0, self._deps.clock.now(), event)

    async def _flush(self) -> None:
        while self._gathered or self._gathered_to - self.offset >= _MOST_UNWRITTEN:
            events, self._gathered = self._gathered, []
            try:
                await self._append(events, self._gathered_to, None, None)
            except BaseException:
                # The next write must not pass over events that are not stored.
                self._gathered = events + self._gathered
                raise

    async def _append(
        self,
        events: Sequence[Emitted],
        offset: int,
        change: RunChange | None,
        saved: Checkpoint | None,
    ) -> None:
        kept = tuple([each for each in events if type(each.event) not in LIVE_ONLY])
        has_live = len(kept) < len(events)
        publisher = self._publisher
        # Deltas alone are no reason to write: a later holder reads them again, and drops them.
        if not kept and not change and not saved and offset - self.offset < _MOST_UNWRITTEN:
            publisher.publish(self.run, events, [], 0)
            return
        token = self.token.read(kept)
        process = publisher.process.id
        batch = Batch(process, self.run, self.offset, offset, kept, change, token, saved)
        before = list(takewhile(_is_live, events)) if has_live else []
        publisher.publish(self.run, before, [], 0)
        appended = await self._deps.store.append(self._lease.current, batch)
        self.offset = offset
        if not publisher.has_listeners:
            return
        stored = publisher.decode(appended)
        if not has_live:
            publisher.publish(self.run, (), stored, 0)
        else:
            # A beginning comes before its events, an end after them.
            first = len(stored) - len(kept) if isinstance(change, Launched) else 0
            publisher.publish(self.run, events[len(before) :], stored, first)


class _Publisher:
    """Publishes the events of one process: live ones in their place among the stored ones."""

    def __init__(self, feed: EventPublisher, agent: Agent, process: Process) -> None:
        self.process = process
        self._feed, self._agent = feed, agent

    @property
    def has_listeners(self) -> bool:
        return self._feed.has_subscribers

    def publish(
        self, run: RunId | None, events: Sequence[Emitted], stored: list[StoredEvent], place: int
    ) -> None:
        """Publish live events of `events` among `stored`; the first stored one is `place`."""
        published = 0
        for each in events:
            if not _is_live(each):
                place += 1
                continue
            if place > published:
                self._feed.publish(stored[published:place])
                published = place
            self._feed.publish(self._to_live(run, each))
        if stored[published:]:
            self._feed.publish(stored[published:])

    def decode(self, appended: AppendResult) -> list[StoredEvent]:
        return [event for row in appended.rows for event in decode_row(self._to_row(row))]

    def _to_row(self, row: StoredRow) -> EventRow:
        provider = self.process.provider if row.run else None
        agent, process = self._agent.name, self.process.id
        return EventRow(row.cursor, row.seq, agent, row.run, process, provider, row.body)

    def _to_live(self, run: RunId | None, emitted: Emitted) -> LiveEvent:
        name = make_event_id(self.process.id, emitted.place, emitted.n)
        agent, provider = self._agent.name, self.process.provider
        event: Any = emitted.event
        return LiveEvent(name, emitted.at, agent, run, provider, event)


class _TokenReader:
    """Reads from events which conversation it is, and with which model."""

    def __init__(self, process: Process, agent: Agent) -> None:
        # The resume token of the conversation, as far as it is known.
        self.current: str | None = None
        # The model that answers; until an event names it, the model of the configuration.
        self._model = agent.model
        self._machine, self._home = process.machine, agent.home

    def read(self, events: Sequence[Emitted]) -> ResumeToken | None:
        """The token that these events bind, if any."""
        if _TOKEN_EVENTS.isdisjoint(map(type, map(_EVENT_OF, events))):
            return None
        bound = None
        for each in events:
            match each.event:
                case TokenBound(token) | TokenRotated(token):
                    self.current, bound = token, each.at
                case StatsUpdated(str() as model):
                    self._model = model
                case _:
                    pass
        if bound is None or self.current is None:
            return None
        return ResumeToken(self.current, self._machine, self._home, self._model, bound)


# Events that name the conversation or its model.
_TOKEN_EVENTS = frozenset({TokenBound, TokenRotated, StatsUpdated})
_EVENT_OF = attrgetter("event")


def _is_live(emitted: Emitted) -> bool:
    return type(emitted.event) in LIVE_ONLY
