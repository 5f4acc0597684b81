"""What does a daemon do? Takes up what was left, works, looks after the lanes of the dead."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Literal

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from steadyrun.errors import HolderGone, NotFound, SteadyrunError, StoreFailed
from steadyrun.model.gate import Booted
from steadyrun.model.ids import AgentId, ProcessId, RunId
from steadyrun.model.item import Claim
from steadyrun.runtime.agent.workers import AgentWorkers
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.direct_runs import DirectRuns
from steadyrun.runtime.dispatcher import Capacity, Dispatcher
from steadyrun.runtime.log import log_bug, log_event
from steadyrun.runtime.prompt.builder import TurnBuilder
from steadyrun.runtime.recovery import look_for

ALIVE_AT = "alive_at"
HEARTBEAT_SECONDS = 30.0
CLEAR_SECONDS = 3600.0


async def _nothing() -> None:
    """Nobody has left a letter."""


class Recovered(Struct, frozen=True):
    """What was found at the start."""

    lanes: int
    processes: int
    downtime: timedelta


class Daemon:
    """Runs agents for as long as it lives."""

    def __init__(self, around: Deps, tasks: TaskGroup, *, room: Capacity, key: bytes) -> None:
        self.seats = AgentWorkers(around)
        self.holding = DirectRuns(around, tasks, self.seats)
        self.worker = Dispatcher(around, tasks, self.seats, room, TurnBuilder(around, key))
        self._around, self._store = around, around.store
        self._tasks = tasks
        self._keep_seconds = room.keep_seconds
        # When to look again at what processes have left.
        self._clear_at = 0.0

    async def recover(self, drain: Callable[[], Awaitable[None]] = _nothing) -> Recovered:
        """Take up what an earlier daemon has left; whatever took time meanwhile is not blamed. What
        was waiting to be delivered is taken in by `drain`, when it is known who may be sent to."""
        await self._reconcile_gates()
        await drain()
        downtime = await self._downtime()
        log_event("downtime.credited", seconds=round(downtime.total_seconds(), 1))
        self._tasks.start_soon(self.seats.serve)
        lanes, processes = await self._reap(downtime)
        return Recovered(lanes, processes, downtime)

    async def serve(self) -> None:
        """Take items in: run this in a task."""
        self._tasks.start_soon(self._look_after)
        await self.worker.serve()

    async def stop(self, *, drain_seconds: float, keep: bool) -> int:
        """Take nothing in any more, wait for what runs, end the rest; `keep` leaves what still runs
        to its keepers, for the next daemon. How many were ended or kept."""
        log_event("daemon.draining", seconds=drain_seconds, keep=keep)
        if not keep:
            # What somebody has left a moment ago is to end as well.
            await self._reap_if_possible()
        await self.worker.drain(0.0 if keep else drain_seconds)
        left = sum(seat.is_held for seat in self.seats)
        await (self.worker.close_waiting() if keep else self.worker.stop_all())
        return left

    async def _look_after(self) -> None:
        """Say that we live, and look after the lanes of those who do not."""
        while True:
            try:
                await self._store.put(ALIVE_AT, self._around.clock.now().isoformat().encode())
                await self._reap_if_possible()
                await self._clear_up()
            except HolderGone:
                # Somebody else has all that we had, and works.
                raise
            except StoreFailed as error:
                log_event("store.failed", phase="heartbeat", code=error.code)
            except SteadyrunError as error:
                log_bug(error)
            await anyio.sleep(HEARTBEAT_SECONDS)

    async def _reap_if_possible(self) -> None:
        """The store may be busy, or the disk be full: then it is done the next time."""
        try:
            await self._reap(timedelta())
        except StoreFailed as error:
            log_event("store.failed", phase="reap", code=error.code)

    async def _clear_up(self) -> None:
        """Delete what processes have left that ended long ago: once an hour is soon enough."""
        clock, drivers = self._around.clock, self._around.drivers
        if not self._keep_seconds or clock.monotonic() < self._clear_at:
            return
        self._clear_at = clock.monotonic() + CLEAR_SECONDS
        cleared, failed = 0, 0
        before = clock.now() - timedelta(seconds=self._keep_seconds)
        try:
            for process, written_at in (await drivers.list_remains()).items():
                ended_at = await self._ended_at(process, written_at)
                if ended_at is not None and ended_at < before:
                    cleared += await drivers.delete_remains(process)
        except OSError:
            # Not ours to read or to delete: whoever reads the facts is told, and agents go on.
            failed = 1
        if cleared or failed:
            log_event("processes.cleared", count=cleared, failed=failed)

    async def _ended_at(self, process: ProcessId, written_at: datetime) -> datetime | None:
        """None: it has not. Of one that the record does not know its files tell."""
        try:
            return (await self._store.process(process)).closed_at
        except NotFound:
            return written_at

    async def _reap(self, credit: timedelta) -> tuple[int, int]:
        lost = await self._store.reap(self._around.holder)
        left = await look_for(self._around, lost)
        for each in lost:
            if not each.agent.is_direct:
                await self.worker.take(each, left, credit)
            elif isinstance(each.hold, Claim):
                await self.holding.take(each, each.hold, left)
        return len(lost), sum(len(each.processes) for each in lost)

    async def _reconcile_gates(self) -> None:
        """Before anything is let through: clocks may have been wrong, and probes are over."""
        for gate in await self._store.gates(include_others=True):
            is_over = gate.probe is None or await self._is_over(gate.probe)
            if gate.probe and not is_over:
                self.seats.probes.add(gate.probe)
            news = Booted(is_probe_over=is_over)
            await self._store.update_gate(gate.provider, news, account=gate.account)

    async def _is_over(self, run: RunId) -> bool:
        try:
            return (await self._store.run(run)).is_terminal
        except NotFound:
            return True

    async def _downtime(self) -> timedelta:
        said = await self._store.get(ALIVE_AT)
        if said is None:
            return timedelta()
        away = self._around.clock.now() - datetime.fromisoformat(said.decode())
        return max(timedelta(), away - timedelta(seconds=HEARTBEAT_SECONDS))

    # -- what others ask

    def process_state(self, agent: AgentId) -> Literal["idle", "busy", "background"] | None:
        """What the agent's process does, if there is one."""
        seat = self.seats.of(agent)
        if seat is None or seat.live is None or seat.live.is_gone:
            return None
        if seat.is_held:
            return "busy"
        return "background" if seat.live.has_background else "idle"

    def is_waiting(self, agent: AgentId) -> bool:
        """Whether its run waits for a person."""
        seat = self.seats.of(agent)
        return seat is not None and seat.runner is not None and bool(seat.runner.approvals)
