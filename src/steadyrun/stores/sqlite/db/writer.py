"""Writes to the database in one thread, which collects writes and commits them together.

Callers wait on the event loop for their own answer. A write that fails leaves the others of its
commit alone; a commit that fails fails them all, and none of them happened.
"""

import asyncio
import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.db.commit_window import CommitTimer, CommitWindow
from steadyrun.stores.sqlite.db.errors import to_store_error, translate_errors
from steadyrun.stores.sqlite.db.write_lock import WriteLock

T = TypeVar("T")
_IS_DURABLE = attrgetter("is_durable")
# Limits the size of a commit, and so the wait of its callers.
_LARGEST_GROUP = 512


@dataclass(slots=True)
class _Write(Generic[T]):
    """One thing to do inside a transaction, and where its answer goes."""

    work: Callable[[sqlite3.Connection], T]
    answer: "asyncio.Future[None]"
    is_durable: bool
    lane: str | None
    result: Any = None
    error: Exception | None = None
    is_answered: bool = False

    def get_result(self) -> T:
        if self.error is not None:
            raise self.error
        result: T = self.result
        return result


class _WriterCommand(Enum):
    """What the thread receives besides writes."""

    CHECK = auto()
    STOP = auto()


class _Group:
    """The writes of one commit, and the signals that came with them."""

    def __init__(self) -> None:
        self.writes: list[_Write[Any]] = []
        self.lanes: set[str] = set()
        self.must_check = self.must_stop = False
        self.is_durable = False

    def add(self, arrival: "_Write[Any] | _WriterCommand") -> None:
        if isinstance(arrival, _WriterCommand):
            self.must_check |= arrival is _WriterCommand.CHECK
            self.must_stop |= arrival is _WriterCommand.STOP
            return
        self.writes.append(arrival)
        self.is_durable |= arrival.is_durable
        if arrival.lane is not None:
            self.lanes.add(arrival.lane)

    def split_parts(self) -> list[list[_Write[Any]]]:
        """The writes in order. A savepoint costs as much as a write: those that may be undone and
        done again share one."""
        runs = [(durable, [*writes]) for durable, writes in groupby(self.writes, _IS_DURABLE)]
        return [
            part
            for durable, writes in runs
            for part in ([[write] for write in writes] if durable else [writes])
        ]


class Writer:
    """Runs writes in one thread over one connection, in the order of the calls.

    SqliteStore creates it, calls `write` for each change and `close` at the end. A write is queued,
    then part of a group, then committed or failed. The caller gets a result only after the commit.
    Only the thread uses the connection, and a failed write undoes no other write of its group.
    """

    def __init__(
        self,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        *,
        busy_seconds: float,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called on `loop` when another process has written.

        This may wait for other processes: make it in a thread, not on the loop.
        """
        self._path = path
        self._on_change = on_change
        self._loop = loop
        self._queue: SimpleQueue[_Write[Any] | _WriterCommand] = SimpleQueue()
        self._window = CommitWindow()
        self.commits = 0
        self.timer = CommitTimer()
        with translate_errors(path):
            self._write_lock = WriteLock(path, busy_seconds=busy_seconds)
            self._connection = schema.connect(path)
            # Later writes of other processes are detected as changes. The first read may wait for a
            # process that is opening or closing the file; after that, only the write lock waits.
            self._version = self._read_data_version()
            schema.tune_writer(self._connection)
        # Unknown: a library may be built with another default than FULL for a write-ahead log.
        self._is_full: bool | None = None
        self._thread = threading.Thread(target=self._serve, name="steadyrun-writer", daemon=True)
        self._thread.start()

    async def write(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        is_durable: bool,
        lane: str | None = None,
    ) -> T:
        """Run `work` in a transaction and return once it is committed. If `is_durable` is False,
        `work` must depend on the database alone, because it may be rolled back and repeated before
        the commit.

        A write that has begun is completed. A cancelled caller still gets the result, so that it
        can release what it has claimed.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        write = _Write(work, self._loop.create_future(), is_durable, lane)
        self._queue.put(write)
        try:
            await write.answer
        except asyncio.CancelledError:
            # A cancelled scope raises at every await. Any other cancellation is raised once.
            if anyio.current_effective_deadline() > -math.inf:
                raise
            await self._wait_shielded(write)
        return write.get_result()

    async def _wait_shielded(self, write: _Write[Any]) -> None:
        """Wait in a shielded scope. A shield is slow, so it is used only after a cancellation."""
        with anyio.CancelScope(shield=True):
            if not write.is_answered:
                write.answer = self._loop.create_future()
                await write.answer

    def check_for_changes(self) -> None:
        """Find out, in the thread, whether another process has written. Callable from anywhere."""
        self._queue.put(_WriterCommand.CHECK)

    def close(self) -> None:
        """Finish the queued writes and close. Call it in a thread: closing merges the log."""
        self._queue.put(_WriterCommand.STOP)
        self._thread.join()
        self._connection.close()
        self._write_lock.close()

    # -- in the thread

    def _serve(self) -> None:
        is_over = False
        while not is_over:
            group = self._collect()
            is_over = group.must_stop
            if group.writes:
                self._commit(group)
            if group.must_check:
                # A failed check has no caller: the next write meets the same fault.
                with contextlib.suppress(sqlite3.Error):
                    self._check_for_changes()

    def _collect(self) -> _Group:
        """Wait for a write; add the writes that are queued or come while the window is open."""
        group = _Group()
        arrival: _Write[Any] | _WriterCommand | None = self._queue.get()
        begun = time.monotonic()
        deadline = begun + self._window.compute_width(begun)
        while arrival is not None:
            group.add(arrival)
            arrival = self._take_next(group, deadline)
        return group

    def _take_next(self, group: _Group, deadline: float) -> "_Write[Any] | _WriterCommand | None":
        if len(group.writes) >= _LARGEST_GROUP:
            return None
        left = 0.0 if self._is_complete(group) else deadline - time.monotonic()
        try:
            return self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
        except Empty:
            return None

    def _is_complete(self, group: _Group) -> bool:
        """Whether the commit waits for no more writes: there is none, one is urgent, or all lanes
        have one."""
        return not group.writes or group.is_durable or self._window.is_complete(group.lanes)

    def _commit(self, group: _Group) -> None:
        self.timer.begin(time.monotonic())
        try:
            self._transact(group)
        except Exception as error:  # noqa: BLE001 (the thread must live; every caller gets the error)
            self._fail(group, to_store_error(error, self._path))
        self.commits += 1
        ended = time.monotonic()
        self.timer.end(ended)
        self._window.record_commit(ended, len(group.writes), group.lanes)
        self._loop.call_soon_threadsafe(_answer_all, group.writes)

    def _transact(self, group: _Group) -> None:
        connection = self._connection
        self._set_durability(group.is_durable)
        self._write_lock.begin(connection)
        parts = group.split_parts()
        for part in parts:
            failure = self._attempt(part, is_whole=len(parts) == 1)
            if failure:
                self._attempt_each(part, failure)
        if connection.in_transaction:
            connection.execute("COMMIT")

    def _attempt_each(self, part: "list[_Write[Any]]", failure: Exception) -> None:
        """Repeat the writes of a failed part one by one, so that only the faulty one fails."""
        if len(part) == 1:
            part[0].error = failure
            return
        if not self._connection.in_transaction:
            self._write_lock.begin(self._connection)
        for write in part:
            write.error = self._attempt([write], is_whole=False)

    def _attempt(self, part: "list[_Write[Any]]", *, is_whole: bool) -> Exception | None:
        """Do some writes, or all of the transaction; undo them alone if one of them fails."""
        connection = self._connection
        if not is_whole:
            connection.execute("SAVEPOINT part")
        failure = None
        try:
            for write in part:
                write.result = write.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                # A full disk or a damaged file ends the whole transaction: the group fails as one.
                raise
            failure = to_store_error(error, self._path)
            connection.execute("ROLLBACK" if is_whole else "ROLLBACK TO part")
        if not is_whole:
            connection.execute("RELEASE part")
        return failure

    def _set_durability(self, is_full: bool) -> None:
        """FULL syncs the log at every commit; NORMAL leaves that to the next checkpoint."""
        if is_full != self._is_full:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_full else 'NORMAL'}")
            self._is_full = is_full

    def _fail(self, group: _Group, error: Exception) -> None:
        with contextlib.suppress(sqlite3.Error):
            # The transaction may have ended already. If the rollback fails, the next commit reports
            # the reason.
            self._connection.execute("ROLLBACK")
        for write in group.writes:
            write.error = write.error or error

    def _check_for_changes(self) -> None:
        """`data_version` changes when another connection commits, never by commits of this
        connection.
        """
        version = self._read_data_version()
        if version != self._version:
            self._version = version
            self._loop.call_soon_threadsafe(self._on_change)

    def _read_data_version(self) -> int:
        [version] = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)


def _answer_all(writes: "list[_Write[Any]]") -> None:
    for write in writes:
        write.is_answered = True
        if not write.answer.done():
            write.answer.set_result(None)
