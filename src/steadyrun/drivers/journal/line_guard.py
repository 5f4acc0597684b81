"""Counts the daemons that ended while they read one long line of a process.

While a reader handles a chunk of a long line, the file `reading` in the directory of the process
says so. A reader that is killed then leaves the file, and the next reader counts that. Only long
lines are marked: if a daemon is killed while it reads ordinary output, the output is not the likely
cause.
"""

from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from steadyrun.errors import JournalPoisoned
from steadyrun.lib.atomic import write_file

FILE = "reading"
# After this many crashes at one line the process is not read any more.
MOST_CRASHES = 2


class ReadMark(Struct, frozen=True):
    """A long line ends somewhere after `offset`.

    `crashes` daemons have ended while they read it; one more if `is_read` is still set.
    """

    offset: int
    crashes: int
    is_read: bool


def count_crashes(directory: Path) -> int:
    """Count the daemons that ended at the present line of this process.

    Call it only if no daemon reads it now.
    """
    mark = _load_mark(directory)
    return mark.crashes + mark.is_read if mark else 0


def _load_mark(directory: Path) -> ReadMark | None:
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=ReadMark)
    except (OSError, msgspec.DecodeError):
        return None


class LineGuard:
    """Marks the long lines of one process; `ProcessOutput` calls it for each chunk it reads.

    Create it only if no other daemon reads the process. It raises `JournalPoisoned` if too many
    daemons have ended at this line.
    """

    __slots__ = ("_crashed_at", "_crashes", "_directory", "_has_mark")

    def __init__(self, directory: Path, offset: int) -> None:
        self._directory = directory
        mark = _load_mark(directory)
        self._crashes = count_crashes(directory)
        # Where the last reader has ended: the count is kept until this one has read on.
        self._crashed_at = mark.offset if mark else -1
        self._has_mark = self._crashes > 0
        if self._crashes >= MOST_CRASHES:
            raise JournalPoisoned(directory.name, offset=offset, crashes=self._crashes)

    def begin(self, offset: int) -> None:
        """A chunk of a long line is about to be handled."""
        self._write(ReadMark(offset, self._crashes, is_read=True))

    def pause(self, offset: int) -> None:
        """The chunk is handled, and the line is not complete."""
        if self._crashes:
            self._write(ReadMark(offset, self._crashes, is_read=False))
        else:
            self._forget()

    def end(self, offset: int) -> None:
        """No long line is being read, and all before `offset` is handled."""
        if offset > self._crashed_at:
            self._forget()

    def _forget(self) -> None:
        if self._has_mark:
            (self._directory / FILE).unlink(missing_ok=True)
            self._has_mark, self._crashes = False, 0

    def _write(self, mark: ReadMark) -> None:
        # If the disk is full, no mark is written and reading continues.
        with suppress(OSError):
            write_file(self._directory / FILE, msgspec.json.encode(mark), is_durable=False)
            self._has_mark = True
