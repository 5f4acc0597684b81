"""Daemons and owners of direct runs that a child process forks, to be killed."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import ByteReceiveStream, ByteSendStream

from tests.children import chaos_daemon
from tests.children.chaos_daemon import Order, StateReport
from tests.support.commands import ROOT

PATIENCE_SECONDS = 60.0


class ForkedDaemon:
    """A forked daemon or owner of a run, as the test sees it."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.pid = 0
        self.words: dict[str, StateReport] = {}
        self._news = anyio.Event()

    def receive(self, word: StateReport) -> None:
        self.pid = word.pid
        # A process that was killed may have said before that it ended.
        self.words.setdefault(word.what, word)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, *what: str, seconds: float = PATIENCE_SECONDS) -> StateReport | None:
        """The first of these words, if it comes in time."""
        with anyio.move_on_after(seconds):
            while not (found := [self.words[each] for each in what if each in self.words]):
                await self._news.wait()
            return found[0]
        return None

    async def is_up(self) -> bool:
        """Whether it came so far that it answers."""
        word = await self.until("up", "ended")
        assert word, f"it neither comes up nor ends: {self.order}"
        assert not word.problem, word.problem
        return word.what == "up"

    async def end(self) -> StateReport:
        """Wait for its end."""
        word = await self.until("ended")
        assert word, f"it does not end: {self.order}"
        assert not word.problem, word.problem
        return word

    @property
    def struck(self) -> str | None:
        """The point at which it was killed or stopped."""
        return self.words["struck"].point if "struck" in self.words else None

    @property
    def is_over(self) -> bool:
        return "ended" in self.words

    @property
    def is_stopped(self) -> bool:
        """Whether it has come to the point where it is stopped, and not killed."""
        return self.order.then == "stop" and self.struck is not None

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.end()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class DaemonForker:
    """All that one child forks."""

    def __init__(self, orders: ByteSendStream) -> None:
        self._orders = orders
        self._numbers = count(1)
        self._all: dict[int, ForkedDaemon] = {}

    async def start(self, home: Path, **order: Any) -> ForkedDaemon:
        forked = ForkedDaemon(Order(next(self._numbers), str(home), **order))
        self._all[forked.order.number] = forked
        await self._orders.send(msgspec.json.encode(forked.order) + b"\n")
        assert await forked.until("begun")
        return forked

    async def listen(self, words: ByteReceiveStream) -> None:
        rest = b""
        async for read in words:
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                word = msgspec.json.decode(line, type=StateReport)
                self._all[word.number].receive(word)

    def end(self) -> None:
        for forked in self._all.values():
            if not forked.is_over and forked.pid:
                forked.signal(signal.SIGKILL)


@asynccontextmanager
async def fork_daemons() -> AsyncIterator[DaemonForker]:
    """A child that forks; with it all its children end."""
    command = [sys.executable, str(Path(chaos_daemon.__file__))]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}  # noqa: TID251 (that of this test)
    async with await anyio.open_process(command, stderr=None, env=env) as child:
        assert child.stdin
        assert child.stdout
        forked = DaemonForker(child.stdin)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forked.listen, child.stdout)
            try:
                yield forked
            finally:
                forked.end()
                with anyio.CancelScope(shield=True):
                    await child.stdin.aclose()
                    await child.wait()
                tasks.cancel_scope.cancel()
