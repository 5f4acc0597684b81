"""Who writes to the database? One thread: it gathers what is asked for and commits it together.

Callers wait on the event loop for their own answer. A write that fails leaves the others of its
commit alone; a commit that fails fails them all, and none of them happened.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from steadyrun.stores.sqlite import schema
from steadyrun.stores.sqlite.faults import named, translated
from steadyrun.stores.sqlite.turnstile import Turnstile
from steadyrun.stores.sqlite.window import CommitWindow

T = TypeVar("T")
# Keeps one commit, and so the wait of everybody in it, within bounds.
_LARGEST_GROUP = 512


@dataclass
class _Write(Generic[T]):
    """One thing to do inside a transaction, and where its answer goes."""

    work: Callable[[sqlite3.Connection], T]
    answer: "asyncio.Future[T]"
    is_durable: bool
    lane: str | None
    result: Any = None
    error: Exception | None = None


@dataclass
class _Queue:
    """What waits to be written, shared by the loop and the thread under `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    writes: "deque[_Write[Any]]" = field(default_factory=deque)
    must_look: bool = False
    must_stop: bool = False


class Writer:
    """Runs writes in one thread over one connection, in the order they were asked for."""

    def __init__(self, path: Path, *, patience_seconds: float, heard: Callable[[], None]) -> None:
        """`heard` is called on the event loop when another process has written."""
        self._path = path
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._queue = _Queue()
        self._window = CommitWindow()
        with translated(path):
            self._turnstile = Turnstile(path, patience_seconds=patience_seconds)
            self._connection = schema.connect(path)
            # From here on, whatever another process writes is news. The first look may have to wait
            # for one that is just opening or closing: only after it does the turnstile wait alone.
            self._version = self._data_version()
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
        """Run `work` in a transaction and return once it is committed.

        Begun means carried to its end: a cancelled caller still gets the answer, so that what was
        claimed can be given back.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        answer: asyncio.Future[T] = self._loop.create_future()
        with self._queue.changed:
            self._queue.writes.append(_Write(work, answer, is_durable, lane))
            self._queue.changed.notify()
        with anyio.CancelScope(shield=True):
            await answer
        return answer.result()

    def look(self) -> None:
        """Find out, in the thread, whether another process has written. Callable from anywhere."""
        with self._queue.changed:
            self._queue.must_look = True
            self._queue.changed.notify()

    async def close(self) -> None:
        with self._queue.changed:
            self._queue.must_stop = True
            self._queue.changed.notify()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join)
        self._connection.close()
        self._turnstile.close()

    # -- in the thread

    def _serve(self) -> None:
        while True:
            group = self._next_group()
            if group is None:
                return
            if group:
                self._commit(group)
            else:
                # A look that fails tells nobody anything: the next write meets the same fault.
                with contextlib.suppress(sqlite3.Error):
                    self._look()

    def _next_group(self) -> "list[_Write[Any]] | None":
        """Wait for work. An empty group asks for a look, None for the end."""
        queue = self._queue
        with queue.changed:
            queue.changed.wait_for(lambda: queue.writes or queue.must_look or queue.must_stop)
            queue.must_look = False
            if not queue.writes:
                return None if queue.must_stop else []
            self._gather()
            return [queue.writes.popleft() for _ in range(min(len(queue.writes), _LARGEST_GROUP))]

    def _gather(self) -> None:
        """Let more writes come while the window is open; called with the queue's lock held."""
        deadline = time.monotonic()
        deadline += self._window.width_seconds(deadline)
        while not self._is_complete():
            left = deadline - time.monotonic()
            if left <= 0 or not self._queue.changed.wait(left):
                return

    def _is_complete(self) -> bool:
        queue = self._queue
        return (
            queue.must_stop
            or len(queue.writes) >= _LARGEST_GROUP
            or any(write.is_durable for write in queue.writes)
            or self._window.is_complete(_lanes(queue.writes))
        )

    def _commit(self, group: "list[_Write[Any]]") -> None:
        try:
            self._transact(group)
        except Exception as error:  # noqa: BLE001 (the thread must live; every caller is told)
            self._fail(group, named(error, self._path))
        self._window.committed(time.monotonic(), len(group), _lanes(group))
        self._loop.call_soon_threadsafe(_answer_all, group)

    def _transact(self, group: "list[_Write[Any]]") -> None:
        connection = self._connection
        self._set_durability(any(write.is_durable for write in group))
        self._turnstile.begin(connection)
        for write in group:
            self._attempt(write, is_alone=len(group) == 1)
        if connection.in_transaction:
            connection.execute("COMMIT")

    def _attempt(self, write: "_Write[Any]", *, is_alone: bool) -> None:
        """Do one write; undo it alone if it fails."""
        connection = self._connection
        if not is_alone:
            connection.execute("SAVEPOINT one")
        try:
            write.result = write.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                # A full disk or a damaged file ends the whole transaction: the group fails as one.
                raise
            write.error = named(error, self._path)
            connection.execute("ROLLBACK" if is_alone else "ROLLBACK TO one")
        if not is_alone:
            connection.execute("RELEASE one")

    def _set_durability(self, is_full: bool) -> None:
        """FULL syncs the log at every commit; NORMAL leaves that to the next checkpoint."""
        if is_full != self._is_full:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_full else 'NORMAL'}")
            self._is_full = is_full

    def _fail(self, group: "list[_Write[Any]]", error: Exception) -> None:
        with contextlib.suppress(sqlite3.Error):
            # It may be over already; if not even this works, the next commit says why.
            self._connection.execute("ROLLBACK")
        for write in group:
            write.error = write.error or error

    def _look(self) -> None:
        """`data_version` changes when another connection commits, never by our own commits."""
        version = self._data_version()
        if version != self._version:
            self._version = version
            self._loop.call_soon_threadsafe(self._heard)

    def _data_version(self) -> int:
        [version] = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)


def _lanes(writes: "deque[_Write[Any]] | list[_Write[Any]]") -> set[str]:
    return {write.lane for write in writes if write.lane is not None}


def _answer_all(group: "list[_Write[Any]]") -> None:
    for write in group:
        if write.answer.cancelled():
            continue
        if write.error is not None:
            write.answer.set_exception(write.error)
        else:
            write.answer.set_result(write.result)
