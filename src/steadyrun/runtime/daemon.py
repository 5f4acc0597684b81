"""Runs the daemon: adopts abandoned lanes at the start and later, and claims items."""

from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import HolderGone, LeaseLost, NotFound, SteadyrunError, StoreFailed
from steadyrun.model.gate import Booted
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Claim, Message
from steadyrun.runtime.agent.workers import AgentWorkers
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.direct_runs import DirectRuns
from steadyrun.runtime.dispatcher import Dispatcher
from steadyrun.runtime.log import log_bug, log_event
from steadyrun.runtime.process_pool import Capacity, ProcessPool
from steadyrun.runtime.recovery import AbandonedProcesses, find_abandoned, set_aside_strays
from steadyrun.store import AbandonedLane, Accepted

ALIVE_AT = "alive_at"
HEARTBEAT_SECONDS = 30.0
CLEAR_SECONDS = 3600.0


class Daemon:
    """Runs agents until `shut_down`.

    `app/daemon.py` extends it for operations. It calls `recover`, then `serve` in a task, and
    `shut_down` at the end. Operations call the methods under "operations".
    """

    def __init__(self, deps: Deps, tasks: TaskGroup, *, capacity: Capacity, key: bytes) -> None:
        pool = ProcessPool(capacity, deps.clock)
        self.workers = AgentWorkers(deps, pool)
        self.direct_runs = DirectRuns(deps, tasks, self.workers)
        self.dispatcher = Dispatcher(deps, tasks, self.workers, pool, key=key)
        self.pool = pool
        self._deps, self._store = deps, deps.store
        self._tasks = tasks
        # Lanes that this holder has taken over and not adopted yet, each with its downtime.
        self._reaped: deque[tuple[AbandonedLane, timedelta]] = deque()
        # When to look again for files of old processes.
        self._clear_at = 0.0

    async def recover(self, drain: Callable[[], Awaitable[None]] | None = None) -> int:
        """Adopt what an earlier daemon has left, and return the number of lanes. The time in which
        there was no daemon does not count for its runs. `drain` delivers spooled calls, once the
        open gates are known."""
        await self._reconcile_gates()
        if drain:
            await drain()
        downtime = await self._read_downtime()
        log_event("downtime.credited", seconds=round(downtime.total_seconds(), 1))
        self._tasks.start_soon(self.workers.serve)
        await set_aside_strays(self._deps)
        return await self._reap(downtime)

    async def serve(self) -> None:
        """Claim items: run this in a task."""
        self._tasks.start_soon(self._maintain)
        await self.dispatcher.serve()

    async def shut_down(self, *, drain_seconds: float, keep: bool) -> int:
        """Claim nothing more, wait for what runs, and stop the rest; with `keep` it continues
        under its keepers, for the next daemon. Returns how many runs were stopped or kept."""
        log_event("daemon.draining", seconds=drain_seconds, keep=keep)
        if not keep:
            # Lanes whose holder ended a moment ago are stopped as well.
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
        clock, files = self._deps.clock, self._deps.launcher.files
        keep_seconds = self.pool.capacity.keep_seconds
        if not keep_seconds or clock.monotonic() < self._clear_at:
            return
        self._clear_at = clock.monotonic() + CLEAR_SECONDS
        cleared, failed = 0, 0
        before = clock.now() - timedelta(seconds=keep_seconds)
        try:
            remains = await files.list_written()
            stored = {each.id: each.closed_at for each in await self._store.processes(remains)}
            for process, written_at in remains.items():
                # Without a record, the time of its files counts.
                ended_at = stored.get(process, written_at)
                if ended_at is not None and ended_at < before:
                    cleared += await files.delete(process)
        except OSError:
            # Files that cannot be read or deleted are logged; agents continue.
            failed = 1
        if cleared or failed:
            log_event("processes.cleared", count=cleared, failed=failed)

    async def _reap(self, credit: timedelta) -> int:
        lanes = await self._store.reap(self._deps.holder)
        self._reaped += [(lane, credit) for lane in lanes]
        processes = await find_abandoned(self._deps, [lane for lane, _ in self._reaped])
        while self._reaped:
            await self._adopt_next(processes)
        return len(lanes)

    async def _adopt_next(self, processes: AbandonedProcesses) -> None:
        """Adopt one reaped lane.

        `reap` returns a lane only once, so a lane that cannot be adopted because the store fails
        stays in the list.
        """
        lane, credit = self._reaped.popleft()
        try:
            if not lane.agent.is_direct:
                await self.dispatcher.adopt(lane, processes, credit)
            elif isinstance(lane.lease, Claim):
                await self.direct_runs.adopt(lane, lane.lease, processes)
        except StoreFailed:
            self._reaped.append((lane, credit))
            raise
        except HolderGone:
            raise
        except LeaseLost as error:
            log_event("lease.lost", agent=lane.agent.name, fence=error.fence)

    async def _reconcile_gates(self) -> None:
        """Correct the gates first: clocks may have been wrong, and probes may be over."""
        for gate in await self._store.gates(include_others=True):
            is_over = gate.probe is None or await self._is_over(gate.probe)
            if gate.probe and not is_over:
                self.workers.probes.add(gate.probe)
            report = Booted(is_probe_over=is_over)
            await self._store.update_gate(gate.provider, report, account=gate.account)

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
        process = worker.slot.process if worker else None
        if worker is None or process is None or process.is_gone:
            return None
        if worker.is_held:
            return "busy"
        return "background" if process.has_background else "idle"

    def is_waiting(self, agent: AgentId) -> bool:
        """Whether the agent's run waits for a person."""
        worker = self.workers.find(agent)
        return worker is not None and worker.run is not None and bool(worker.run.timer.approvals)

    async def release(self, agent: AgentId) -> None:
        """Close the agent's process if it is idle."""
        worker = self.workers.find(agent)
        if worker and worker.slot.is_idle:
            await self.pool.close(worker.slot)
