"""Runs a dialect over a live process, from the claim of its keeper to its end.

A process that another driver has driven before is taken over by the same code: what was recorded
is replayed from the last saved state, and only what is not in the record yet is passed on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from steadyrun.dialect import (
    Ability,
    Dialect,
    LaunchRequest,
    Offer,
    Refused,
    Send,
    SendSignal,
    Turn,
    Verdict,
)
from steadyrun.driver import Sink
from steadyrun.drivers import keeper_client
from steadyrun.drivers.frame_exchange import FrameExchange
from steadyrun.drivers.journal.process_output import JournalCursor, ProcessOutput, ReadSetup
from steadyrun.drivers.keeper_client import KeptProcess
from steadyrun.drivers.turn_tracker import TurnTracker
from steadyrun.lib.signal import Signal


class ProcessDriver:
    """Drives one process for the runtime, which made it with `KeeperLauncher.drive`.

    States: replaying (from the saved state to the end of the record; verbs wait), live (`follow`
    reads, verbs send), ended (the process is gone and its journal is read; verbs have no effect).
    One lock orders everything that reads or sends.
    """

    def __init__(
        self,
        dialect: Dialect,
        process: KeptProcess,
        request: LaunchRequest,
        setup: ReadSetup,
        sink: Sink,
    ) -> None:
        saved = process.record.saved
        self._dialect, self._process = dialect, process
        # Kept until it was sent: it may be long.
        self._opening: LaunchRequest | None = request
        self._turns = TurnTracker(dialect, setup.scrubber)
        if saved and saved.state:
            self._turns.restore(saved.state)
        self._cursor = JournalCursor(
            process.record, keeper_client.read_sent(process.directory, after=0)
        )
        self._output = ProcessOutput(
            process.directory, self._cursor.offset, setup, has_parts=dialect.takes_parts
        )
        self._exchange = FrameExchange(
            self._turns, self._cursor, process, self._output, sink=sink, clock=setup.clock
        )
        # Not a lock of anyio: that one checks all cancel scopes each time, and this is taken for
        # every batch.
        self._lock = asyncio.Lock()
        self._caught_up = Signal()

    @property
    def abilities(self) -> frozenset[Ability]:
        return self._dialect.abilities

    @property
    def is_open(self) -> bool:
        return self._turns.is_open

    @property
    def input(self) -> str | None:
        return self._turns.input

    @property
    def has_open_tools(self) -> bool:
        return self._turns.has_open_tools

    @property
    def has_background(self) -> bool:
        return self._dialect.has_background

    @property
    def output_at(self) -> float:
        return self._output.read_at

    @property
    def input_at(self) -> float:
        return self._process.written_at

    # -- verbs

    async def begin(self, turn: Turn, *, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        if "multi_turn" not in self._dialect.abilities:
            return False
        async with self._lock_input():
            if self._opening and await self._exchange.send(self._dialect.open(self._opening)):
                self._opening = None
        while not self._cursor.has_begun(turn.key):
            seen = self._exchange.changed.count
            async with self._lock_input():
                if not is_wanted():
                    return False
                if self._dialect.is_ready:
                    sends = self._dialect.begin(turn)
                    if not sends or not await self._exchange.send(sends):
                        return False
                    if self._cursor.has_begun(turn.key):
                        return True
            await self._exchange.changed.wait(seen)
        return False

    def has_sent(self, turn: Turn) -> bool:
        if "multi_turn" in self._dialect.abilities:
            return self._cursor.has_begun(turn.key)
        return self._opening is not None and self._opening.turn.key == turn.key

    async def steer(self, offer: Offer) -> Refused | None:
        while True:
            seen = self._exchange.changed.count
            async with self._lock_input():
                is_open = self._turns.is_open
                answer = self._dialect.steer(offer) if is_open else Refused("no turn is running")
                if isinstance(answer, Refused):
                    return answer
                if answer:
                    is_sent = await self._exchange.send([answer])
                    return None if is_sent else Refused("the process has ended")
            await self._exchange.changed.wait(seen)

    async def recall(self, offer: str) -> bool:
        async with self._lock_input():
            send = self._dialect.recall(offer)
            return send is not None and await self._exchange.send([send])

    async def interrupt(self) -> bool:
        async with self._lock_input():
            match self._dialect.interrupt():
                case Send() as send:
                    return await self._exchange.send([send])
                case SendSignal(number):
                    return await self._process.signal(number)
                case None:
                    return False

    async def decide(self, approval: str, verdict: Verdict) -> None:
        async with self._lock_input():
            await self._exchange.send(self._dialect.decide(approval, verdict))

    async def close(self) -> None:
        await self._process.close_input()

    async def stop(self, reason: str) -> None:
        await self._process.stop(reason)

    @asynccontextmanager
    async def _lock_input(self) -> AsyncIterator[None]:
        """Hold the lock, after everything that was recorded has been replayed."""
        await self._caught_up.wait(since=0)
        async with self._lock:
            yield

    # -- reading

    async def follow(self) -> None:
        """Run as one task: it reads the journal, and every other event interrupts its read."""
        output, exchange = self._output, self._exchange
        with output:
            self._process.on_over(output.interrupt_read)
            await self._catch_up()
            output.interrupt_read()
            while (frames := await output.read()) is not None:
                if frames:
                    async with self._lock:
                        await exchange.receive(frames)
                elif self._process.is_over:
                    await self._process.wait_for_end()
                    output.finish()
                if output.has_stderr:
                    await exchange.report_stderr()
        async with self._lock:
            await self._receive_exit()

    async def _catch_up(self) -> None:
        """Receive what an earlier driver has received, and what came while there was none."""
        async with self._lock:
            while (frames := await self._output.read_known()) is not None:
                await self._exchange.receive(frames)
            await self._exchange.replay_sent()
        self._caught_up.notify()

    async def _receive_exit(self) -> None:
        """The last line may lack its line break; then comes the exit itself."""
        if rest := self._output.read_rest():
            await self._exchange.receive(rest)
        saved = self._process.record.saved
        if saved and not saved.state:
            # The record has the end of this process already.
            return
        is_one_shot = "multi_turn" not in self._dialect.abilities
        was_sent = is_one_shot or self._cursor.has_begun_a_turn
        await self._exchange.end(is_awaited=not was_sent)
