"""Tests that the writer commits the writes of a group together and answers after the commit."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Set
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from steadyrun.errors import ChangeRefused, StoreBusy, StoreFailed
from steadyrun.stores.sqlite.db.commit_window import CommitWindow
from steadyrun.stores.sqlite.db.write_lock import PATIENCE_SECONDS
from steadyrun.stores.sqlite.db.writer import Writer

LONG_SECONDS = 10.0


class OpenWindow(CommitWindow):
    """A window that waits for its regulars, and remembers the size of each commit.

    It waits long, not for ever: a write cannot be cancelled, so a test that fails would hang.
    """

    def __init__(self, regulars: Set[str] = frozenset()) -> None:
        super().__init__()
        self._regulars = regulars
        self.commits: list[int] = []
        self._shuts_at = 0.0

    def compute_width(self, now: float) -> float:
        self._shuts_at = now + LONG_SECONDS
        return LONG_SECONDS

    def record_commit(self, now: float, writes: int, lanes: Set[str]) -> None:
        del lanes
        # Nothing is a commit that came about only because the time ran out.
        self.commits.append(writes if now < self._shuts_at else 0)


class Desk:
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
            patience_seconds=PATIENCE_SECONDS,
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
        assert self._may_end.wait(PATIENCE_SECONDS)

    def end(self) -> None:
        self._may_end.set()


def insert(connection: sqlite3.Connection, n: int) -> int:
    connection.execute("INSERT INTO t VALUES (?)", (n,))
    return n


def with_desk(folder: Path, use: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            desk = Desk(folder / "test.db")
            try:
                await use(desk)
            finally:
                await anyio.to_thread.run_sync(desk.writer.close)

    anyio.run(main)


def test_an_answer_comes_after_the_commit(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        for n in range(20):
            assert await desk.add(n, is_durable=n % 2 == 0) == n
            assert desk.seen() == list(range(n + 1))

    with_desk(tmp_path, use)


def test_no_write_is_answered_while_the_commit_of_the_group_is_open(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        window = desk.writer._window = OpenWindow({"a", "b", "c"})
        blockade, answered = Blockade(), []

        async def add_a() -> None:
            answered.append(await desk.add(1, is_durable=False, lane="a"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(add_a)
            await _let_others_go_first()
            tasks.start_soon(partial(_write, desk, blockade.work, is_durable=True, lane="b"))
            await _until(blockade.has_begun.is_set)
            assert answered == []
            assert desk.seen() == []
            blockade.end()

        assert answered == [1]
        assert desk.seen() == [1]
        assert window.commits == [2]

    with_desk(tmp_path, use)


@pytest.mark.parametrize("error", [ChangeRefused("x", found="y"), ValueError("x"), OSError(5, "x")])
def test_a_failing_write_leaves_the_others_of_its_commit_alone(
    tmp_path: Path, error: Exception
) -> None:
    def fail_late(connection: sqlite3.Connection) -> None:
        insert(connection, 100)
        raise error

    async def use(desk: Desk) -> None:
        window = desk.writer._window = OpenWindow({"1", "2", "3"})
        failures: list[BaseException] = []

        async def fail() -> None:
            try:
                await desk.writer.write(fail_late, is_durable=False, lane="2")
            except Exception as failure:  # noqa: BLE001 (which one is what the test asks)
                failures.append(failure)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(desk.add, 1, is_durable=False, lane="1"))
            tasks.start_soon(fail)
            tasks.start_soon(partial(desk.add, 3, is_durable=False, lane="3"))

        assert window.commits == [3]
        assert desk.seen() == [1, 3]
        [failure] = failures
        assert isinstance(failure, StoreFailed if isinstance(error, OSError) else type(error))

    with_desk(tmp_path, use)


def test_a_failing_write_that_is_alone_changes_nothing(tmp_path: Path) -> None:
    def fail_late(connection: sqlite3.Connection) -> None:
        insert(connection, 100)
        insert(connection, 100)

    async def use(desk: Desk) -> None:
        with pytest.raises(StoreFailed):
            await desk.writer.write(fail_late, is_durable=True)
        await desk.add(1)
        assert desk.seen() == [1]

    with_desk(tmp_path, use)


def test_a_durable_write_ends_the_wait_for_company(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        window = desk.writer._window = OpenWindow({"a", "missing"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(desk.add, 1, is_durable=False, lane="a"))
            await _let_others_go_first()
            assert window.commits == []
            await desk.add(2, is_durable=True, lane="b")

        assert window.commits == [2]
        assert desk.seen() == [1, 2]

    with_desk(tmp_path, use)


def test_the_last_regular_ends_the_wait_for_company(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        window = desk.writer._window = OpenWindow({"a", "b"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(desk.add, 1, is_durable=False, lane="a"))
            await _let_others_go_first()
            assert window.commits == []
            await desk.add(2, is_durable=False, lane="b")

        assert window.commits == [2]

    with_desk(tmp_path, use)


def test_a_lone_fast_writer_never_waits(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        window = desk.writer._window = OpenWindow({"a"})
        for n in range(200):
            await desk.add(n, is_durable=False, lane="a")
        assert window.commits == [1] * 200

    with_desk(tmp_path, use)


def test_writes_are_done_in_the_order_they_were_asked_for(tmp_path: Path) -> None:
    order: list[int] = []

    async def use(desk: Desk) -> None:
        async with anyio.create_task_group() as tasks:
            for n in range(2000):
                work = partial(_note, into=order, n=n)
                tasks.start_soon(partial(_write, desk, work, is_durable=n % 7 == 0))

    with_desk(tmp_path, use)

    assert order == list(range(2000))


def test_closing_finishes_what_was_asked_for(tmp_path: Path) -> None:
    answered: list[int] = []

    async def use(desk: Desk) -> None:
        desk.writer._window = OpenWindow({"missing"})

        async def add(n: int) -> None:
            answered.append(await desk.add(n, is_durable=False, lane="a"))

        async with anyio.create_task_group() as tasks:
            for n in range(1500):
                tasks.start_soon(add, n)
            await _let_others_go_first()
            await anyio.to_thread.run_sync(desk.writer.close)
            assert desk.seen() == list(range(1500))
        assert answered == list(range(1500))

    async def main() -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            await use(Desk(tmp_path / "test.db"))

    anyio.run(main)


def test_work_is_done_in_one_thread_that_is_not_the_event_loops(tmp_path: Path) -> None:
    threads: set[int] = set()

    async def use(desk: Desk) -> None:
        loop = threading.get_ident()
        async with anyio.create_task_group() as tasks:
            for n in range(50):
                work = partial(_note_thread, into=threads)
                tasks.start_soon(partial(_write, desk, work, is_durable=n % 2 == 0))
        assert len(threads) == 1
        assert loop not in threads

    with_desk(tmp_path, use)


def test_a_write_whose_caller_is_cancelled_is_carried_to_its_end(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        desk.writer._window = OpenWindow({"a", "b"})
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(desk.add, 1, is_durable=False, lane="a"))
                await _let_others_go_first()
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await desk.add(2, is_durable=False, lane="b")
        assert desk.seen() == [1, 2]

    with_desk(tmp_path, use)


def test_a_cancelled_caller_still_gets_the_answer(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        desk.writer._window = OpenWindow({"a", "b"})
        answers: list[str] = []

        async def ask() -> None:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                answers.append(await desk.writer.write(lambda _: "yes", is_durable=False, lane="a"))
                await anyio.lowlevel.checkpoint()
                answers.append("went on")

        scopes: list[anyio.CancelScope] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await _let_others_go_first()
            scopes[0].cancel()
            await _let_others_go_first()
            assert not answers
            await desk.add(2, is_durable=False, lane="b")
        assert answers == ["yes"]
        assert scopes[0].cancelled_caught

    with_desk(tmp_path, use)


def test_writes_that_share_a_savepoint_are_undone_without_other_writes(tmp_path: Path) -> None:
    """Between two durable writes are three that are not, and one of them fails."""

    def fail_late(connection: sqlite3.Connection) -> None:
        insert(connection, 100)
        raise ValueError("x")

    async def fail(desk: Desk) -> None:
        with pytest.raises(ValueError, match="x"):
            await desk.writer.write(fail_late, is_durable=False)

    async def use(desk: Desk) -> None:
        window, blockade = OpenWindow(), Blockade()
        desk.writer._window = window
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(_write, desk, blockade.work, is_durable=True))
            await _until(blockade.has_begun.is_set)
            tasks.start_soon(partial(desk.add, 1, is_durable=True))
            tasks.start_soon(partial(desk.add, 2, is_durable=False))
            tasks.start_soon(fail, desk)
            tasks.start_soon(partial(desk.add, 3, is_durable=False))
            tasks.start_soon(partial(desk.add, 4, is_durable=True))
            await _let_others_go_first()
            blockade.end()
        assert window.commits == [1, 5]
        assert desk.seen() == [1, 2, 3, 4]

    with_desk(tmp_path, use)


def test_a_loop_of_writes_can_be_cancelled(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        begun = 0
        with anyio.CancelScope() as scope:
            for n in range(1000):
                if n == 3:
                    scope.cancel()
                begun = n + 1
                await desk.add(n)
        assert begun == 4
        assert desk.seen() == [0, 1, 2]

    with_desk(tmp_path, use)


def test_a_busy_store_fails_the_whole_group_and_the_writer_goes_on(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        desk.writer._write_lock._patience_seconds = 0.05
        desk.writer._window = OpenWindow({"1", "2", "3"})
        busy: list[StoreBusy] = []

        async def add(n: int) -> None:
            try:
                await desk.add(n, is_durable=False, lane=str(n))
            except StoreBusy as error:
                busy.append(error)

        with closing(sqlite3.connect(desk.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tasks:
                for n in (1, 2, 3):
                    tasks.start_soon(add, n)
        assert len(busy) == 3
        assert desk.seen() == []

        await desk.add(4)
        assert desk.seen() == [4]

    with_desk(tmp_path, use)


def test_the_very_first_write_of_another_process_is_heard_of(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        desk.add_from_outside(1)
        desk.writer.check_for_changes()
        with anyio.fail_after(5):
            await desk.bell.wait()

    with_desk(tmp_path, use)


def test_writes_of_others_are_heard_of_and_our_own_are_not(tmp_path: Path) -> None:
    async def use(desk: Desk) -> None:
        await desk.add(1)
        desk.heard = 0
        for n in range(2, 10):
            await desk.add(n)
            desk.writer.check_for_changes()
        await desk.add(10)
        assert desk.heard == 0

        desk.bell = anyio.Event()
        desk.add_from_outside(11)
        desk.writer.check_for_changes()
        await desk.bell.wait()
        assert desk.heard == 1

    with_desk(tmp_path, use)


async def _write(
    desk: Desk,
    work: Callable[[sqlite3.Connection], None],
    *,
    is_durable: bool,
    lane: str | None = None,
) -> None:
    await desk.writer.write(work, is_durable=is_durable, lane=lane)


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
