"""Retries writes while the store cannot be written, and reports the outage.

An outage is published at once to the subscribers of the agent, and written into the record as soon
as that is possible again.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import anyio

from steadyrun.errors import StoreFailed
from steadyrun.lib.backoff import iterate_delays
from steadyrun.lib.clock import Clock
from steadyrun.model.event import Event, EventId, LiveEvent, RecordFailed, RecordPhase
from steadyrun.model.ids import RunId
from steadyrun.runtime.agent.recorder import Recorder
from steadyrun.runtime.events.bus import EventPublisher
from steadyrun.runtime.log import log_event

PAUSE_SECONDS = 0.5
LONGEST_SECONDS = 30.0

Written = TypeVar("Written")


class StoreOutage:
    """Retries the writes of one lane, and keeps the notes that its record still lacks."""

    def __init__(
        self, agent: str, feed: EventPublisher, clock: Clock, *, waits_for_store: bool
    ) -> None:
        """`waits_for_store`: to wait for a store that cannot be written, else errors are raised."""
        self.notes: list[Event] = []
        # The run that a report names, and where notes can be written at present.
        self.run: RunId | None = None
        self.recorder: Recorder | None = None
        self._agent, self._feed, self._clock = agent, feed, clock
        self._waits_for_store = waits_for_store
        self._count = 0

    async def write(self, verb: Callable[[], Awaitable[Written]], phase: RecordPhase) -> Written:
        """Call `verb` until the store can be written, or raise if it is not worth waiting.

        `verb` must not be a method of the caller: calls go down only.
        """
        delays = iterate_delays(PAUSE_SECONDS, longest=LONGEST_SECONDS)
        while True:
            try:
                answer = await verb()
            except StoreFailed as error:
                if not self.should_retry(error, phase):
                    raise
                await anyio.sleep(next(delays))
                continue
            if self.recorder and self.notes:
                with suppress(StoreFailed):
                    await self.write_notes(self.recorder)
            return answer

    def should_retry(self, error: StoreFailed, phase: RecordPhase = "append") -> bool:
        """Whether to try again later. The first failure of an outage is reported."""
        if not self._waits_for_store or not error.retryable:
            return False
        if not any(isinstance(each, RecordFailed) for each in self.notes):
            self._report(error, phase)
        return True

    def _report(self, error: StoreFailed, phase: RecordPhase) -> None:
        log_event("store.failed", agent=self._agent, phase=phase, code=error.code)
        failed = RecordFailed(phase, error.message)
        self.notes.append(failed)
        self._count += 1
        name = EventId(f"{self.run or self._agent}:record_failed.{self._count}")
        self._feed.publish(LiveEvent(name, self._clock.now(), self._agent, self.run, None, failed))

    def take_notes(self) -> list[Event]:
        """Remove all notes: they are for the next worker of the agent."""
        notes, self.notes = self.notes, []
        return notes

    async def write_notes(self, recorder: Recorder) -> None:
        """Write all notes; those that cannot be written are kept."""
        while self.notes:
            note = self.notes.pop(0)
            try:
                await recorder.note(note)
            except BaseException:
                self.notes.insert(0, note)
                raise
