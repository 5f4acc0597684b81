"""Exchanges frames between a dialect and its process, and passes their meaning to the sink.

Frames are received and sent in one order. A frame that the dialect returns to be sent is written,
acknowledged and confirmed to the dialect before the next line of the journal is handled.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio.to_thread
from msgspec.structs import replace

from steadyrun.dialect import Send, TurnEnded
from steadyrun.driver import DriverOutput, JournalBatch, Sink
from steadyrun.drivers.journal.process_output import JournalCursor, ProcessOutput
from steadyrun.drivers.keeper_client import KeptProcess
from steadyrun.drivers.turn_tracker import TrackedOutput, TurnTracker, end_from_exit
from steadyrun.lib.atomic import write_file
from steadyrun.lib.clock import Clock
from steadyrun.lib.framing import Frame
from steadyrun.lib.safe_paths import make_directory
from steadyrun.lib.signal import Signal
from steadyrun.model.event import Emitted, ImageProduced, Note, OutputRaw

# The folder with the images of a process, in its directory.
IMAGES = "images"


class FrameExchange:
    """Used by one `ProcessDriver`, which holds its lock during every call of `receive`, `send`,
    `replay_sent` and `end`.

    Each call passes its output to the sink, deposits the present interrupt with the keeper, and
    notifies `changed`.
    """

    def __init__(
        self,
        turns: TurnTracker,
        cursor: JournalCursor,
        process: KeptProcess,
        output: ProcessOutput,
        *,
        sink: Sink,
        clock: Clock,
    ) -> None:
        self._turns, self._cursor, self._process = turns, cursor, process
        self._output, self._sink, self._clock = output, sink, clock
        self._stderr_lock, self._stderr_count = asyncio.Lock(), 0
        # Notified when the dialect may have changed its state.
        self.changed = Signal()
        self._is_ended = False

    async def receive(self, frames: list[Frame]) -> None:
        """Handle lines in order and send what the dialect answers. The list is emptied before the
        last batch is stored, so that lines are not kept in memory during the write."""
        turns, cursor, now = self._turns, self._cursor, self._clock.now()
        self._output.note_read()
        output: list[DriverOutput] = []
        for frame in frames:
            if cursor.replay:
                output += self._replay_before(frame.end)
            tracked = turns.on_received(frame, now)
            if turns.pictures:
                tracked = await self._store_images(tracked, frame)
            if len(tracked) == 1 and type(tracked[0]) is Emitted:
                cursor.offset = frame.end
                if frame.end > cursor.stored:
                    output.append(tracked[0])
                continue
            # The start or the end of a turn, or a frame to send: what came before goes first.
            await self._deliver(output)
            cursor.offset, output = frame.end, []
            more = await self._act_on(tracked, is_new=frame.end > cursor.stored)
            await self._deliver(more)
        frames.clear()
        await self._deliver(output)
        await self._settle()

    async def send(self, sends: Sequence[Send]) -> bool:
        """Send frames; return whether each was sent, now or before."""
        output: list[DriverOutput] = []
        is_sent = True
        for send in sends:
            effects = await self._send_one(send)
            is_sent = is_sent and effects is not None
            output += effects or ()
        await self._deliver(output)
        await self._settle()
        return is_sent

    async def replay_sent(self) -> None:
        """Confirm to the dialect the rest of what earlier drivers have sent."""
        await self._deliver(self._replay_before(self._cursor.offset + 1))

    async def end(self, *, is_awaited: bool) -> None:
        """Handle the end of the process. `is_awaited`: its turn was never sent."""
        tracked = self._turns.on_exited(
            self._output.read_exit(), self._clock.now(), is_awaited=is_awaited
        )
        self._is_ended = True
        output = [each for each in tracked if not isinstance(each, Send)]
        await self._deliver([] if self._cursor.is_exit_stored else output)
        self.changed.notify()

    async def report_stderr(self) -> None:
        """Pass on all that stderr has now, in order, as live events. This needs no lock."""
        async with self._stderr_lock:
            for chunk in self._output.read_stderr():
                self._stderr_count += 1
                event = OutputRaw("stderr", chunk.decode(errors="replace"))
                emitted = Emitted(0, self._stderr_count, self._clock.now(), event)
                await self._sink(JournalBatch([emitted], self._cursor.offset, self._cursor.sent))

    async def _act_on(self, tracked: list[TrackedOutput], *, is_new: bool) -> list[DriverOutput]:
        output: list[DriverOutput] = []
        for each in tracked:
            if isinstance(each, Send):
                output += await self._send_one(each) or ()
            elif is_new:
                output.append(await self._explain_end(each))
        return output

    async def _explain_end(self, output: DriverOutput) -> DriverOutput:
        """A turn that its keeper has interrupted ended for the reason of the keeper."""
        if not isinstance(output, TurnEnded) or output.status != "cancelled":
            return output
        if not self._process.was_interrupted_by_keeper():
            return output
        await self._process.wait_for_end()
        cut = end_from_exit(self._output.read_exit())
        return replace(output, status=cut.status, error=cut.error, stop_reason=cut.stop_reason)

    async def _send_one(self, send: Send) -> list[DriverOutput] | None:
        """The events of a sent frame; None if the process has ended."""
        if self._cursor.has_sent(send.key):
            return []
        offset = self._cursor.offset
        number = await self._process.write(send.key, offset, send.raw)
        if number is None:
            number = await self._process.find_written(send.key)
        if number is None:
            return None
        return self._confirm_sent(Frame(send.raw, offset, send.key, number))

    def _replay_before(self, offset: int) -> list[DriverOutput]:
        output: list[DriverOutput] = []
        while frame := self._cursor.next_replay(offset):
            output += self._confirm_sent(frame)
        return output

    def _confirm_sent(self, frame: Frame) -> list[DriverOutput]:
        is_new = self._cursor.note_sent(frame)
        tracked = self._turns.on_sent(frame, self._clock.now())
        return [each for each in tracked if is_new and not isinstance(each, Send)]

    async def _store_images(
        self, tracked: list[TrackedOutput], frame: Frame
    ) -> list[TrackedOutput]:
        """Write the images that were produced, and add their places to the events."""
        pictures, self._turns.pictures = self._turns.pictures, {}
        try:
            folder = self._process.directory / IMAGES
            await anyio.to_thread.run_sync(_write_images, folder, pictures)
        except OSError as error:
            note = Note(f"images could not be kept: {error}")
            without = [_set_file(each, None) for each in tracked]
            return [*without, Emitted(frame.end, len(tracked), self._clock.now(), note)]
        return [_set_file(each, f"{self._process.record.keeper}/{IMAGES}") for each in tracked]

    async def _deliver(self, output: list[DriverOutput]) -> None:
        """Pass a batch to the sink, with the state of the dialect if a turn has ended."""
        cursor = self._cursor
        if not output and cursor.offset <= cursor.passed:
            return
        has_ended = TurnEnded in set(map(type, output))
        cursor.passed = max(cursor.passed, cursor.offset)
        memory = None
        if has_ended and not self._is_ended:
            # The reader of a turn stops at its end: stderr has to come before.
            await self.report_stderr()
        if has_ended:
            # No driver continues after the end of a process: its record is complete.
            memory = b"" if self._is_ended else _save_state(self._turns)
        is_behind = self._output.is_behind
        await self._sink(JournalBatch(output, cursor.passed, cursor.sent, memory, is_behind))

    async def _settle(self) -> None:
        """Deposit how to interrupt the open turn, for a keeper without a driver."""
        interrupt = self._turns.dialect.interrupt() if self._turns.is_open else None
        if isinstance(interrupt, Send):
            await self._process.set_will(interrupt.raw)
        self.changed.notify()


def _save_state(turns: TurnTracker) -> bytes | None:
    """None if the state cannot be saved: a later driver then starts at the one before."""
    try:
        return turns.save()
    except OverflowError:
        return None


def _set_file(tracked: TrackedOutput, folder: str | None) -> TrackedOutput:
    """The event of an image with the place of its file; without a folder there is none."""
    if not isinstance(tracked, Emitted) or not isinstance(tracked.event, ImageProduced):
        return tracked
    file = f"{folder}/{tracked.event.file}" if folder and tracked.event.file else None
    return replace(tracked, event=replace(tracked.event, file=file))


def _write_images(directory: Path, pictures: Mapping[str, bytes]) -> None:
    """Write files that are not there yet, each whole or not at all."""
    make_directory(directory)
    for name, data in pictures.items():
        file = directory / name
        if not file.exists():
            write_file(file, data, is_durable=False)
