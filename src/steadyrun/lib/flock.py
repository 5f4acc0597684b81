"""Locks between processes with flock(2).

The kernel releases a lock when the process that holds it ends, for whatever reason. A lock belongs
to an open file, not to a process: it is held until the last copy of the descriptor is closed.
"""

import fcntl
import os
from pathlib import Path


def open_lock(path: Path, flags: int = 0) -> int:
    """Open a lock file, created if it is missing; return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)


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
