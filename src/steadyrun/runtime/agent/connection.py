"""Sends requests to one process, across reconnects to its keeper."""

from collections.abc import Awaitable, Callable, Container
from typing import TypeVar

import anyio

from steadyrun.dialect import Ability, Offer, Refused, Turn
from steadyrun.driver import Driver
from steadyrun.errors import KeeperGone, KeeperSilent, StoreFailed
from steadyrun.lib.backoff import iterate_delays
from steadyrun.lib.signal import Signal
from steadyrun.model.event import Event
from steadyrun.runtime.agent.outage import LONGEST_SECONDS, PAUSE_SECONDS, StoreOutage
from steadyrun.runtime.agent.recorder import Recorder

Reply = TypeVar("Reply")


class ProcessConnection:
    """The driver of one process, while its keeper can be reached.

    States: disconnected -> connected -> disconnected -> ... -> gone. `LiveProcess` opens and closes
    the connection. A request waits while it is disconnected, is sent again if the keeper went away,
    and returns None once the process is gone.
    """

    def __init__(self, outage: StoreOutage, abilities: frozenset[Ability]) -> None:
        # What the process can do, as far as that is known.
        self.abilities = abilities
        # The driver while the process is connected; the last driver.
        self.driver: Driver | None = None
        self._last: Driver | None = None
        # The recorder of the last connection.
        self.recorder: Recorder | None = None
        # The process has ended, and all of its output is in the record.
        self.is_gone = False
        # The keeper is running, and has not answered the last request.
        self.is_silent = False
        self._outage = outage
        self._changed = Signal()
        self._failure: Exception | None = None
        # The requests that are being sent; the task that follows the process.
        self._sending: list[anyio.CancelScope] = []
        self._following: anyio.CancelScope | None = None

    # -- state, set by LiveProcess

    def follow_in(self, scope: anyio.CancelScope) -> None:
        """Cancelling this scope disconnects."""
        self._following = scope

    def open(self, driver: Driver) -> None:
        self.driver = driver
        self.notify()

    def close(self) -> None:
        self._last, self.driver = self.driver or self._last, None
        for scope in self._sending:
            scope.cancel()

    def fail(self, error: Exception) -> None:
        """The process cannot be followed: `wait_changed` raises this error."""
        self._failure = error

    async def note(self, *events: Event) -> None:
        """Record events of the runtime itself; waits for a store that cannot be written."""
        delays = iterate_delays(PAUSE_SECONDS, longest=LONGEST_SECONDS)
        while True:
            # There is a new recorder after each reconnect.
            assert self.recorder
            try:
                return await self.recorder.note(*events)
            except StoreFailed as error:
                if not self._outage.should_retry(error):
                    raise
                await anyio.sleep(next(delays))

    # -- waiting

    async def wait_changed(self) -> None:
        """Wait until something has changed; raise the error that ended the following of the
        process.
        """
        if self._failure:
            raise self._failure
        if not self.is_gone:
            await self._changed.wait()

    async def wait_connected(self) -> Driver | None:
        """Wait until requests can be sent; None if the process is gone."""
        while self.driver is None and not self.is_gone:
            await self.wait_changed()
        return self.driver

    async def wait_gone(self) -> None:
        while not self.is_gone:
            await self.wait_changed()

    def notify(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.notify()

    # -- requests

    def has_received(self, turn: Turn) -> bool:
        """Whether this turn has reached the process, from this holder or an earlier one."""
        driver = self.driver or self._last
        return driver is not None and driver.has_sent(turn)

    async def begin(
        self, turn: Turn, *, is_wanted: Callable[[], bool], on_attempt: Callable[[], None]
    ) -> bool:
        """Send a turn; False if it had been sent before. `on_attempt` is called before each try."""

        async def begin(driver: Driver) -> bool:
            on_attempt()
            return await driver.begin(turn, is_wanted=is_wanted)

        return bool(await self.send(begin))

    async def steer(self, offer: Offer, withdrawn: Container[str]) -> Refused | None:
        """Offer a message to the open turn, unless it is `withdrawn` by then."""

        async def steer(driver: Driver) -> tuple[Refused | None]:
            if offer.id in withdrawn:
                return (Refused("it was withdrawn"),)
            return (await driver.steer(offer),)

        answer = await self.send(steer)
        return answer[0] if answer else Refused("the process has ended")

    async def send(self, verb: Callable[[Driver], Awaitable[Reply]]) -> Reply | None:
        """Call a method of the driver; None if the process is gone."""
        while driver := await self.wait_connected():
            with anyio.CancelScope() as scope:
                self._sending.append(scope)
                try:
                    return await verb(driver)
                except KeeperGone as error:
                    self.is_silent = isinstance(error, KeeperSilent)
                    self._disconnect(driver)
                except StoreFailed as error:
                    if not self._outage.should_retry(error):
                        raise
                    self._disconnect(driver)
                finally:
                    self._sending.remove(scope)
        return None

    def _disconnect(self, driver: Driver) -> None:
        """The keeper does not answer: connect again."""
        if self.driver is driver and self._following:
            self.driver = None
            self._following.cancel()
