"""Watches the log file in a thread, and asks the writer to check for writes of other processes."""

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

from steadyrun.lib.inotify import open_inotify

# Where the kernel does not report changes.
POLL_SECONDS = 0.05
# Check at most this often; less often while this process writes, since its own writes wake the
# thread, too.
_PAUSE_SECONDS = 0.002
_BUSY_PAUSE_SECONDS = 0.02
# The log is written, synced, and only then is the commit there to be seen: look again for a while.
_RECHECK_SECONDS = (0.003, 0.005, 0.01, 0.02, 0.05, 0.1)
_SAFETY_SECONDS = 1.0


class ChangeWatcher:
    """Calls `look` soon after any process has written to the log file."""

    def __init__(
        self, log: Path, check: Callable[[], None], own_commits: Callable[[], int]
    ) -> None:
        self._check = check
        self._own_commits = own_commits
        self._file = open_inotify(log)
        self._stop = threading.Event()
        self._stop_out, self._stop_in = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="steadyrun-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        os.write(self._stop_in, b"x")
        self._thread.join()
        os.close(self._stop_in)
        os.close(self._stop_out)
        if self._file:
            self._file.close()

    def _serve(self) -> None:
        # Look before the first wait: something may have been written before the watch was set.
        again, known = iter(_RECHECK_SECONDS), 0
        while not self._stop.is_set():
            self._check()
            before, known = known, self._own_commits()
            self._stop.wait(_PAUSE_SECONDS if known == before else _BUSY_PAUSE_SECONDS)
            if self._is_written_within(next(again, _SAFETY_SECONDS)):
                again = iter(_RECHECK_SECONDS)

    def _is_written_within(self, seconds: float) -> bool:
        if self._file is None:
            self._stop.wait(POLL_SECONDS)
            return False
        either = select.poll()
        either.register(self._file, select.POLLIN)
        either.register(self._stop_out, select.POLLIN)
        is_written = bool(either.poll(seconds * 1000))
        self._file.drain()
        return is_written
