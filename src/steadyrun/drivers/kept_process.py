"""Writes to a process through its keeper, stops it and reads how it ended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread

from steadyrun.dialect import ProcessExit
from steadyrun.drivers import keeper, keeper_client
from steadyrun.drivers.keeper_client import KeeperConnection
from steadyrun.errors import KeeperGone, LeaseLost
from steadyrun.lib.clock import Clock
from steadyrun.model.process import Process


class KeptProcess:
    """One process and the connection to its keeper.

    Without a connection the process has ended. What is sent to a process that has ended is
    discarded; the driver learns of the end from the journal.
    """

    __slots__ = ("_clock", "_link", "_will", "directory", "record", "written_at")

    def __init__(
        self, process: Process, directory: Path, link: KeeperConnection | None, clock: Clock
    ) -> None:
        self.record, self.directory = process, directory
        self._link, self._clock = link, clock
        # When something was last written to its input.
        self.written_at = clock.monotonic()
        self._will: bytes | None = None

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended, or there was none."""
        return self._link is None or self._link.is_over

    def on_over(self, call: Callable[[], None]) -> None:
        """Call this when the connection ends."""
        if self._link:
            self._link.on_over = call

    async def write(self, key: str, at: int, raw: bytes) -> int | None:
        """Write one line to its input; return its number, or None if the process has ended."""
        with self._ignore_gone():
            if self._link:
                number = await self._link.send_frame(key, at, raw)
                self.written_at = self._clock.monotonic()
                return number
        return None

    async def set_will(self, raw: bytes) -> None:
        """Deposit the line with which the keeper interrupts the open turn if no driver is left."""
        if self._link and raw != self._will:
            self._will = raw
            with self._ignore_gone():
                await self._link.deposit_will(raw)

    async def signal(self, number: int) -> bool:
        with self._ignore_gone():
            if self._link:
                await self._link.send_signal(number)
                return True
        return False

    async def close_input(self) -> None:
        with self._ignore_gone():
            if self._link:
                await self._link.close_input()

    async def stop(self, reason: str) -> None:
        with self._ignore_gone():
            if self._link:
                await self._link.stop(reason)

    async def wait_for_end(self) -> None:
        """Wait until the process and its keeper have ended."""
        link = self._link
        if link is None:
            return
        await link.wait_until_over()
        if link.is_replaced:
            raise LeaseLost(self.record.agent, fence=link.fence)
        # If the keeper was killed, the outer process ends everything and writes the exit file.
        if not link.has_exited:
            await keeper_client.wait_until_gone(self.directory)
            # If both were killed, nothing was ended yet.
            await anyio.to_thread.run_sync(keeper.sweep, [self.record.id])

    def read_exit(self) -> ProcessExit:
        return keeper_client.read_exit(self.directory)

    def was_interrupted_by_keeper(self) -> bool:
        """Whether the keeper has sent the deposited line."""
        sent = keeper_client.read_sent(self.directory, 0)
        return any(frame.key == keeper.WILL_KEY for frame in sent)

    @contextmanager
    def _ignore_gone(self) -> Iterator[None]:
        """Ignore `KeeperGone` if the process has ended or its input is closed."""
        try:
            yield
        except KeeperGone:
            if self._link and not self._link.is_over and not self._link.is_input_closed:
                raise
