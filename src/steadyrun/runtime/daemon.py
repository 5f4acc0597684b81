"""Runs the daemon: adopts what was left, serves, and adopts the lanes of dead holders."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Literal

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from steadyrun.errors import HolderGone, NotFound, SteadyrunError, StoreFailed
from steadyrun.model.gate import Booted
from steadyrun.model.ids import AgentId, ProcessId, RunId
from steadyrun.model.item import Claim, Message
from steadyrun.runtime.agent.workers import AgentWorkers
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.direct_runs import DirectRuns
from steadyrun.runtime.dispatcher import Dispatcher
from steadyrun.runtime.log import log_bug, log_event
from steadyrun.runtime.process_pool import Capacity, ProcessPool
from steadyrun.runtime.recovery import find_abandoned
from steadyrun.store import Accepted

ALIVE_AT = "alive_at"
HEARTBEAT_SECONDS = 30.0
CLEAR_SECONDS = 3600.0


async def _deliver_nothing() -> None:
    """There is nothing to deliver."""


class Recovered(Struct, frozen=True):
    """What was adopted at the start."""

    lanes: int
    processes: int
    downtime: timedelta


class Daemon:
    """Runs agents for as long as the process lives.

    `app/daemon.py` makes it and calls `recover`, then `serve` in a task, and `shut_down` at the
    end. Operations call the methods under "operations".
    """

    def __init__(self, deps: Deps, tasks: TaskGroup, *, capacity: Capacity, key: bytes) -> None:
        pool = ProcessPool(capacity, deps.clock)
        self.workers = AgentWorkers(deps, pool)
        self.direct_runs = DirectRuns(deps, tasks, self.workers)
        self.dispatcher = Dispatcher(deps, tasks, self.workers, pool, key=key)
        self.pool = pool
        self._deps, self._store = deps, deps.store
        self._tasks = tasks
        # When to look again for files of old processes.
        self._clear_at = 0.0

    async def recover(self, drain: Callable[[], Awaitable[None]] = _deliver_nothing) -> Recovered:
        """Adopt what an earlier daemon has left. The time in which there was no daemon does not
        count for its runs. `drain` delivers spooled calls, once it is known which gates are
        open."""
        await self._reconcile_gates()
        await drain()
        downtime = await self._read_downtime()
        log_event("downtime.credited", seconds=round(downtime.total_seconds(), 1))
        self._tasks.start_soon(self.workers.serve)
        lanes, processes = await self._reap(downtime)
        return Recovered(lanes, processes, downtime)

    async def serve(self) -> None:
        """Claim items: run this in a task."""
        self._tasks.start_soon(self._maintain)
        await self.dispatcher.serve()

    async def shut_down(self, *, drain_seconds: float, keep: bool) -> int:
        """Claim nothing more, wait for what runs, and stop the rest; with `keep` it goes on under
        its keepers, for the next daemon. Returns how many runs were stopped or kept."""
        log_event("daemon.draining", seconds=drain_seconds, keep=keep)
        if not keep:
            # Lanes whose holder ended a moment ago shall be stopped as well.
            await self._reap_if_possible()
        await self.dispatcher.drain(0.0 if keep else drain_seconds)
        running = sum(worker.is_held for worker in self.workers)
        await (self.pool.close_all() if keep else self.dispatcher.stop_all())
        return running

    async def _maintain(self) -> None:
        """Record that this daemon is alive, and adopt the lanes of holders that are not."""
        while True:
            try:
                await self._store.put(ALIVE_AT, self._deps.clock.now().isoformat().encode())
                await self._reap_if_possible()
                await self._clear_up()
            except HolderGone:
                # Another holder has all lanes of this one.
                raise
            except StoreFailed as error:
                log_event("store.failed", phase="heartbeat", code=error.code)
            except SteadyrunError as error:
                log_bug(error)
            await anyio.sleep(HEARTBEAT_SECONDS)

    async def _reap_if_possible(self) -> None:
        """Adopt lanes; if the store cannot be written, the next try adopts them."""
        try:
            await self._reap(timedelta())
        except StoreFailed as error:
            log_event("store.failed", phase="reap", code=error.code)

    async def _clear_up(self) -> None:
        """Delete the files of processes that ended long ago, once an hour."""
        clock, drivers = self._deps.clock, self._deps.launcher
        keep_seconds = self.pool.capacity.keep_seconds
        if not keep_seconds or clock.monotonic() < self._clear_at:
            return
        self._clear_at = clock.monotonic() + CLEAR_SECONDS
        cleared, failed = 0, 0
        before = clock.now() - timedelta(seconds=keep_seconds)
        try:
            for process, written_at in (await drivers.list_remains()).items():
                ended_at = await self._find_end(process, written_at)
                if ended_at is not None and ended_at < before:
                    cleared += await drivers.delete_remains(process)
        except OSError:
            # Files that cannot be read or deleted are logged; agents go on.
            failed = 1
        if cleared or failed:
            log_event("processes.cleared", count=cleared, failed=failed)

    async def _find_end(self, process: ProcessId, written_at: datetime) -> datetime | None:
        """None if it has not ended. Without a record, the time of its files counts."""
        try:
            return (await self._store.process(process)).closed_at
        except NotFound:
            return written_at

    async def _reap(self, credit: timedelta) -> tuple[int, int]:
        lanes = await self._store.reap(self._deps.holder)
        processes = await find_abandoned(self._deps, lanes)
        for lane in lanes:
            if not lane.agent.is_direct:
                await self.dispatcher.adopt(lane, processes, credit)
            elif isinstance(lane.lease, Claim):
                await self.direct_runs.adopt(lane, lane.lease, processes)
        return len(lanes), sum(len(lane.processes) for lane in lanes)

    async def _reconcile_gates(self) -> None:
        """Correct the gates first: clocks may have been wrong, and probes may be over."""
        for gate in await self._store.gates(include_others=True):
            is_over = gate.probe is None or await self._is_over(gate.probe)
            if gate.probe and not is_over:
                self.workers.probes.add(gate.probe)
            news = Booted(is_probe_over=is_over)
            await self._store.update_gate(gate.provider, news, account=gate.account)

    async def _is_over(self, run: RunId) -> bool:
        try:
            return (await self._store.run(run)).is_terminal
        except NotFound:
            return True

    async def _read_downtime(self) -> timedelta:
        alive_at = await self._store.get(ALIVE_AT)
        if alive_at is None:
            return timedelta()
        away = self._deps.clock.now() - datetime.fromisoformat(alive_at.decode())
        return max(timedelta(), away - timedelta(seconds=HEARTBEAT_SECONDS))

    # -- operations

    async def accept(self, message: Message) -> Accepted:
        """Accept a message, and start it at once if there is a free slot."""
        return await self.dispatcher.accept(message)

    def find_process_state(self, agent: AgentId) -> Literal["idle", "busy", "background"] | None:
        """What the agent's process does, if there is one."""
        worker = self.workers.find(agent)
        live = worker.slot.live if worker else None
        if worker is None or live is None or live.is_gone:
            return None
        if worker.is_held:
            return "busy"
        return "background" if live.has_background else "idle"

    def is_waiting(self, agent: AgentId) -> bool:
        """Whether the agent's run waits for a person."""
        worker = self.workers.find(agent)
        return worker is not None and worker.run is not None and bool(worker.run.timer.approvals)

    async def release(self, agent: AgentId) -> None:
        """Close the agent's process if it is idle."""
        worker = self.workers.find(agent)
        if worker and worker.slot.is_idle:
            await self.pool.close(worker.slot)
