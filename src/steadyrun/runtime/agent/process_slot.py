"""Holds the process of one lane: at most one, launched or adopted, gone before the next one."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from steadyrun.dialect import Turn
from steadyrun.errors import ChangeRefused, SteadyrunError
from steadyrun.model.gate import find_account
from steadyrun.model.ids import RunId
from steadyrun.model.policy import Rights
from steadyrun.model.process import Process
from steadyrun.runtime.agent.lane import Lane
from steadyrun.runtime.agent.offers import OpenOffers
from steadyrun.runtime.agent.process import LiveProcess, ProcessUpdate
from steadyrun.runtime.log import log_event
from steadyrun.runtime.prompt.builder import PresentProcess, TurnPlan
from steadyrun.store import LaneSnapshot


class LaneProcess:
    """A live process, its offers, and what the lane knows of it."""

    def __init__(self, live: LiveProcess, offers: OpenOffers, rights: Rights) -> None:
        self.live, self.offers = live, offers
        # What it was launched with.
        self.rights = rights
        # The state of the record when the process was adopted, until that was used.
        self.snapshot: LaneSnapshot | None = None
        # The run that has begun in it by the record, until its journal was read up to there.
        self.recorded_run: RunId | None = None
        # The turn that an earlier holder has launched it for, if that is for the item that runs: no
        # other turn is sent to it then.
        self.adopted_turn: Turn | None = None
        # It was launched for the present turn.
        self.is_new = False

    @property
    def is_usable(self) -> bool:
        """Whether turns can be sent to it."""
        return not self.live.is_gone and not self.live.is_closing


OnProcessUpdate = Callable[[LaneProcess, ProcessUpdate], Awaitable[None]]


class ProcessSlot:
    """The place for the process of one lane. AgentWorker and ProcessPool close it."""

    def __init__(self, lane: Lane, tasks: TaskGroup, on_update: OnProcessUpdate) -> None:
        self.lane = lane
        self.process: LaneProcess | None = None
        # Since when no item runs.
        self.idle_since = lane.deps.clock.monotonic()
        self._tasks = tasks
        self._on_update = on_update
        self._ending = asyncio.Lock()

    @property
    def live(self) -> LiveProcess | None:
        return self.process.live if self.process else None

    @property
    def is_idle(self) -> bool:
        """Whether there is only a process that waits."""
        return not self.lane.lease.is_held and self.live is not None and not self.live.is_closing

    def describe(self) -> PresentProcess:
        """What the next turn has to fit to."""
        process = self.process
        if process is None:
            return PresentProcess()
        seal = process.live.row.seal if process.is_usable else None
        return PresentProcess(process.adopted_turn, seal or None, exists=True)

    async def launch(self, plan: TurnPlan) -> LaneProcess:
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
        return process

    def follow(
        self, row: Process, rights: Rights, snapshot: LaneSnapshot | None = None
    ) -> LaneProcess:
        """Follow a process from now on, to its end. `snapshot` is the state of its record, if that
        was read."""
        live = LiveProcess(self.lane, row)
        process = LaneProcess(live, OpenOffers(self.lane, live), rights)
        process.snapshot = snapshot
        self.process = process
        self._tasks.start_soon(live.serve, partial(self._on_update, process))
        return process

    async def end(self) -> None:
        """End the process, if there is one, and record that."""
        async with self._ending:
            if self.live:
                await self.live.end(self.lane.deps.timeouts.close)
                await self._close(self.live)

    async def abandon(self) -> None:
        """End the process although it cannot be followed any more."""
        async with self._ending:
            live, lease = self.live, self.lane.lease.current
            if live:
                drivers = self.lane.deps.launcher
                await drivers.end(live.row, holder=lease.holder, fence=lease.fence)
                await self._close(live)

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
            live = self.live
            if live is None or lease.is_held:
                return not lease.is_held
            await live.close()
            with anyio.move_on_after(self.lane.deps.timeouts.close or None):
                while not live.is_gone and not lease.is_held:
                    await live.connection.wait_changed()
            if lease.is_held:
                return False
            await live.stop("shutdown")
            await self._close(live)
            return not lease.is_held

    async def _close(self, live: LiveProcess) -> None:
        lease, process, store = self.lane.lease.current, live.row.id, self.lane.deps.store
        await self.lane.outage.write(partial(store.close_process, lease, process), "settle")
        log_event("process.closed", agent=self.lane.agent.name, process=process)
        self.process = None
