"""Follows one CLI process from its launch or its adoption to its end.

The keeper may be out of reach for a while: then the process is followed again from where the record
ends. Requests wait until then, and are sent once.
"""

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from steadyrun.dialect import Turn
from steadyrun.driver import Driver, JournalBatch
from steadyrun.errors import KeeperGone, KeeperSilent, StoreFailed
from steadyrun.lib.backoff import next_delay
from steadyrun.lib.task_group import task_group
from steadyrun.model.ids import RunId
from steadyrun.model.policy import Rights
from steadyrun.model.process import Process
from steadyrun.runtime.agent.connection import ProcessConnection
from steadyrun.runtime.agent.lane import AgentLane
from steadyrun.runtime.agent.offers import OpenOffers
from steadyrun.runtime.agent.outage import LONGEST_SECONDS, PAUSE_SECONDS
from steadyrun.runtime.agent.recorder import Recorder
from steadyrun.runtime.log import log_event
from steadyrun.store import LaneSnapshot


class Connected(Struct, frozen=True):
    """Requests can be sent, maybe not for the first time; no output was read yet."""

    driver: Driver


class Exited(Struct, frozen=True):
    """The process is not followed any more."""


ProcessUpdate = Connected | JournalBatch | Exited
OnUpdate = Callable[[ProcessUpdate], Awaitable[None]]


class LiveProcess:
    """One CLI process of a lane: its connection, its recorder and its offers.

    It reports to its owner through the `on_update` of `serve`, which is awaited: reading waits for
    writing. `ProcessSlot` makes it. States: followed (again after each loss of the keeper) ->
    closing, after `close` or `stop` -> gone.
    """

    def __init__(self, lane: AgentLane, process: Process, rights: Rights) -> None:
        self.row = process
        # What it was launched with.
        self.rights = rights
        # Its end was requested: no turn may be sent any more.
        self.is_closing = False
        abilities = lane.deps.launcher.find_abilities(process.provider)
        self.connection = ProcessConnection(lane.outage, abilities)
        self.offers = OpenOffers(lane, self.connection)
        # The state of the record when the process was adopted, until that was used.
        self.snapshot: LaneSnapshot | None = None
        # The run that has begun in it by the record, until its journal was read up to there.
        self.recorded_run: RunId | None = None
        # The turn that an earlier holder has launched it for, if that is for the item that runs: no
        # other turn is sent to it then.
        self.adopted_turn: Turn | None = None
        # It was launched for the present turn.
        self.is_new = False
        self._lane = lane
        # The record may have changed since `row` was read.
        self._is_stale = False

    @property
    def recorder(self) -> Recorder:
        assert self.connection.recorder
        return self.connection.recorder

    @property
    def is_usable(self) -> bool:
        """Whether turns can be sent to it."""
        return not self.is_gone and not self.is_closing

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, and all of its output is in the record."""
        return self.connection.is_gone

    @property
    def has_background(self) -> bool:
        driver = self.connection.driver
        return driver is not None and driver.has_background

    async def serve(self, on_update: OnUpdate) -> None:
        """Follow the process to its end: run this in a task. What goes wrong is raised where a
        caller waits for the process."""
        delay = PAUSE_SECONDS
        try:
            while not self.is_gone:
                delay = await self._follow_once(delay, on_update)
        except Exception as error:  # noqa: BLE001 (raised where a caller waits)
            self.connection.fail(error)
        finally:
            self._disconnect()
            self.connection.notify()
        await on_update(Exited())

    async def _follow_once(self, delay: float, on_update: OnUpdate) -> float:
        """Follow while the keeper can be reached; returns how long to wait the next time."""
        started_at = self._lane.deps.clock.monotonic()
        try:
            async with task_group() as tasks:
                self.connection.follow_in(tasks.cancel_scope)
                await self._drive(tasks, on_update)
                self.connection.is_gone = True
        except KeeperGone as error:
            self.connection.is_silent = isinstance(error, KeeperSilent)
        except StoreFailed as error:
            if not self._lane.outage.should_retry(error):
                raise
        finally:
            self._disconnect()
        if self.is_gone:
            return delay
        if self.connection.is_silent and self._must_end:
            await self._kill()
            return PAUSE_SECONDS
        await anyio.sleep(delay)
        self._is_stale = True
        is_news = self._lane.deps.clock.monotonic() - started_at > 2 * delay
        return PAUSE_SECONDS if is_news else next_delay(delay, longest=LONGEST_SECONDS)

    @property
    def _must_end(self) -> bool:
        """Whether its end, or that of its run, was requested."""
        run = self._lane.run
        is_stopped = self._lane.stop is not None or (run is not None and run.stop is not None)
        return self.is_closing or is_stopped

    async def _kill(self) -> None:
        """Its keeper does not answer, and so cannot end it."""
        log_event("process.killed", agent=self._lane.agent.name, process=self.row.id)
        await self._lane.deps.launcher.kill(self.row)
        self.connection.is_silent, self._is_stale = False, True

    async def _drive(self, tasks: TaskGroup, on_update: OnUpdate) -> None:
        deps, lane = self._lane.deps, self._lane
        if self._is_stale:
            [self.row] = await deps.store.processes([self.row.id])
        self.connection.recorder = recorder = Recorder(
            deps, lane.lease, self.row, agent=lane.agent, feed=lane.feed, tasks=tasks
        )
        fence = lane.lease.current.fence
        async with deps.launcher.drive(
            self.row, holder=deps.holder, fence=fence, sink=on_update
        ) as driver:
            self.connection.abilities = driver.abilities
            await on_update(Connected(driver))
            lane.outage.recorder = recorder
            self.connection.open(driver)
            await driver.follow()
            await recorder.flush()

    def _disconnect(self) -> None:
        if self._lane.outage.recorder is self.connection.recorder:
            self._lane.outage.recorder = None
        self.connection.close()

    async def close(self) -> None:
        """End its input: it ends by itself, and may take its time."""
        self.is_closing = True
        await self.connection.send(lambda driver: driver.close())

    async def stop(self, reason: str) -> None:
        """End it and everything it has started, and read its output to the end."""
        self.is_closing = True
        await self.connection.send(lambda driver: driver.stop(reason))
        await self.connection.wait_gone()

    async def end(self, limit_seconds: float) -> None:
        """Let it end by itself, and stop it if that takes too long."""
        await self.close()
        with anyio.move_on_after(limit_seconds or None):
            await self.connection.wait_gone()
        await self.stop("shutdown")
