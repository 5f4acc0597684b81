"""Gives each process on a home its turn to write, so that none starves.

SQLite gives its own lock to the process that asks at the right moment, so a busy process could win
it every time. Here a process first takes a file lock and keeps it until it has the lock of SQLite:
a process that has just written waits behind the processes that were waiting.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from steadyrun.lib.backoff import iterate_delays
from steadyrun.lib.flock import open_lock, try_lock, unlock
from steadyrun.stores.sqlite.db.errors import build_busy

# Longer than any transaction of steadyrun. If this time passes, a stopped process is the likely
# reason.
BUSY_TIMEOUT_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.0002
_LONGEST_PAUSE_SECONDS = 0.005


class WriteLock:
    """Begins write transactions, in turn with other processes."""

    def __init__(self, database: Path, *, busy_seconds: float = BUSY_TIMEOUT_SECONDS) -> None:
        self._database = database
        self._busy_seconds = busy_seconds
        self._descriptor = open_lock(database.with_suffix(".turnstile"))
        self._pause = threading.Event()

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin an immediate transaction, or raise `StoreBusy` after `busy_seconds`."""
        limit = time.monotonic() + self._busy_seconds
        self._wait_until(lambda: try_lock(self._descriptor), limit)
        try:
            self._wait_until(lambda: _try_begin(connection), limit)
        finally:
            unlock(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _wait_until(self, succeeds: Callable[[], bool], limit: float) -> None:
        pauses = iterate_delays(_FIRST_PAUSE_SECONDS, longest=_LONGEST_PAUSE_SECONDS)
        while not succeeds():
            if time.monotonic() > limit:
                raise build_busy(self._database)
            self._pause.wait(next(pauses))


def _try_begin(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return False
        raise
    return True
