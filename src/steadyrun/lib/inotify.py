"""Have these files been written to? The kernel tells; where it cannot, somebody must poll."""

import ctypes
import os
import struct
import sys
from pathlib import Path

_IN_MODIFY = 0x2
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC
# Watch, mask, cookie and the length of a name, which is 0 as long as no directory is watched.
_EVENT = struct.Struct("iIII")
# In place of a watch: more was written than the kernel could note down.
OVERFLOW = -1


class Inotify:
    """A descriptor that becomes readable when one of the files is written to. It watches inodes."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _check_result(self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))

    def fileno(self) -> int:
        return self._fd

    def watch(self, path: Path) -> int:
        """A number that `told` will use for this file; the same file gets the same one again."""
        return _check_result(
            self._libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY), path
        )

    def remove(self, watch: int) -> None:
        # It fails when the file is gone, and the kernel has forgotten it by itself.
        self._libc.inotify_rm_watch(self._fd, watch)

    def read_events(self) -> set[int]:
        """The files written to since the last call, or some of them: then it stays readable."""
        try:
            return {watch for watch, *_ in _EVENT.iter_unpack(os.read(self._fd, 65536))}
        except BlockingIOError:
            return set()

    def close(self) -> None:
        os.close(self._fd)


class FileWatch:
    """A descriptor that becomes readable when this one file is written to."""

    def __init__(self, path: Path) -> None:
        self._inotify = Inotify()
        try:
            self._inotify.watch(path)
        except OSError:
            self._inotify.close()
            raise

    def fileno(self) -> int:
        return self._inotify.fileno()

    def drain(self) -> None:
        """Forget what was told so far: the next write makes the descriptor readable again."""
        while self._inotify.read_events():
            pass

    def close(self) -> None:
        self._inotify.close()


def open_inotify() -> Inotify | None:
    """A descriptor without files, or None where it cannot be had: then poll."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return Inotify()
    except OSError:
        # The kernel's limit on descriptors is reached: slower, not broken.
        return None


def watch_file(path: Path) -> FileWatch | None:
    """Watch a file, or None where that cannot be had: then poll."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return FileWatch(path)
    except OSError:
        # The kernel's limit on watches is reached: slower, not broken.
        return None


def _check_result(result: int, path: Path | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path and str(path))
    return result
