"""Reads what a process writes: its journal line by line, and its stderr in pieces.

A driver that takes a process over starts at the last saved state. From there it repeats what an
earlier driver has read and sent. The cursor separates what is in the record already from what is
new.
"""

from pathlib import Path
from typing import NamedTuple, Self

from steadyrun.dialect import ProcessExit
from steadyrun.drivers import keeper_client
from steadyrun.drivers.journal.line_guard import LineGuard
from steadyrun.drivers.journal.output_lines import LINE_BYTES, OutputLines
from steadyrun.lib.clock import Clock
from steadyrun.lib.file_follower import FileWatches, JournalFollower, TailFollower
from steadyrun.lib.framing import Frame
from steadyrun.model.process import Process
from steadyrun.model.secret import Scrubber

# The key of a frame that starts a turn begins with this.
_BEGIN = "begin:"


class ReadSetup(NamedTuple):
    """What reading the output of any process needs. `line_bytes`: see `OutputLines`."""

    watches: FileWatches
    clock: Clock
    scrubber: Scrubber
    line_bytes: int = LINE_BYTES


def read_last_turn(directory: Path) -> str | None:
    """The key of the last turn that was sent to a process. The frames themselves are skipped: they
    may be long."""
    keys = [key for key in keeper_client.read_sent_keys(directory) if key.startswith(_BEGIN)]
    return keys[-1].removeprefix(_BEGIN) if keys else None


class ProcessOutput:
    """The journal and the stderr of one process. One task reads; others may interrupt it."""

    __slots__ = (
        "_clock",
        "_directory",
        "_guard",
        "_journal",
        "_known_bytes",
        "_lines",
        "_scrubber",
        "_stderr",
        "read_at",
    )

    def __init__(self, directory: Path, offset: int, setup: ReadSetup, *, has_parts: bool) -> None:
        """Read from `offset` on. `has_parts`: a long line is given in parts."""
        journal = directory / "journal"
        self._guard = LineGuard(directory, offset)
        watches, self._clock = setup.watches, setup.clock
        # When the process last wrote something.
        self.read_at = setup.clock.monotonic()
        self._directory, self._scrubber = directory, setup.scrubber
        self._lines = OutputLines(
            offset, setup.line_bytes, scrubber=setup.scrubber, has_parts=has_parts
        )
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
        return self._split(await self._read_chunk())

    async def read(self) -> list[Frame] | None:
        """The next lines; none if the read was interrupted, None at the end."""
        chunk = await self._read_chunk()
        if not chunk:
            return None if self._journal.is_finished else []
        # A part of a line counts as output, too.
        self.note_read()
        return self._split(chunk)

    async def _read_chunk(self) -> bytes:
        """Read on; the caller has handled what was read before."""
        if self._lines.is_long:
            self._guard.pause(self._journal.offset)
        else:
            self._guard.end(self._journal.offset)
        return await self._journal.read()

    def _split(self, chunk: bytes) -> list[Frame]:
        if self._lines.is_long:
            self._guard.begin(self._journal.offset - len(chunk))
        return self._lines.feed(chunk)

    def read_rest(self) -> list[Frame]:
        """The last line, if it has no line break."""
        rest = self._lines.read_rest()
        return [rest] if rest else []

    def read_stderr(self) -> list[bytes]:
        """What stderr has now, in pieces. A part of a secret that the keeper's cut of the file may
        have left is not in them."""
        return list(iter(self._read_stderr, b""))

    def _read_stderr(self) -> bytes:
        cuts = self._stderr.cuts
        chunk = self._stderr.read_now()
        if self._stderr.cuts == cuts or not chunk:
            return chunk
        text = self._scrubber.clean_end(chunk.decode(errors="surrogateescape"))
        # Nothing would be the end.
        return text.encode(errors="surrogateescape") or b"\n"

    def read_exit(self) -> ProcessExit:
        """How the process ended, with the end of its stderr."""
        return keeper_client.read_exit(self._directory, self._scrubber)

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
        self._guard.end(self._journal.offset)
        self._stderr.close()
        self._journal.close()


class JournalCursor:
    """The positions of one driver.

    - `offset`: the end of the last line that the dialect has received.
    - `stored`: the end of the record when this driver started. Lines up to here are not new.
    - `passed`: the end of the last batch that was given to the sink.
    - `sent`: the number of the last frame that was sent.
    - `replay`: frames of earlier drivers that the dialect has not handled yet, the next one last.
    """

    __slots__ = ("_keys", "_marks", "offset", "passed", "replay", "sent", "stored")

    def __init__(self, process: Process, recorded: list[Frame]) -> None:
        """`recorded` are all frames that were sent to the process, in order."""
        saved = process.saved
        self.offset, self.sent = (saved.offset, saved.sent) if saved else (0, 0)
        self.stored = self.passed = process.offset
        self._marks = process.marks
        self._keys = {frame.key for frame in recorded}
        self.replay = [frame for frame in reversed(recorded) if frame.number > self.sent]

    @property
    def is_exit_stored(self) -> bool:
        """Whether the record has the end of the process."""
        return bool(self._marks.x)

    @property
    def has_begun_a_turn(self) -> bool:
        return any(key.startswith(_BEGIN) for key in self._keys)

    def has_begun(self, turn: str) -> bool:
        """Whether the turn with this key was sent, by this driver or an earlier one."""
        return f"{_BEGIN}{turn}" in self._keys

    def has_sent(self, key: str) -> bool:
        return key in self._keys

    def note_sent(self, frame: Frame) -> bool:
        """Remember a frame that was sent; return whether the record does not have it yet."""
        self.sent = max(self.sent, frame.number)
        self._keys.add(frame.key)
        return frame.number > self._marks.s

    def next_replay(self, before: int) -> Frame | None:
        """The next frame that an earlier driver sent before this offset of the journal."""
        if self.replay and self.replay[-1].end < before:
            return self.replay.pop()
        return None
