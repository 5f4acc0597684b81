"""Follows one CLI process from its launch or its adoption to its end.

The keeper may be out of reach for a while: then the process is followed again from where the record
ends. Requests wait until then, and are sent once.
"""

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from steadyrun.driver import Driver, JournalBatch
from steadyrun.errors import KeeperGone, StoreFailed
from steadyrun.lib.backoff import iterate_delays, next_delay
from steadyrun.lib.task_group import task_group
from steadyrun.model.event import Event
from steadyrun.model.process import Process
from steadyrun.runtime.agent.connection import ProcessConnection
from steadyrun.runtime.agent.lane import Lane
from steadyrun.runtime.agent.outage import LONGEST_SECONDS, PAUSE_SECONDS
from steadyrun.runtime.agent.recorder import Recorder


class Connected(Struct, frozen=True):
    """Requests can be sent, maybe not for the first time; no output was read yet."""

    driver: Driver


class Exited(Struct, frozen=True):
    """The process is not followed any more."""


ProcessUpdate = Connected | JournalBatch | Exited
OnUpdate = Callable[[ProcessUpdate], Awaitable[None]]


class LiveProcess:
    """One CLI process: its connection and its recorder.

    It reports to its owner through the `on_update` of `serve`, which is awaited: reading waits for
    writing. `ProcessSlot` makes it.
    """

    def __init__(self, lane: Lane, process: Process) -> None:
        self.row = process
        # The process was asked to end: no turn may be sent any more.
        self.is_closing = False
        abilities = lane.deps.launcher.find_abilities(process.provider)
        self.connection = ProcessConnection(lane.outage, abilities)
        self._lane = lane
        self._recorder: Recorder | None = None
        # The record may have moved on since `row` was read.
        self._is_stale = False

    @property
    def recorder(self) -> Recorder:
        assert self._recorder
        return self._recorder

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
        except KeeperGone:
            pass
        except StoreFailed as error:
            if not self._lane.outage.should_retry(error):
                raise
        finally:
            self._disconnect()
        if self.is_gone:
            return delay
        await anyio.sleep(delay)
        self._is_stale = True
        is_news = self._lane.deps.clock.monotonic() - started_at > 2 * delay
        return PAUSE_SECONDS if is_news else next_delay(delay, longest=LONGEST_SECONDS)

    async def _drive(self, tasks: TaskGroup, on_update: OnUpdate) -> None:
        deps, lane = self._lane.deps, self._lane
        if self._is_stale:
            self.row = await deps.store.process(self.row.id)
        self._recorder = recorder = Recorder(
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
        if self._lane.outage.recorder is self._recorder:
            self._lane.outage.recorder = None
        self.connection.close()

    async def note(self, *events: Event) -> None:
        """Record events of the runtime itself; waits for a store that cannot be written."""
        delays = iterate_delays(PAUSE_SECONDS, longest=LONGEST_SECONDS)
        while True:
            try:
                # There is a new recorder after each reconnect.
                return await self.recorder.note(*events)
            except StoreFailed as error:
                if not self._lane.outage.should_retry(error):
                    raise
                await anyio.sleep(next(delays))

    async def close(self) -> None:
        """End its input: it ends by itself, and may take its time."""
        self.is_closing = True
        await self.connection.end_input()

    async def stop(self, reason: str) -> None:
        """End it and everything it has started, and read its output to the end."""
        self.is_closing = True
        await self.connection.stop(reason)
        await self.connection.wait_gone()

    async def end(self, limit: float | None) -> None:
        """Let it end by itself, and stop it if that takes too long."""
        await self.close()
        with anyio.move_on_after(limit or None):
            await self.connection.wait_gone()
        await self.stop("shutdown")
