"""Locks between processes with flock(2).

The kernel releases a lock when the process that holds it ends, for whatever reason. A lock belongs
to an open file, not to a process: it is held until the last copy of the descriptor is closed.
"""

import fcntl
import os
from pathlib import Path

from steadyrun.lib.safe_paths import open_own


def open_lock(path: Path, flags: int = 0) -> int:
    """Open a lock file, created if it is missing and never through a link."""
    return open_own(path, os.O_RDWR | flags)


def lock(descriptor: int) -> None:
    """Take the lock exclusively; wait for it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_lock(descriptor: int) -> bool:
    """Take the lock exclusively; return False if it is taken."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_share(descriptor: int) -> bool:
    """Take the lock together with others; return False if it is taken exclusively."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share(descriptor: int) -> None:
    """Take the lock together with others; wait for it."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def unlock(descriptor: int) -> None:
    """Release the lock and keep the file open."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Return whether the file is locked exclusively; a missing file is not."""
    try:
        _share(path, fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def wait_until_unlocked(path: Path) -> None:
    """Block until the file is not locked exclusively, or is missing."""
    _share(path, 0)


def _share(path: Path, flags: int) -> None:
    """Take a shared lock and release it at once. Two processes that check at the same time do not
    block each other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | flags)
    finally:
        os.close(descriptor)


class LockFile:
    """A lock file with the process id of its owner. It is open until `close`.

    If its name is deleted, another process can create a new file and lock that one, too.
    `is_in_place` notices it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_lock(path)

    def try_lock(self) -> bool:
        """Take the lock and write the process id; return False if another process has it."""
        if not try_lock(self._descriptor):
            return False
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        return True

    def read_pid(self) -> int | None:
        """The process id in the file, of the process that has the lock."""
        found = os.pread(self._descriptor, 20, 0).decode(errors="replace").strip()
        return int(found) if found.isdecimal() else None

    def is_in_place(self) -> bool:
        """Whether the name still leads to the open file."""
        held = os.fstat(self._descriptor)
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def restore(self) -> bool:
        """Create the file again and lock it; return False if another process was faster."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        other = open_lock(self.path)
        if not try_lock(other):
            os.close(other)
            return False
        # The old lock is kept until the new one is held.
        before, self._descriptor = self._descriptor, other
        os.close(before)
        return self.try_lock()

    def close(self) -> None:
        os.close(self._descriptor)
