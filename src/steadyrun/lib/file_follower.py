"""Follows files that grow, and reads what is appended as soon as it is written."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

from steadyrun.lib.inotify import OVERFLOW, open_inotify
from steadyrun.lib.signal import Signal

CHUNK_BYTES = 256 * 1024
# A single read seldom finds more.
_USUAL_BYTES = 8 * 1024
# The poll interval for files without inotify.
POLL_SECONDS = 0.05
# The poll interval with inotify, in case a notification was lost.
SAFETY_SECONDS = 1.0

# With this many changed files in a short time, notifications are gathered and delayed.
MANY_FILES = 16
GATHER_SECONDS = 0.01

# Called with True when the kernel reports a change, with False at a poll.
OnFileChange = Callable[[bool], None]
# In place of a watch: the kernel does not report changes of this file.
_UNWATCHED = 0


class FileWatches:
    """Reports changes of files to all followers on one event loop: one descriptor, one timer.

    It is shared because a user has only 128 inotify descriptors by default, but many watches.
    """

    def __init__(
        self,
        *,
        use_inotify: bool = True,
        poll_seconds: float = POLL_SECONDS,
        safety_seconds: float = SAFETY_SECONDS,
    ) -> None:
        self._poll_seconds, self._safety_seconds = poll_seconds, safety_seconds
        self._loop = asyncio.get_running_loop()
        self._callbacks: dict[int, list[OnFileChange]] = {}
        self._timer: asyncio.TimerHandle | None = None
        # The files that changed recently, and since when they are counted.
        self._recent, self._recent_since = set[int](), 0.0
        self._pause: asyncio.TimerHandle | None = None
        self._inotify = open_inotify() if use_inotify else None
        if self._inotify:
            self._loop.add_reader(self._inotify, self._read_events)

    def add(self, path: Path, wake: OnFileChange) -> int:
        """Call back whenever the file may have changed; the returned number is for `remove`."""
        watch = self._watch(path)
        self._callbacks.setdefault(watch, []).append(wake)
        self._set_timer()
        return watch

    def remove(self, watch: int, wake: OnFileChange) -> None:
        self._callbacks[watch].remove(wake)
        if self._callbacks[watch]:
            return
        del self._callbacks[watch]
        if self._inotify and watch != _UNWATCHED:
            self._inotify.remove(watch)

    def close(self) -> None:
        for timer in (self._timer, self._pause):
            if timer:
                timer.cancel()
        if self._inotify:
            self._loop.remove_reader(self._inotify)
            self._inotify.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self, path: Path) -> int:
        try:
            return self._inotify.watch(path) if self._inotify else _UNWATCHED
        except OSError:
            # The kernel's limit on watches is reached: slower, not broken.
            return _UNWATCHED

    def _read_events(self) -> None:
        assert self._inotify
        changed = self._inotify.read_events()
        is_sure = OVERFLOW not in changed
        for watch in changed if is_sure else self._callbacks:
            self._call_back(watch, is_sure=is_sure)
        if self._is_busy(changed):
            # A wake-up for each file would cost more than the reading.
            self._loop.remove_reader(self._inotify)
            self._pause = self._loop.call_later(GATHER_SECONDS, self._resume)

    def _resume(self) -> None:
        assert self._inotify
        self._pause = None
        self._loop.add_reader(self._inotify, self._read_events)
        self._read_events()

    def _is_busy(self, changed: set[int]) -> bool:
        """Whether many files are written now. A single file is never delayed."""
        now = self._loop.time()
        if now - self._recent_since > 2 * GATHER_SECONDS:
            self._recent, self._recent_since = set(), now
        self._recent |= changed
        if len(self._recent) < MANY_FILES:
            return False
        self._recent, self._recent_since = set(), now
        return True

    def _tick(self) -> None:
        self._timer = None
        for watch in self._callbacks:
            self._call_back(watch, is_sure=False)
        self._set_timer()

    def _call_back(self, watch: int, *, is_sure: bool) -> None:
        # The report of a change may arrive after the file was removed here.
        for wake in self._callbacks.get(watch, ()):
            wake(is_sure)

    def _set_timer(self) -> None:
        """A tick may be moved forward, never back: new files would delay it again and again."""
        if not self._callbacks:
            return
        is_polling = _UNWATCHED in self._callbacks
        due = self._loop.time() + (self._poll_seconds if is_polling else self._safety_seconds)
        if self._timer and self._timer.when() <= due:
            return
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)


class JournalFollower:
    """Reads a file that only grows, from an offset on, while another process writes it.

    The file is watched before the first read and read to its end before each wait, so no write in
    between is missed. One task at a time may read.
    """

    def __init__(
        self,
        watches: FileWatches,
        path: Path,
        offset: int = 0,
        *,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`on_change` is called, too, when there may be something to read."""
        self.offset = offset
        self.is_finished = False
        self._is_lagging = self._is_interrupted = False
        # Whether there was more to read than one chunk.
        self.is_behind = False
        # Whether something may have been written since the last read reached the end.
        self.has_grown = True
        self._changed = Signal()
        self._on_change = on_change
        self._file = path.open("rb", buffering=0)
        self._watches = watches
        self._watch = watches.add(path, self._on_file_change)

    async def read(self) -> bytes:
        """The next bytes as soon as there are any; none at the end of a finished file, or after
        `interrupt`."""
        if self._is_lagging:
            # There is always something to read: let other tasks run.
            await asyncio.sleep(0)
        self._is_lagging = True
        while not (chunk := self._read_new()) and not (self.is_finished or self._is_interrupted):
            self._is_lagging = False
            await self._changed.wait()
        # An interrupt during a read with data counts for the next read.
        self._is_interrupted = self._is_interrupted and bool(chunk)
        return chunk

    def interrupt(self) -> None:
        """Wake the reader without new data; `read` returns no bytes, now or the next time."""
        self._is_interrupted = self.has_grown = True
        self._changed.notify()

    def finish(self) -> None:
        """The writer has ended: the file will not grow any more."""
        self.is_finished = self.has_grown = True
        self._changed.notify()

    def close(self) -> None:
        self._watches.remove(self._watch, self._on_file_change)
        self._file.close()
        # A task that still reads gets the error of a closed file.
        self.has_grown = True
        self._changed.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_file_change(self, is_sure: bool) -> None:
        # A check of the size is cheaper than a task that is woken without need.
        if is_sure or self._find_size() != self.offset:
            self.has_grown = True
            self._changed.notify()
            if self._on_change:
                self._on_change()

    def _read_new(self) -> bytes:
        """As `read_now`, without a system call if nothing was written."""
        return self.read_now() if self.has_grown else b""

    def read_now(self) -> bytes:
        """The next bytes, without waiting; none if there are no new ones."""
        # A buffer for a whole chunk costs more than the reading, and so does asking for the size.
        self.is_behind, self.has_grown = False, False
        chunk = os.pread(self._file.fileno(), _USUAL_BYTES, self.offset)
        if len(chunk) == _USUAL_BYTES:
            chunk += self._read_more(self.offset + len(chunk))
        self.offset += len(chunk)
        return chunk

    def _read_more(self, offset: int) -> bytes:
        """What follows after `offset`, up to the size of a chunk."""
        unread, room = self._find_size() - offset, CHUNK_BYTES - _USUAL_BYTES
        self.is_behind = unread > room
        # The read did not reach the end.
        self.has_grown = True
        return os.pread(self._file.fileno(), min(unread, room), offset) if unread > 0 else b""

    def _find_size(self) -> int:
        # The position of the file is not used otherwise: pread has its own.
        return os.lseek(self._file.fileno(), 0, os.SEEK_END)


class TailFollower(JournalFollower):
    """Reads a file that may be cut back; after a cut it continues at the start of the file.

    Some bytes may be read twice; bytes that were cut before they were read are lost. `cuts` counts
    the cuts that were noticed.
    """

    cuts = 0

    def read_now(self) -> bytes:
        if self._find_size() < self.offset:
            self.offset = 0
            self.cuts += 1
        return super().read_now()
