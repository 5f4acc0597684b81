"""Finds the outer process and the keeper of a directory, and continues or kills them.

Both have the locked file of their directory open, and no other process has this lock: that is how
they are found. A signal is sent through a descriptor of the process, which is opened before the
process is checked. A pid that was reused in between therefore never gets a signal.
"""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

LOCK = "lock"
_PROC = Path("/proc")


class LockHolder(Struct, frozen=True):
    """A process that has the lock of a directory. `descriptor` refers to it, also after its end."""

    pid: int
    parent: int
    is_stopped: bool
    descriptor: int


def resume(directory: Path) -> None:
    """Continue the processes that are stopped."""
    with _open_holders(directory) as holders:
        _send((holder for holder in holders if holder.is_stopped), signal.SIGCONT)


def kill_keeper(directory: Path) -> None:
    """Kill the keeper. The outer process, continued if it is stopped, ends what is left."""
    with _open_holders(directory) as holders:
        pids = {holder.pid for holder in holders}
        # If the outer process was killed, the keeper is the only holder.
        keepers = [holder for holder in holders if holder.parent in pids] or holders
        _send(keepers, signal.SIGKILL)
        _send(holders, signal.SIGCONT)


def kill_all(directory: Path) -> None:
    """Kill the keeper and the outer process. What they leave is found by its mark."""
    with _open_holders(directory) as holders:
        _send(holders, signal.SIGKILL)


@contextmanager
def _open_holders(directory: Path) -> Iterator[list[LockHolder]]:
    """The processes that have the lock, with descriptors that are valid in the block."""
    lock, found = directory / LOCK, []
    with ExitStack() as stack:
        for pid in list(_find_holders(lock, _list_pids())):
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                # The check comes after the descriptor: the pid may have been reused before it.
                if pid in _find_holders(lock, [pid]):
                    state, parent = _read_state(pid)
                    found.append(LockHolder(pid, parent, state == "T", descriptor))
        yield found


def _send(holders: Iterable[LockHolder], number: signal.Signals) -> None:
    for holder in holders:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(holder.descriptor, number)


def _list_pids() -> list[int]:
    return [int(each.name) for each in _PROC.iterdir() if each.name.isdigit()]


def _find_holders(lock: Path, pids: Iterable[int]) -> Iterator[int]:
    """Those of the processes that have this file open and locked exclusively."""
    try:
        wanted = lock.stat()
    except FileNotFoundError:
        return
    for pid in pids:
        # A process of another user, or one that has just ended, cannot be read.
        with suppress(OSError):
            descriptors = (_PROC / str(pid) / "fd").iterdir()
            if any(_has_lock(each, wanted) for each in descriptors):
                yield pid


def _has_lock(descriptor: Path, wanted: os.stat_result) -> bool:
    try:
        found = descriptor.stat()
        if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
            return False
        facts = (descriptor.parents[1] / "fdinfo" / descriptor.name).read_text()
    except OSError:
        # It was closed in between.
        return False
    # A process that only tests the lock has the file open, but no exclusive lock.
    return any("FLOCK" in line and "WRITE" in line for line in facts.splitlines())


def _read_state(pid: int) -> tuple[str, int]:
    """The state of a process and its parent. The name before them may contain anything."""
    state, parent, *_ = (
        (_PROC / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    )
    return state, int(parent)
