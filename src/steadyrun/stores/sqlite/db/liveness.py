"""Is that holder still there? It holds a lock on a file of its own for as long as it lives.

The kernel lets go of the lock when the process ends, however it ends: no heartbeat, no clock, and
no confusion when a process id is used again.
"""

import fcntl
import os
from pathlib import Path

from steadyrun.model.ids import HolderId


class Liveness:
    """The locks of this process's holders, and a look at those of others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[HolderId, int] = {}

    def acquire(self, holder: HolderId) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(
            self._file(holder), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._held[holder] = descriptor

    def release(self, holder: HolderId) -> None:
        descriptor = self._held.pop(holder, None)
        if descriptor is not None:
            self.forget(holder)
            os.close(descriptor)

    def vanish_all(self) -> None:
        for holder in list(self._held):
            self.release(holder)

    def is_alive(self, holder: HolderId) -> bool:
        try:
            descriptor = os.open(self._file(holder), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two who look at once do not take each other for the holder.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def forget(self, holder: HolderId) -> None:
        """Remove the file of a holder that is gone."""
        self._file(holder).unlink(missing_ok=True)

    def _file(self, holder: HolderId) -> Path:
        return self._folder / f"{holder}.lock"
