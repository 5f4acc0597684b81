"""Holds the process of one lane: at most one, launched or adopted, gone before the next one."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import ChangeRefused, SteadyrunError
from steadyrun.model.gate import find_account
from steadyrun.model.policy import Rights
from steadyrun.model.process import Process
from steadyrun.runtime.agent.lane import AgentLane, ProcessLaunched
from steadyrun.runtime.agent.process import LiveProcess, ProcessUpdate
from steadyrun.runtime.log import log_event
from steadyrun.runtime.prompt.builder import PresentProcess, TurnPlan
from steadyrun.store import LaneSnapshot

OnProcessUpdate = Callable[[LiveProcess, ProcessUpdate], Awaitable[None]]


class ProcessSlot:
    """The place for the process of one lane. AgentWorker and ProcessPool close it."""

    def __init__(self, lane: AgentLane, tasks: TaskGroup, on_update: OnProcessUpdate) -> None:
        self.lane = lane
        self.process: LiveProcess | None = None
        # Since when no item runs.
        self.idle_since = lane.deps.clock.monotonic()
        self._tasks = tasks
        self._on_update = on_update
        self._ending = asyncio.Lock()

    @property
    def is_idle(self) -> bool:
        """Whether there is only a process that waits."""
        process = self.process
        return not self.lane.lease.is_held and process is not None and not process.is_closing

    def describe(self) -> PresentProcess:
        """Return the facts about the present process that the next turn depends on."""
        process = self.process
        if process is None:
            return PresentProcess()
        seal = process.row.seal if process.is_usable else None
        return PresentProcess(process.adopted_turn, seal or None, exists=True)

    async def launch(self, plan: TurnPlan) -> LiveProcess:
        """Start a process for this turn."""
        deps, agent, outage = self.lane.deps, self.lane.agent, self.lane.outage
        name, now = deps.ids.make_process(), deps.clock.now()
        place = deps.launcher.name_directory(name)
        account = find_account(agent.provider, deps.store.accounts)
        row = Process(
            name, agent.id, agent.provider, deps.machine, place, now,
            seal=plan.seal, account=account,
        )  # fmt: skip
        lease = self.lane.lease.current
        await outage.write(partial(deps.store.open_process, lease, row), "start")
        try:
            await deps.launcher.launch(row, plan.request, env=plan.env)
        except SteadyrunError:
            await outage.write(partial(deps.store.close_process, lease, row.id), "start")
            raise
        log_event("process.launched", agent=agent.name, process=row.id)
        process = self.follow(row, plan.request.rights)
        process.is_new = True
        self.lane.report(ProcessLaunched())
        return process

    def follow(
        self, row: Process, rights: Rights, snapshot: LaneSnapshot | None = None
    ) -> LiveProcess:
        """Follow a process from now on, to its end. `snapshot` is the state of its record, if that
        was read."""
        self.process = process = LiveProcess(self.lane, row, rights)
        process.snapshot = snapshot
        self._tasks.start_soon(process.serve, partial(self._on_update, process))
        return process

    async def end(self) -> None:
        """End the process, if there is one, and record that."""
        async with self._ending:
            if self.process:
                await self.process.end(self.lane.deps.timeouts.close_seconds)
                await self._close(self.process)

    async def abandon(self) -> None:
        """End the process although it cannot be followed any more."""
        async with self._ending:
            process, lease = self.process, self.lane.lease.current
            if process:
                launcher = self.lane.deps.launcher
                await launcher.end(process.row, holder=lease.holder, fence=lease.fence)
                await self._close(process)

    async def leave(self) -> None:
        """End the idle process and release the lane, unless an item comes first."""
        lease, store = self.lane.lease.current, self.lane.deps.store
        try:
            if not await self._end_idle():
                return
            await self.lane.outage.write(partial(store.release_lane, lease), "settle")
        except ChangeRefused:
            # An item has come, and this holder runs it.
            return
        self.lane.detach()

    async def _end_idle(self) -> bool:
        """End the process as long as nothing runs; False if something does, which keeps it."""
        lease = self.lane.lease
        async with self._ending:
            process = self.process
            if process is None or lease.is_held:
                return not lease.is_held
            await process.close()
            with anyio.move_on_after(self.lane.deps.timeouts.close_seconds or None):
                while not process.is_gone and not lease.is_held:
                    await process.connection.wait_changed()
            if lease.is_held:
                return False
            await process.stop("shutdown")
            await self._close(process)
            return not lease.is_held

    async def _close(self, process: LiveProcess) -> None:
        lease, store = self.lane.lease.current, self.lane.deps.store
        await self.lane.outage.write(partial(store.close_process, lease, process.row.id), "settle")
        log_event("process.closed", agent=self.lane.agent.name, process=process.row.id)
        self.process = None
