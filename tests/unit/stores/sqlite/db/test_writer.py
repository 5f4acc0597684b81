"""Tests that the writer commits the writes of a group together and answers after the commit."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from steadyrun.errors import ChangeRefused, StoreBusy, StoreFailed
from steadyrun.stores.sqlite.db.commit_window import CommitWindow
from steadyrun.stores.sqlite.db.write_lock import BUSY_TIMEOUT_SECONDS
from steadyrun.stores.sqlite.db.writer import Writer

LONG_SECONDS = 10.0


class OpenWindow(CommitWindow):
    """A window that waits for its regulars, and remembers the size of each commit.

    It waits long, not for ever: a write cannot be cancelled, so a test that fails would hang.
    """

    def __init__(self, regulars: Set[str] = frozenset()) -> None:
        super().__init__()
        self._last_lanes = regulars
        self.commits: list[int] = []
        self._shuts_at = 0.0

    def compute_width(self, now: float) -> float:
        self._shuts_at = now + LONG_SECONDS
        return LONG_SECONDS

    def record_commit(self, now: float, writes: int, lanes: Set[str]) -> None:
        del lanes
        # Nothing is a commit that came about only because the time ran out.
        self.commits.append(writes if now < self._shuts_at else 0)


class WriterHarness:
    """A writer on a table of numbers, and a view of it from outside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
        self.heard = 0
        self.bell = anyio.Event()
        self.writer = Writer(
            path,
            asyncio.get_running_loop(),
            busy_seconds=BUSY_TIMEOUT_SECONDS,
            on_change=self._hear,
        )

    async def add(self, n: int, *, is_durable: bool = True, lane: str | None = None) -> int:
        return await self.writer.write(partial(insert, n=n), is_durable=is_durable, lane=lane)

    def seen(self) -> list[int]:
        """What another connection sees."""
        with closing(sqlite3.connect(self.path)) as connection:
            return [n for [n] in connection.execute("SELECT n FROM t ORDER BY n")]

    def add_from_outside(self, n: int) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            insert(connection, n)

    def _hear(self) -> None:
        self.heard += 1
        self.bell.set()


class Blockade:
    """Work that keeps the thread until it is let go."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self._may_end = threading.Event()

    def work(self, connection: sqlite3.Connection) -> None:
        del connection
        self.has_begun.set()
        assert self._may_end.wait(BUSY_TIMEOUT_SECONDS)

    def end(self) -> None:
        self._may_end.set()


def insert(connection: sqlite3.Connection, n: int) -> int:
    connection.execute("INSERT INTO t VALUES (?)", (n,))
    return n


@asynccontextmanager
async def open_writer(folder: Path) -> AsyncIterator[WriterHarness]:
    """A writer that is closed at the end of the block."""
    with anyio.fail_after(BUSY_TIMEOUT_SECONDS):
        harness = WriterHarness(folder / "test.db")
        try:
            yield harness
        finally:
            await anyio.to_thread.run_sync(harness.writer.close)


async def test_write_returns_after_the_commit(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        for n in range(20):
            assert await harness.add(n, is_durable=n % 2 == 0) == n
            assert harness.seen() == list(range(n + 1))


async def test_no_write_is_answered_while_the_commit_of_the_group_is_open(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        window = harness.writer._window = OpenWindow({"a", "b", "c"})
        blockade, answered = Blockade(), []

        async def add_a() -> None:
            answered.append(await harness.add(1, is_durable=False, lane="a"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(add_a)
            await _let_others_go_first()
            tasks.start_soon(partial(_write, harness, blockade.work, is_durable=True, lane="b"))
            await _until(blockade.has_begun.is_set)
            assert answered == []
            assert harness.seen() == []
            blockade.end()

        assert answered == [1]
        assert harness.seen() == [1]
        assert window.commits == [2]


@pytest.mark.parametrize("error", [ChangeRefused("x", found="y"), ValueError("x"), OSError(5, "x")])
async def test_failed_write_does_not_affect_the_group(tmp_path: Path, error: Exception) -> None:
    def fail_late(connection: sqlite3.Connection) -> None:
        insert(connection, 100)
        raise error

    async with open_writer(tmp_path) as harness:
        window = harness.writer._window = OpenWindow({"1", "2", "3"})
        failures: list[BaseException] = []

        async def fail() -> None:
            try:
                await harness.writer.write(fail_late, is_durable=False, lane="2")
            except Exception as failure:  # noqa: BLE001 (which one is what the test asks)
                failures.append(failure)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(harness.add, 1, is_durable=False, lane="1"))
            tasks.start_soon(fail)
            tasks.start_soon(partial(harness.add, 3, is_durable=False, lane="3"))

        assert window.commits == [3]
        assert harness.seen() == [1, 3]
        [failure] = failures
        assert isinstance(failure, StoreFailed if isinstance(error, OSError) else type(error))


async def test_failed_single_write_changes_nothing(tmp_path: Path) -> None:
    def fail_late(connection: sqlite3.Connection) -> None:
        insert(connection, 100)
        insert(connection, 100)

    async with open_writer(tmp_path) as harness:
        with pytest.raises(StoreFailed):
            await harness.writer.write(fail_late, is_durable=True)
        await harness.add(1)
        assert harness.seen() == [1]


async def test_durable_write_ends_the_wait_of_the_group(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        window = harness.writer._window = OpenWindow({"a", "missing"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(harness.add, 1, is_durable=False, lane="a"))
            await _let_others_go_first()
            assert window.commits == []
            await harness.add(2, is_durable=True, lane="b")

        assert window.commits == [2]
        assert harness.seen() == [1, 2]


async def test_write_of_the_last_expected_lane_ends_the_wait(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        window = harness.writer._window = OpenWindow({"a", "b"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(harness.add, 1, is_durable=False, lane="a"))
            await _let_others_go_first()
            assert window.commits == []
            await harness.add(2, is_durable=False, lane="b")

        assert window.commits == [2]


async def test_single_fast_lane_never_waits(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        window = harness.writer._window = OpenWindow({"a"})
        for n in range(200):
            await harness.add(n, is_durable=False, lane="a")
        assert window.commits == [1] * 200


async def test_writes_are_executed_in_order(tmp_path: Path) -> None:
    order: list[int] = []

    async with open_writer(tmp_path) as harness, anyio.create_task_group() as tasks:
        for n in range(2000):
            work = partial(_note, into=order, n=n)
            tasks.start_soon(partial(_write, harness, work, is_durable=n % 7 == 0))

    assert order == list(range(2000))


async def test_close_finishes_pending_writes(tmp_path: Path) -> None:
    answered: list[int] = []

    async def use(harness: WriterHarness) -> None:
        harness.writer._window = OpenWindow({"missing"})

        async def add(n: int) -> None:
            answered.append(await harness.add(n, is_durable=False, lane="a"))

        async with anyio.create_task_group() as tasks:
            for n in range(1500):
                tasks.start_soon(add, n)
            await _let_others_go_first()
            await anyio.to_thread.run_sync(harness.writer.close)
            assert harness.seen() == list(range(1500))
        assert answered == list(range(1500))

    with anyio.fail_after(BUSY_TIMEOUT_SECONDS):
        await use(WriterHarness(tmp_path / "test.db"))


async def test_writes_run_in_one_thread_outside_the_event_loop(tmp_path: Path) -> None:
    threads: set[int] = set()

    async with open_writer(tmp_path) as harness:
        loop = threading.get_ident()
        async with anyio.create_task_group() as tasks:
            for n in range(50):
                work = partial(_note_thread, into=threads)
                tasks.start_soon(partial(_write, harness, work, is_durable=n % 2 == 0))
        assert len(threads) == 1
        assert loop not in threads


async def test_write_of_a_cancelled_caller_is_committed(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        harness.writer._window = OpenWindow({"a", "b"})
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(harness.add, 1, is_durable=False, lane="a"))
                await _let_others_go_first()
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await harness.add(2, is_durable=False, lane="b")
        assert harness.seen() == [1, 2]


async def test_cancelled_caller_still_gets_the_result(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        harness.writer._window = OpenWindow({"a", "b"})
        answers: list[str] = []

        async def ask() -> None:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                answers.append(
                    await harness.writer.write(lambda _: "yes", is_durable=False, lane="a")
                )
                await anyio.lowlevel.checkpoint()
                answers.append("went on")

        scopes: list[anyio.CancelScope] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await _let_others_go_first()
            scopes[0].cancel()
            await _let_others_go_first()
            assert not answers
            await harness.add(2, is_durable=False, lane="b")
        assert answers == ["yes"]
        assert scopes[0].cancelled_caught


async def test_writes_that_share_a_savepoint_are_undone_without_other_writes(
    tmp_path: Path,
) -> None:
    """Between two durable writes are three that are not, and one of them fails."""

    def fail_late(connection: sqlite3.Connection) -> None:
        insert(connection, 100)
        raise ValueError("x")

    async def fail(harness: WriterHarness) -> None:
        with pytest.raises(ValueError, match="x"):
            await harness.writer.write(fail_late, is_durable=False)

    async with open_writer(tmp_path) as harness:
        window, blockade = OpenWindow(), Blockade()
        harness.writer._window = window
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(_write, harness, blockade.work, is_durable=True))
            await _until(blockade.has_begun.is_set)
            tasks.start_soon(partial(harness.add, 1, is_durable=True))
            tasks.start_soon(partial(harness.add, 2, is_durable=False))
            tasks.start_soon(fail, harness)
            tasks.start_soon(partial(harness.add, 3, is_durable=False))
            tasks.start_soon(partial(harness.add, 4, is_durable=True))
            await _let_others_go_first()
            blockade.end()
        assert window.commits == [1, 5]
        assert harness.seen() == [1, 2, 3, 4]


async def test_loop_of_writes_can_be_cancelled(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        begun = 0
        with anyio.CancelScope() as scope:
            for n in range(1000):
                if n == 3:
                    scope.cancel()
                begun = n + 1
                await harness.add(n)
        assert begun == 4
        assert harness.seen() == [0, 1, 2]


async def test_busy_database_fails_the_group_and_the_writer_continues(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        harness.writer._write_lock._busy_seconds = 0.05
        harness.writer._window = OpenWindow({"1", "2", "3"})
        busy: list[StoreBusy] = []

        async def add(n: int) -> None:
            try:
                await harness.add(n, is_durable=False, lane=str(n))
            except StoreBusy as error:
                busy.append(error)

        with closing(sqlite3.connect(harness.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tasks:
                for n in (1, 2, 3):
                    tasks.start_soon(add, n)
        assert len(busy) == 3
        assert harness.seen() == []

        await harness.add(4)
        assert harness.seen() == [4]


async def test_first_write_of_another_process_is_noticed(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        harness.add_from_outside(1)
        harness.writer.check_for_changes()
        with anyio.fail_after(5):
            await harness.bell.wait()


async def test_writes_of_other_processes_are_noticed_and_own_writes_are_not(tmp_path: Path) -> None:
    async with open_writer(tmp_path) as harness:
        await harness.add(1)
        harness.heard = 0
        for n in range(2, 10):
            await harness.add(n)
            harness.writer.check_for_changes()
        await harness.add(10)
        assert harness.heard == 0

        harness.bell = anyio.Event()
        harness.add_from_outside(11)
        harness.writer.check_for_changes()
        await harness.bell.wait()
        assert harness.heard == 1


async def _write(
    harness: WriterHarness,
    work: Callable[[sqlite3.Connection], None],
    *,
    is_durable: bool,
    lane: str | None = None,
) -> None:
    await harness.writer.write(work, is_durable=is_durable, lane=lane)


def _note(connection: sqlite3.Connection, *, into: list[int], n: int) -> None:
    del connection
    into.append(n)


def _note_thread(connection: sqlite3.Connection, *, into: set[int]) -> None:
    del connection
    into.add(threading.get_ident())


async def _let_others_go_first() -> None:
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await anyio.lowlevel.checkpoint()
