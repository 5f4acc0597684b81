"""Reads what a process writes: its journal line by line, and its stderr in pieces."""

import asyncio
from pathlib import Path
from typing import Self

from steadyrun.driver import JournalBatch, Sink
from steadyrun.drivers.journal_cursor import JournalCursor
from steadyrun.lib.clock import Clock
from steadyrun.lib.file_follower import FileWatches, JournalFollower, TailFollower
from steadyrun.lib.framing import Frame, LineSplitter
from steadyrun.model.event import Emitted, OutputRaw


class ProcessOutput:
    """The journal and the stderr of one process. One task reads; others may wake it."""

    __slots__ = ("_clock", "_journal", "_known_bytes", "_lines", "_stderr", "read_at")

    def __init__(self, directory: Path, offset: int, *, watches: FileWatches, clock: Clock) -> None:
        journal = directory / "journal"
        self._clock = clock
        # When the process last wrote something.
        self.read_at = clock.monotonic()
        self._lines = LineSplitter(offset)
        self._journal = JournalFollower(watches, journal, offset)
        self._known_bytes = journal.stat().st_size
        self._stderr = TailFollower(
            watches, directory / "stderr", on_change=self._journal.interrupt
        )

    @property
    def is_behind(self) -> bool:
        """Whether the journal has more than the last read returned."""
        return self._journal.is_behind

    @property
    def has_stderr(self) -> bool:
        """Whether there may be something new on stderr."""
        return self._stderr.has_grown

    async def read_known(self) -> list[Frame] | None:
        """The next lines that were in the journal at the start; None when all were read."""
        if self._journal.offset >= self._known_bytes:
            return None
        return self._lines.feed(await self._journal.read())

    async def read(self) -> list[Frame] | None:
        """The next lines; none if the reader was woken for another reason, None at the end."""
        chunk = await self._journal.read()
        if not chunk:
            return None if self._journal.is_finished else []
        # A part of a line counts as output, too.
        self.note_read()
        return self._lines.feed(chunk)

    def read_rest(self) -> list[Frame]:
        """The last line, if it has no line break."""
        rest = self._lines.read_rest()
        return [rest] if rest else []

    def read_stderr(self) -> list[bytes]:
        return list(iter(self._stderr.read_now, b""))

    def note_read(self) -> None:
        self.read_at = self._clock.monotonic()

    def interrupt_read(self) -> None:
        """Make `read` return, now or the next time."""
        self._journal.interrupt()

    def finish(self) -> None:
        """The process has ended: what is in its files now is all."""
        self._stderr.finish()
        self._journal.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stderr.close()
        self._journal.close()


class StderrReporter:
    """Passes what a process writes to stderr to the sink, as live events."""

    __slots__ = ("_clock", "_count", "_cursor", "_lock", "_output", "_sink")

    def __init__(
        self, output: ProcessOutput, cursor: JournalCursor, sink: Sink, clock: Clock
    ) -> None:
        self._output, self._cursor, self._sink, self._clock = output, cursor, sink, clock
        self._count, self._lock = 0, asyncio.Lock()

    async def report(self) -> None:
        """Pass on all that stderr has now, in order."""
        async with self._lock:
            for chunk in self._output.read_stderr():
                self._count += 1
                event = OutputRaw("stderr", chunk.decode(errors="replace"))
                emitted = Emitted(0, self._count, self._clock.now(), event)
                await self._sink(JournalBatch([emitted], self._cursor.offset, self._cursor.sent))
