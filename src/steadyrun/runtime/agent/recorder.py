"""How does what a process says become the record? In order, each commit with its journal offset."""

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
from steadyrun.model.item import Lease
from steadyrun.model.process import Checkpoint, Process
from steadyrun.model.run import Finished, Launched, RunChange, Touched
from steadyrun.model.session import ResumeToken
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.events.bus import EventPublisher

_MOST_GATHERED = 5000
_MOST_GATHERED_BYTES = 4 * 1024 * 1024
# How far the record may lag behind the journal where there is nothing to record.
_MOST_UNWRITTEN = 1024 * 1024


class Recorder:
    """Writes the record of one process for one claim, and tells the feed what is stored."""

    def __init__(
        self,
        around: Deps,
        claim: Lease,
        process: Process,
        *,
        agent: Agent,
        feed: EventPublisher,
        tasks: TaskGroup,
    ) -> None:
        self.claim = claim
        # The run whose turn is open; events outside of a turn belong to none.
        self.run: RunId | None = None
        self._store, self._clock = around.store, around.clock
        self._process = process
        self._agent = agent
        self.token: str | None = None
        # The model that answers, as far as it was told; before that, the one that was asked for.
        self._model = agent.model
        self._feed = feed
        self.offset = process.offset
        self._own = process.marks.r
        # What waits to be written while an earlier part is.
        self._gathered: list[Emitted] = []
        self._gathered_to = process.offset
        self._tasks = tasks
        self._is_behind = False
        self._lock = asyncio.Lock()

    async def write(self, events: Sequence[Emitted], offset: int, *, has_more: bool) -> None:
        """Record events up to `offset`. If more is there already, reading goes on meanwhile."""
        self._gathered += events
        self._gathered_to = offset
        is_much = (
            len(self._gathered) > _MOST_GATHERED or offset - self.offset > _MOST_GATHERED_BYTES
        )
        if has_more and not is_much:
            self._write_behind()
        else:
            await self.flush()

    def _write_behind(self) -> None:
        if not self._is_behind:
            self._is_behind = True
            self._tasks.start_soon(self._catch_up)

    async def _catch_up(self) -> None:
        await self.flush()
        self._is_behind = False

    async def flush(self) -> None:
        """Write what has gathered."""
        async with self._lock:
            await self._flush()

    async def begin(self, run: RunId, events: Sequence[Emitted], offset: int) -> None:
        """The turn of `run` began: what follows belongs to it."""
        async with self._lock:
            await self._flush()
            self.run = run
            launched = Launched(self._clock.now(), self._process.id)
            await self._append(events, offset, launched, None)

    async def end(
        self,
        finished: Finished | Touched,
        events: Sequence[Emitted],
        stretch: JournalBatch,
        ours: Sequence[Event] = (),
    ) -> None:
        """A turn ended, with its run or before the run's own. It is remembered in the same commit
        how to go on from here, and what we have to say at its end: `ours`."""
        saved = None if stretch.memory is None else Checkpoint(stretch.memory, stretch.sent)
        async with self._lock:
            await self._flush()
            events = [*events, *map(self._ours, ours)]
            await self._append(events, stretch.offset, finished, saved)
            self.run = None

    async def note(self, *events: Event) -> None:
        """Record what the runtime itself has to say of the run."""
        async with self._lock:
            await self._flush()
            await self._append([self._ours(event) for event in events], self.offset, None, None)

    def _ours(self, event: Event) -> Emitted:
        self._own += 1
        return Emitted(make_place("r", self._own), 0, self._clock.now(), event)

    async def _flush(self) -> None:
        while self._gathered or self._gathered_to - self.offset >= _MOST_UNWRITTEN:
            events, self._gathered = self._gathered, []
            try:
                await self._append(events, self._gathered_to, None, None)
            except BaseException:
                # Whoever writes next must not pass over what is not written.
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
        # Deltas alone are no reason to write: whoever takes over reads them again, and drops them.
        if not kept and not change and not saved and offset - self.offset < _MOST_UNWRITTEN:
            self._tell(events, [], 0)
            return
        token = self._token(kept)
        batch = Batch(self._process.id, self.run, self.offset, offset, kept, change, token, saved)
        before = list(takewhile(_is_live, events)) if has_live else []
        self._tell(before, [], 0)
        appended = await self._store.append(self.claim, batch)
        self.offset = offset
        if not self._feed.has_subscribers:
            return
        stored = self._stored(appended)
        if not has_live:
            self._tell((), stored, 0)
        else:
            # A beginning comes before its events, an end after them.
            first = len(stored) - len(kept) if isinstance(change, Launched) else 0
            self._tell(events[len(before) :], stored, first)

    def _tell(self, events: Sequence[Emitted], stored: list[StoredEvent], place: int) -> None:
        """Tell live events in their place among the stored ones, the first of which is `place`."""
        told = 0
        for each in events:
            if not _is_live(each):
                place += 1
                continue
            if place > told:
                self._feed.publish(stored[told:place])
                told = place
            self._feed.publish(self._live(each))
        if stored[told:]:
            self._feed.publish(stored[told:])

    def _stored(self, appended: AppendResult) -> list[StoredEvent]:
        return [event for row in appended.rows for event in decode_row(self._row(row))]

    def _row(self, row: StoredRow) -> EventRow:
        provider = self._process.provider if row.run else None
        agent, process = self._agent.name, self._process.id
        return EventRow(row.cursor, row.seq, agent, row.run, process, provider, row.body)

    def _live(self, emitted: Emitted) -> LiveEvent:
        name = make_event_id(self._process.id, emitted.place, emitted.n)
        agent, provider = self._agent.name, self._process.provider
        event: Any = emitted.event
        return LiveEvent(name, emitted.at, agent, self.run, provider, event)

    def _token(self, events: Sequence[Emitted]) -> ResumeToken | None:
        if _TELLING.isdisjoint(map(type, map(_EVENT_OF, events))):
            return None
        bound = None
        for each in events:
            match each.event:
                case TokenBound(token) | TokenRotated(token):
                    self.token, bound = token, each.at
                case StatsUpdated(str() as model):
                    self._model = model
                case _:
                    pass
        if bound is None or self.token is None:
            return None
        machine, home = self._process.machine, self._agent.home
        return ResumeToken(self.token, machine, home, self._model, bound)


# Events that say which conversation it is, and with whom.
_TELLING = frozenset({TokenBound, TokenRotated, StatsUpdated})
_EVENT_OF = attrgetter("event")


def _is_live(emitted: Emitted) -> bool:
    return type(emitted.event) in LIVE_ONLY
