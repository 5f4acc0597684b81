"""Who hears a process? One object, from its launch or its adoption to its end.

Its keeper may be out of reach for a while: then it is heard again from where the record ends.
Whatever is to be said meanwhile waits, and is said once.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from steadyrun.dialect import Ability, Turn
from steadyrun.driver import Driver, JournalBatch
from steadyrun.errors import KeeperGone, StoreFailed
from steadyrun.lib.backoff import next_delay
from steadyrun.lib.signal import Signal
from steadyrun.lib.task_group import task_group
from steadyrun.model.agent import Agent
from steadyrun.model.event import Event
from steadyrun.model.ids import RunId
from steadyrun.model.item import Claim, Lease
from steadyrun.model.policy import Rights
from steadyrun.model.process import Process
from steadyrun.runtime.agent.offers import OpenOffers
from steadyrun.runtime.agent.outage import LONGEST_SECONDS, PAUSE_SECONDS, retry_write
from steadyrun.runtime.agent.recorder import Recorder
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.events.bus import EventPublisher
from steadyrun.store import LaneSnapshot

Answer = TypeVar("Answer")


class Ear(Protocol):
    """Who is told what a process says."""

    async def reached(self, live: "LiveProcess", driver: Driver) -> None:
        """It can be spoken to, maybe not for the first time; nothing of it was heard yet."""

    async def hear(self, live: "LiveProcess", stretch: JournalBatch) -> None: ...

    async def failed(self, error: StoreFailed) -> bool:
        """The record cannot be written. Whether to try again later."""


class LiveProcess:
    """One CLI, its driver and its record."""

    def __init__(
        self,
        around: Deps,
        hold: Lease,
        agent: Agent,
        process: Process,
        *,
        ear: Ear,
        feed: EventPublisher,
    ) -> None:
        self.process = process
        # What the record said when it was taken up, until that was used.
        self.known: LaneSnapshot | None = None
        # What it was launched with.
        self.rights = Rights()
        # The run that has begun with it by the record, as long as that was not heard.
        self.begun: RunId | None = None
        # It has ended, and everything it said is in the record.
        self.is_gone = False
        # It was asked to end: no turn may be told to it any more.
        self.is_closing = False
        self.hold = hold
        self.store = around.store
        self.offers = OpenOffers(around.store, self, home=around.home, is_direct=agent.is_direct)
        self._feed = feed
        self._around, self._agent = around, agent
        self._ear = ear
        # Whoever drives it; and whoever did, when it is gone.
        self._driver: Driver | None = None
        self._last: Driver | None = None
        self._recorder: Recorder | None = None
        self._changed = Signal()
        # What is being said; cancelled when there is nobody to say it to.
        self._saying: list[anyio.CancelScope] = []
        self._driving: anyio.CancelScope | None = None
        self._abilities = around.drivers.find_abilities(process.provider)
        self._failure: Exception | None = None
        # The record may have gone on since we have read where it ends.
        self._is_stale = False

    # -- hearing

    async def serve(self) -> None:
        """Hear it to its end: run this in a task. What goes wrong is for whoever waits for it."""
        pause = PAUSE_SECONDS
        try:
            while not self.is_gone:
                pause = await self._hear_once(pause)
        except Exception as error:  # noqa: BLE001 (raised where somebody waits)
            self._failure = error
        finally:
            self._fall_silent()
            self.tell_change()

    async def _hear_once(self, pause: float) -> float:
        """Hear it as long as it can be reached; how long to wait if it is out of reach again."""
        started_at = self._around.clock.monotonic()
        try:
            async with task_group() as tasks:
                self._driving = tasks.cancel_scope
                await self._drive(tasks)
                self.is_gone = True
        except KeeperGone:
            pass
        except StoreFailed as error:
            if not await self._ear.failed(error):
                raise
        finally:
            self._fall_silent()
        if self.is_gone:
            return pause
        await anyio.sleep(pause)
        self._is_stale = True
        is_news = self._around.clock.monotonic() - started_at > 2 * pause
        return PAUSE_SECONDS if is_news else next_delay(pause, longest=LONGEST_SECONDS)

    async def _drive(self, tasks: TaskGroup) -> None:
        around = self._around
        if self._is_stale:
            self.process = await around.store.process(self.process.id)
        self._recorder = recorder = Recorder(
            around, self.hold, self.process, agent=self._agent, feed=self._feed, tasks=tasks
        )
        async with around.drivers.drive(
            self.process, holder=around.holder, fence=self.hold.fence, sink=self._hear
        ) as driver:
            self._abilities = driver.abilities
            await self._ear.reached(self, driver)
            self._driver = driver
            self.tell_change()
            await driver.follow()
            await recorder.flush()

    async def _hear(self, stretch: JournalBatch) -> None:
        await self._ear.hear(self, stretch)

    def _fall_silent(self) -> None:
        self._last, self._driver = self._driver or self._last, None
        for scope in self._saying:
            scope.cancel()

    # -- saying

    async def say(self, verb: Callable[[Driver], Awaitable[Answer]]) -> Answer | None:
        """Say something to it, again if it was out of reach meanwhile; None if it is gone."""
        while driver := await self.until_reached():
            with anyio.CancelScope() as scope:
                self._saying.append(scope)
                try:
                    return await verb(driver)
                except KeeperGone:
                    self._lose(driver)
                except StoreFailed as error:
                    if not await self._ear.failed(error):
                        raise
                    self._lose(driver)
                finally:
                    self._saying.remove(scope)
        return None

    async def note(self, *events: Event) -> None:
        """Record what the runtime itself has to say."""
        await retry_write(lambda: self.recorder.note(*events), self._ear.failed)

    def claimed(self, claim: Claim) -> None:
        """What it says from now on is said for this claim."""
        self.hold = self.offers.claim = claim
        if self._recorder:
            self._recorder.claim = claim

    async def close(self) -> None:
        """Say that nothing more will be said: it ends by itself, and may take its time."""
        self.is_closing = True
        await self.say(lambda driver: driver.close())

    async def stop(self, reason: str) -> None:
        """End it and all it has started, and hear it to its end."""
        self.is_closing = True
        await self.say(lambda driver: driver.stop(reason))
        await self.until_gone()

    async def end(self, limit: float | None) -> None:
        """Let it end by itself, or stop it if that takes too long."""
        await self.close()
        with anyio.move_on_after(limit or None):
            await self.until_gone()
        await self.stop("shutdown")

    async def until_gone(self) -> None:
        while not self.is_gone:
            await self.changed()

    async def until_reached(self) -> Driver | None:
        """Wait until it can be spoken to; None if it is gone."""
        while self._driver is None and not self.is_gone:
            await self.changed()
        return self._driver

    def _lose(self, driver: Driver) -> None:
        """It does not answer: connect anew."""
        if self._driver is driver and self._driving:
            self._driver = None
            self._driving.cancel()

    # -- news

    async def changed(self) -> None:
        """Wait for news of it; what has gone wrong in hearing it is raised here."""
        if self._failure:
            raise self._failure
        if not self.is_gone:
            await self._changed.wait()

    def tell_change(self) -> None:
        self._changed.notify()

    @property
    def driver(self) -> Driver | None:
        """Whoever drives it, while it can be reached."""
        return self._driver

    def has_told(self, turn: Turn) -> bool:
        """Whether this turn has reached it, by whomever it was told."""
        driver = self._driver or self._last
        return driver is not None and driver.has_sent(turn)

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it can do, as far as is known."""
        return self._abilities

    @property
    def serves_many(self) -> bool:
        """Whether it serves one turn after the other."""
        return "multi_turn" in self._abilities

    @property
    def recorder(self) -> Recorder:
        assert self._recorder
        return self._recorder

    @property
    def has_background(self) -> bool:
        return self._driver is not None and self._driver.has_background
