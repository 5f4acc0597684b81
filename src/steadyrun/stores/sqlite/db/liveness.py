"""Shows whether a holder is alive: it holds a lock on its own file as long as its process runs.

The kernel releases the lock when the process ends, however it ends: no heartbeat, no clock, and
no confusion when a process id is used again.
"""

import os
from pathlib import Path

from steadyrun.lib.flock import is_locked, lock, open_lock
from steadyrun.lib.safe_paths import make_directory
from steadyrun.model.ids import HolderId


class Liveness:
    """The locks of the holders of this process, and a check of those of other processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[HolderId, int] = {}

    def acquire(self, holder: HolderId) -> None:
        make_directory(self._folder)
        descriptor = open_lock(self._locate_file(holder), os.O_EXCL)
        lock(descriptor)
        self._held[holder] = descriptor

    def release(self, holder: HolderId) -> None:
        descriptor = self._held.pop(holder, None)
        if descriptor is not None:
            self.forget(holder)
            os.close(descriptor)

    def release_all(self) -> None:
        for holder in list(self._held):
            self.release(holder)

    def is_alive(self, holder: HolderId) -> bool:
        return is_locked(self._locate_file(holder))

    def forget(self, holder: HolderId) -> None:
        """Remove the file of a dead holder."""
        self._locate_file(holder).unlink(missing_ok=True)

    def _locate_file(self, holder: HolderId) -> Path:
        return self._folder / f"{holder}.lock"
