"""Shows which processes have the store open, so that its file is never replaced below them.

A process that uses the store has a shared lock on a file beside it. A restore takes this lock
exclusively. Otherwise a process could write the log of the old file beside the new one, and SQLite
would then apply that log to the wrong file.
"""

import os
import threading
import time
from pathlib import Path

from steadyrun.lib.flock import open_lock, share, try_lock, try_share
from steadyrun.stores.sqlite.db.errors import build_busy
from steadyrun.stores.sqlite.db.replacement import finish_replacement, is_replacement_open

# A process that only opens and closes the store is waited for.
EXCLUSIVE_SECONDS = 2.0
_PAUSE_SECONDS = 0.01


class StorePresence:
    """The lock of this process on the store. A replacement that was cut off is finished first."""

    def __init__(self, database: Path, descriptor: int) -> None:
        self._database, self._descriptor = database, descriptor

    @classmethod
    def join(cls, database: Path, *, busy_seconds: float) -> "StorePresence":
        """Use the store, together with other processes."""
        presence = cls(database, open_lock(database.with_suffix(".lock")))
        try:
            presence._share(busy_seconds)
        except BaseException:
            presence.leave()
            raise
        return presence

    @classmethod
    def join_alone(cls, database: Path) -> "StorePresence":
        """Use the store alone; `StoreBusy` if another process has it open."""
        presence = cls(database, open_lock(database.with_suffix(".lock")))
        try:
            presence._lock(time.monotonic() + EXCLUSIVE_SECONDS)
        except BaseException:
            presence.leave()
            raise
        return presence

    def leave(self) -> None:
        os.close(self._descriptor)

    def _share(self, busy_seconds: float) -> None:
        limit, pause = time.monotonic() + busy_seconds, threading.Event()
        while not try_share(self._descriptor):
            if time.monotonic() > limit:
                raise build_busy(self._database)
            pause.wait(_PAUSE_SECONDS)
        if is_replacement_open(self._database):
            # The lock is given up in between: another process may finish the replacement.
            self._lock(limit)
            share(self._descriptor)

    def _lock(self, limit: float) -> None:
        pause = threading.Event()
        while not try_lock(self._descriptor):
            if time.monotonic() > limit:
                raise build_busy(self._database)
            pause.wait(_PAUSE_SECONDS)
        finish_replacement(self._database)
