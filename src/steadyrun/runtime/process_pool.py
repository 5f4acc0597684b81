"""Decides which idle processes stay, and closes the others."""

from collections.abc import Iterator, Mapping

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from steadyrun.errors import LeaseLost
from steadyrun.lib.clock import Clock
from steadyrun.runtime.agent.lane import LaneFailed
from steadyrun.runtime.agent.process_slot import ProcessSlot
from steadyrun.runtime.log import log_event

_TICK_SECONDS = 1.0


class Capacity(Struct, frozen=True):
    """How many runs and processes there may be at a time, and how long a process may wait.

    `idle_seconds` of 0 is without limit. A process that has printed `journal_bytes` is not kept: a
    later holder would have to read them. The files of a process are deleted after `keep_seconds`; 0
    keeps them.
    """

    runs: int = 5
    runs_of: Mapping[str, int] = {}
    processes: int = 5
    idle_seconds: float = 300.0
    journal_bytes: int = 64 * 1024 * 1024
    keep_seconds: float = 7 * 86400.0


class ProcessPool:
    """The process slots of all workers in this daemon.

    Workers call `make_room` before they launch a process and `may_keep` before they keep one. The
    dispatcher runs `serve` and closes idle processes at the end.
    """

    def __init__(self, capacity: Capacity, clock: Clock) -> None:
        self.capacity = capacity
        # No process is kept any more.
        self.is_draining = False
        self._clock = clock
        self._slots: set[ProcessSlot] = set()

    def add(self, slot: ProcessSlot) -> None:
        self._slots.add(slot)

    def remove(self, slot: ProcessSlot) -> None:
        self._slots.discard(slot)

    async def serve(self, tasks: TaskGroup) -> None:
        """Close processes that have waited long enough: run this in a task."""
        while True:
            await anyio.sleep(_TICK_SECONDS)
            limit = self._clock.monotonic() - self.capacity.idle_seconds
            for slot in list(self._find_closable()) if self.capacity.idle_seconds else ():
                if slot.idle_since < limit:
                    tasks.start_soon(self.close, slot)

    async def make_room(self, slot: ProcessSlot) -> None:
        """Close the processes that have waited longest, as long as there are too many."""
        while self._count_others(slot) >= self.capacity.processes:
            oldest = min(self._find_closable(), key=lambda each: each.idle_since, default=None)
            if oldest is None:
                return
            log_event("process.evicted", agent=oldest.lane.agent.name)
            await self.close(oldest)

    def may_keep(self, slot: ProcessSlot) -> bool:
        """Whether the process may wait for the next item."""
        process = slot.process
        if process is None or self.is_draining or "multi_turn" not in process.connection.abilities:
            return False
        if process.has_background:
            # Closing it would end its background tasks.
            return True
        is_small = process.recorder.offset < self.capacity.journal_bytes
        return is_small and self._count_others(slot) < self.capacity.processes

    async def close(self, slot: ProcessSlot) -> None:
        """Close an idle process, and release its lane."""
        lane = slot.lane
        try:
            await slot.leave()
        except LeaseLost as error:
            log_event("lease.lost", agent=lane.agent.name, fence=error.fence)
            lane.detach()
        except Exception as error:  # noqa: BLE001 (one agent's failure must not stop the others)
            lane.report(LaneFailed(error))

    async def close_all(self) -> None:
        """Close every idle process."""
        async with anyio.create_task_group() as tasks:
            for slot in list(self._slots):
                if slot.is_idle:
                    tasks.start_soon(self.close, slot)

    def _count_others(self, slot: ProcessSlot) -> int:
        return sum(each.process is not None and each is not slot for each in self._slots)

    def _find_closable(self) -> Iterator[ProcessSlot]:
        for slot in self._slots:
            if slot.process and slot.is_idle and not slot.process.has_background:
                yield slot
