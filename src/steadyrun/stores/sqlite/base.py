"""Opens the SQLite file of a home, and runs queries and writes on it, never on the event loop.

Writes go through one thread (`Writer`), reads through a few connections in worker threads. What the
store acknowledges to a caller is committed with synchronous=FULL, event batches with NORMAL: their
journal is on disk already.
"""

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import anyio
import anyio.to_thread

from steadyrun.errors import StoreCorrupt, StoreFailed, StoreUnusable
from steadyrun.lib.atomic import make_private_directory
from steadyrun.lib.backoff import iterate_delays
from steadyrun.lib.clock import Clock, SystemClock
from steadyrun.lib.notifier import Notifier
from steadyrun.lib.task_group import is_out_of_threads
from steadyrun.model.gate import Accounts, GateRules
from steadyrun.model.ids import AgentId, Ids
from steadyrun.model.item import Lease
from steadyrun.model.secret import Scrubber
from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.db.change_watcher import ChangeWatcher
from steadyrun.stores.sqlite.db.errors import build_busy, translate_errors
from steadyrun.stores.sqlite.db.liveness import Liveness
from steadyrun.stores.sqlite.db.presence import StorePresence
from steadyrun.stores.sqlite.db.transaction import StoreSettings, Transaction
from steadyrun.stores.sqlite.db.write_lock import BUSY_TIMEOUT_SECONDS
from steadyrun.stores.sqlite.db.writer import Writer

P = ParamSpec("P")
T = TypeVar("T")
Verb = Callable[Concatenate["SqliteBase", P], Coroutine[Any, Any, T]]

DATABASE = "steadyrun.db"
_MOST_READERS = 4
# The waits for a thread: together about half a minute.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 15.0


def make_read(query: Callable[Concatenate[sqlite3.Connection, P], T]) -> Verb[P, T]:
    """Make a query a verb with the same parameters, which runs it in a worker thread."""

    async def read(store: "SqliteBase", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store.read(lambda connection: query(connection, *args, **kwargs))

    return read


def make_write(step: Callable[Concatenate[Transaction, P], T]) -> Verb[P, T]:
    """Make a step of a transaction a verb with the same parameters, whose write is durable."""

    async def write(store: "SqliteBase", /, *args: P.args, **kwargs: P.kwargs) -> T:
        lane = args[0].agent if isinstance(args[0], Lease) else None
        return await store.write(lambda tx: step(tx, *args, **kwargs), lane=lane)

    return write


class SqliteBase:
    """One process's view of the record in `home`."""

    def __init__(
        self, home: Path, clock: Clock, ids: Ids, hints: Notifier, settings: StoreSettings
    ) -> None:
        self.hints = hints
        self.accounts = settings.accounts
        self._path = home / DATABASE
        self._liveness = Liveness(home / "holders")
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._writer: Writer | None = None
        self._watcher: ChangeWatcher | None = None
        self._presence: StorePresence | None = None
        self._readers: list[sqlite3.Connection] = []
        self._reading = anyio.CapacityLimiter(_MOST_READERS)

    @classmethod
    async def open(  # noqa: PLR0913 (each has a default but the home)
        cls,
        home: Path,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        hints: Notifier | None = None,
        scrubber: Scrubber | None = None,
        rules: GateRules | None = None,
        accounts: Accounts | None = None,
        busy_seconds: float = BUSY_TIMEOUT_SECONDS,
    ) -> Self:
        """Open the store of a home directory on the event loop that uses it. Missing files are
        created.

        A write waits up to `busy_seconds` for other processes, then raises `StoreBusy`.
        """
        clock = clock or SystemClock()
        ids, hints = ids or Ids(clock.now), hints or Notifier()
        accounts = {} if accounts is None else accounts
        settings = StoreSettings(scrubber or Scrubber(), rules or GateRules(), accounts)
        store = cls(home, clock, ids, hints, settings)
        loop = asyncio.get_running_loop()
        await anyio.to_thread.run_sync(store._open, loop, busy_seconds)
        hints.on_watch = store._start_watching
        return store

    def _open(self, loop: asyncio.AbstractEventLoop, busy_seconds: float) -> None:
        presence = _prepare(self._path, busy_seconds)
        try:
            self._writer = Writer(
                self._path, loop, busy_seconds=busy_seconds, on_change=self.hints.notify_all
            )
        except BaseException:
            presence.leave()
            raise
        self._presence = presence

    def take_commit_seconds(self) -> float:
        return self._writer.timer.take_longest(time.monotonic()) if self._writer else 0.0

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._close, writer)

    def _close(self, writer: Writer) -> None:
        if self._watcher:
            self._watcher.close()
        while self._readers:
            self._readers.pop().close()
        writer.close()
        self._liveness.release_all()
        if self._presence:
            self._presence.leave()

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in a worker thread, on a connection of its own. If the machine has no room
        for a thread, wait as for a store that is busy."""
        self._require_writer()
        for delay in iterate_delays(_PAUSE_SECONDS, longest=_LONGEST_PAUSE_SECONDS):
            try:
                return await anyio.to_thread.run_sync(self._query, query, limiter=self._reading)
            except RuntimeError as error:
                if not is_out_of_threads(error):
                    raise
                if delay >= _LONGEST_PAUSE_SECONDS:
                    raise build_busy(self._path) from error
            await anyio.sleep(delay)
        raise AssertionError

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        with translate_errors(self._path):
            connection = self._readers.pop() if self._readers else schema.connect_reader(self._path)
            try:
                return query(connection)
            finally:
                self._readers.append(connection)

    async def write(
        self,
        step: Callable[[Transaction], T],
        *,
        lane: AgentId | None = None,
        is_durable: bool = True,
    ) -> T:
        """Run a step in a transaction; after the commit, send the hints of the step."""
        now = self._clock.now()

        def work(connection: sqlite3.Connection) -> tuple[T, Transaction]:
            tx = Transaction(connection, now, self._settings)
            return step(tx), tx

        result, tx = await self._require_writer().write(work, is_durable=is_durable, lane=lane)
        for agent, hint in tx.hints:
            if agent is None:
                self.hints.notify_all()
            else:
                self.hints.notify([agent], hint)
        return result

    def _require_writer(self) -> Writer:
        if self._writer is None:
            raise StoreFailed("the store has been closed", path=self._path)
        return self._writer

    def _start_watching(self) -> None:
        """Watch for writes of other processes from the first watch on: a quick command pays
        nothing for it."""
        if self._watcher is None:
            log = self._path.with_name(self._path.name + "-wal")
            writer = self._require_writer()
            self._watcher = ChangeWatcher(log, writer.check_for_changes, lambda: writer.commits)


def _prepare(path: Path, busy_seconds: float) -> StorePresence:
    with translate_errors(path):
        make_private_directory(path.parent)
        presence = StorePresence.join(path, busy_seconds=busy_seconds)
        try:
            _refuse_emptied(path)
            _make_private(path)
            schema.prepare(path)
        except BaseException:
            presence.leave()
            raise
        return presence


def _refuse_emptied(path: Path) -> None:
    """SQLite deletes the log of an empty file, and with it what is left of the store. A new store
    has no log before its first page is written."""
    log = path.with_name(path.name + "-wal")
    if path.exists() and not path.stat().st_size and log.exists() and log.stat().st_size:
        problem = f"is empty, but its log has {log.stat().st_size} bytes: the file was emptied"
        hint = "Keep both files, and restore a backup: steadyrun restore FILE"
        raise StoreCorrupt(problem, path=path, hint=hint)


def _make_private(path: Path) -> None:
    """Make the file readable by its owner only, because it has what agents were sent. Its log gets
    the same mode.

    A file that exists is never opened here. Closing it would end every lock this process has on it
    (POSIX), and another process could then remove the log while this process writes to it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_symlink():
            problem = "is a symbolic link, which is not followed"
            hint = "Put what it points to in its place, with its log (-wal)."
            raise StoreUnusable(problem, path=path, hint=hint) from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None
