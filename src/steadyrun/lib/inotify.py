"""Watches files for writes with inotify. Where it is not available, the caller polls."""

import ctypes
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path

_IN_MODIFY = 0x2
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC
# Watch, mask, cookie and the length of a name, which is 0 as long as no directory is watched.
_EVENT = struct.Struct("iIII")
# In place of a watch: the queue of the kernel overflowed, and any file may have changed.
OVERFLOW = -1


class Inotify:
    """A descriptor that becomes readable when one of its files is written. It watches inodes."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _check_result(self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))

    def fileno(self) -> int:
        return self._fd

    def watch(self, path: Path) -> int:
        """The number of this file in `read_events`; the same file always has the same number."""
        return _check_result(
            self._libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY), path
        )

    def remove(self, watch: int) -> None:
        # It fails if the file was deleted: the kernel has removed the watch then.
        self._libc.inotify_rm_watch(self._fd, watch)

    def read_events(self) -> set[int]:
        """The files written since the last call, or some of them: then it stays readable."""
        try:
            return {watch for watch, *_ in _EVENT.iter_unpack(os.read(self._fd, 65536))}
        except BlockingIOError:
            return set()

    def drain(self) -> None:
        """Read all events: the next write makes the descriptor readable again."""
        while self.read_events():
            pass

    def close(self) -> None:
        os.close(self._fd)


def open_inotify(*paths: Path) -> Inotify | None:
    """A descriptor that watches these files; None if that is not possible: then poll."""
    if not sys.platform.startswith("linux"):
        return None
    # At the kernel's limit on descriptors or watches: slower, not broken.
    with suppress(OSError):
        inotify = Inotify()
        try:
            for path in paths:
                inotify.watch(path)
        except OSError:
            inotify.close()
            raise
        return inotify
    return None


def _check_result(result: int, path: Path | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path and str(path))
    return result
