"""How long to wait before somebody who was out of reach is asked again? Longer each time.

A record that cannot be written is told at once to those who listen, and written down when that is
possible again.
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

Answer = TypeVar("Answer")


async def retry_write(
    verb: Callable[[], Awaitable[Answer]], is_worth_it: Callable[[StoreFailed], Awaitable[bool]]
) -> Answer:
    """Write, again and again while the store cannot be written and that may change."""
    pauses = iterate_delays(PAUSE_SECONDS, longest=LONGEST_SECONDS)
    while True:
        try:
            return await verb()
        except StoreFailed as error:
            if not await is_worth_it(error):
                raise
            await anyio.sleep(next(pauses))


class StoreOutage:
    """What an agent's record has to say of itself, as soon as it can be written."""

    def __init__(self, agent: str, feed: EventPublisher, clock: Clock) -> None:
        self.notes: list[Event] = []
        self._agent, self._feed, self._clock = agent, feed, clock
        self._count = 0

    def note(self, error: StoreFailed, phase: RecordPhase, run: RunId | None) -> None:
        """It could not be written: once for each time that it could before."""
        if any(isinstance(each, RecordFailed) for each in self.notes):
            return
        log_event("store.failed", agent=self._agent, phase=phase, code=error.code)
        failed = RecordFailed(phase, error.message)
        self.notes.append(failed)
        self._count += 1
        name = EventId(f"{run or self._agent}:record_failed.{self._count}")
        self._feed.publish(LiveEvent(name, self._clock.now(), self._agent, run, None, failed))

    async def tell(self, recorder: Recorder) -> None:
        """It can be written: say what there is to say."""
        while self.notes:
            note = self.notes.pop(0)
            try:
                await recorder.note(note)
            except BaseException:
                self.notes.insert(0, note)
                raise

    async def try_to_tell(self, recorder: Recorder) -> None:
        """As `tell`, or later."""
        with suppress(StoreFailed):
            await self.tell(recorder)
