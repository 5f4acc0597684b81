"""What has been written to this file since? Its followers read on as soon as it grows."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

from steadyrun.lib.inotify import ANY_OF_THEM, open_inotify
from steadyrun.lib.signal import Signal

CHUNK_BYTES = 256 * 1024
# What is there at a time is seldom more.
_USUAL_BYTES = 8 * 1024
# Where the kernel does not tell.
POLL_SECONDS = 0.05
# Where it does, but might not have.
SAFETY_SECONDS = 1.0

# So many files in so short a time are heard of together, and that much later.
MANY_FILES = 16
GATHER_SECONDS = 0.01

# The kernel has told of this file, or it is time to look.
Wake = Callable[[bool], None]
# In place of a watch: the kernel will not tell of this file.
_UNTOLD = 0


class FileWatches:
    """Wakes all who follow files on this event loop; one descriptor and one timer serve them all.

    Shared, because a user has 128 inotify descriptors by default, but room for many watches.
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
        self._wakes: dict[int, list[Wake]] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Which files we were told of lately, and since when.
        self._told, self._told_since = set[int](), 0.0
        self._pause: asyncio.TimerHandle | None = None
        self._inotify = open_inotify() if use_inotify else None
        if self._inotify:
            self._loop.add_reader(self._inotify, self._hear)

    def add(self, path: Path, wake: Wake) -> int:
        """Wake whenever the file may have changed, from now on; the number is for `remove`."""
        watch = self._watch(path)
        self._wakes.setdefault(watch, []).append(wake)
        self._set_timer()
        return watch

    def remove(self, watch: int, wake: Wake) -> None:
        self._wakes[watch].remove(wake)
        if self._wakes[watch]:
            return
        del self._wakes[watch]
        if self._inotify and watch != _UNTOLD:
            self._inotify.forget(watch)

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
            return self._inotify.watch(path) if self._inotify else _UNTOLD
        except OSError:
            # The kernel's limit on watches is reached: slower, not broken.
            return _UNTOLD

    def _hear(self) -> None:
        assert self._inotify
        told = self._inotify.told()
        is_sure = ANY_OF_THEM not in told
        for watch in told if is_sure else self._wakes:
            self._wake(watch, is_sure=is_sure)
        if self._are_many(told):
            # To be woken for each of them would cost more than what is done then.
            self._loop.remove_reader(self._inotify)
            self._pause = self._loop.call_later(GATHER_SECONDS, self._hear_again)

    def _hear_again(self) -> None:
        assert self._inotify
        self._pause = None
        self._loop.add_reader(self._inotify, self._hear)
        self._hear()

    def _are_many(self, told: set[int]) -> bool:
        """Whether many files are written to: one that is, however often, is not made to wait."""
        now = self._loop.time()
        if now - self._told_since > 2 * GATHER_SECONDS:
            self._told, self._told_since = set(), now
        self._told |= told
        if len(self._told) < MANY_FILES:
            return False
        self._told, self._told_since = set(), now
        return True

    def _tick(self) -> None:
        self._timer = None
        for watch in self._wakes:
            self._wake(watch, is_sure=False)
        self._set_timer()

    def _wake(self, watch: int, *, is_sure: bool) -> None:
        # What was told of a file may come after it was removed.
        for wake in self._wakes.get(watch, ()):
            wake(is_sure)

    def _set_timer(self) -> None:
        """A tick may be moved forward, never back: else files that come often would put it off."""
        if not self._wakes:
            return
        is_polling = _UNTOLD in self._wakes
        due = self._loop.time() + (self._poll_seconds if is_polling else self._safety_seconds)
        if self._timer and self._timer.when() <= due:
            return
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)


class JournalFollower:
    """Reads a file that only grows, from an offset on, while somebody else writes it.

    It is watched before it is first read and read to its end before each wait, so that nothing
    written in between is slept through. One task at a time may read.
    """

    def __init__(
        self,
        watches: FileWatches,
        path: Path,
        offset: int = 0,
        *,
        told: Callable[[], None] | None = None,
    ) -> None:
        """`told` is called, too, when there may be something to read."""
        self.offset = offset
        self.is_finished = False
        self._is_lagging = self._is_called = False
        # Whether there was more to read than one chunk takes.
        self.is_behind = False
        # Whether something was written since we have last seen the end.
        self.has_grown = True
        self._changed = Signal()
        self._told = told
        self._file = path.open("rb", buffering=0)
        self._watches = watches
        self._watch = watches.add(path, self._wake)

    async def read(self) -> bytes:
        """The next bytes as soon as there are any; none once all is read and the writer is gone, or
        when the reader is called."""
        if self._is_lagging:
            # There is always something to read: let the others have their turn.
            await asyncio.sleep(0)
        self._is_lagging = True
        while not (chunk := self._grown()) and not (self.is_finished or self._is_called):
            self._is_lagging = False
            await self._changed.wait()
        # Called while there was something to read, it is called for the next time.
        self._is_called = self._is_called and bool(chunk)
        return chunk

    def call(self) -> None:
        """Somebody wants whoever reads: it waits no longer, now or the next time."""
        self._is_called = self.has_grown = True
        self._changed.notify()

    def finish(self) -> None:
        """The writer is gone: what is in the file now is all there will be."""
        self.is_finished = self.has_grown = True
        self._changed.notify()

    def close(self) -> None:
        self._watches.remove(self._watch, self._wake)
        self._file.close()
        # Whoever is still reading learns that the file is closed.
        self.has_grown = True
        self._changed.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self, is_sure: bool) -> None:
        # Looking is cheaper than a task that is woken for nothing.
        if is_sure or self._size() != self.offset:
            self.has_grown = True
            self._changed.notify()
            if self._told:
                self._told()

    def _grown(self) -> bytes:
        """As `unread`, without a look where nothing was written."""
        return self.unread() if self.has_grown else b""

    def unread(self) -> bytes:
        """The next bytes, without waiting; none if there are none yet."""
        # Room for a whole chunk costs more than the reading, and so does asking how much there is.
        self.is_behind, self.has_grown = False, False
        chunk = os.pread(self._file.fileno(), _USUAL_BYTES, self.offset)
        if len(chunk) == _USUAL_BYTES:
            chunk += self._more(self.offset + len(chunk))
        self.offset += len(chunk)
        return chunk

    def _more(self, offset: int) -> bytes:
        """What there is behind `offset`, up to the size of a chunk."""
        unread, room = self._size() - offset, CHUNK_BYTES - _USUAL_BYTES
        self.is_behind = unread > room
        # It was not the end that we have seen.
        self.has_grown = True
        return os.pread(self._file.fileno(), min(unread, room), offset) if unread > 0 else b""

    def _size(self) -> int:
        # The position is free for this: reading names its own.
        return os.lseek(self._file.fileno(), 0, os.SEEK_END)


class TailFollower(JournalFollower):
    """Reads a file that may be cut back, and after a cut goes on from the start of what is left.

    Some of it may have been read before; what was cut away unread is lost.
    """

    def unread(self) -> bytes:
        if self._size() < self.offset:
            self.offset = 0
        return super().unread()
