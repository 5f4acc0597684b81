"""Has this file been written to? The kernel tells; elsewhere than on Linux, somebody must poll."""

import ctypes
import os
import sys
from pathlib import Path

_IN_MODIFY = 0x2
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC


class FileWatch:
    """A descriptor that becomes readable when the file is written to. It watches the inode."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC), path)
        try:
            _checked(libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY), path)
        except OSError:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        return self._fd

    def drain(self) -> None:
        """Forget what was told so far: the next write makes the descriptor readable again."""
        try:
            while os.read(self._fd, 65536):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self._fd)


def watch_file(path: Path) -> FileWatch | None:
    """Watch a file, or None where that cannot be had: then poll."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return FileWatch(path)
    except OSError:
        # The kernel's limit on watches is reached: slower, not broken.
        return None


def _checked(result: int, path: Path) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    return result
