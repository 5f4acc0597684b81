"""Tests that write transactions begin in turn, and that waiting for one ends."""

import select
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from steadyrun.errors import StoreBusy
from steadyrun.stores.sqlite.db.write_lock import WriteLock

CHILD = Path(__file__).parents[4] / "children" / "hold_lock.py"
SHORT_SECONDS = 0.05
PATIENCE_SECONDS = 30.0


class Place:
    """A database and its turnstile."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "test.db"
        self.turnstile = folder / "test.turnstile"
        with closing(self.connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE t (n)")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.database, isolation_level=None, timeout=0, check_same_thread=False
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_begin_starts_a_write_transaction(place: Place) -> None:
    with _turnstile(place) as turnstile, closing(place.connect()) as connection:
        turnstile.begin(connection)

        assert connection.in_transaction
        with closing(place.connect()) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("BEGIN IMMEDIATE")


def test_busy_database_is_reported_and_the_lock_is_released(place: Place) -> None:
    with (
        closing(place.connect()) as writer,
        closing(place.connect()) as connection,
        _turnstile(place, SHORT_SECONDS) as turnstile,
    ):
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy) as refused:
            turnstile.begin(connection)
        assert refused.value.retryable
        assert not connection.in_transaction
        writer.execute("COMMIT")

        with _turnstile(place) as other:
            other.begin(connection)
        assert connection.in_transaction


def test_busy_write_lock_is_reported_and_can_be_retried(place: Place) -> None:
    with (
        closing(place.connect()) as connection,
        _turnstile(place, SHORT_SECONDS) as turnstile,
    ):
        with _holding(place.turnstile), pytest.raises(StoreBusy):
            turnstile.begin(connection)
        assert not connection.in_transaction

        turnstile.begin(connection)
        assert connection.in_transaction


def test_killed_process_releases_the_write_lock(place: Place) -> None:
    with closing(place.connect()) as connection, _turnstile(place) as turnstile:
        with _holding(place.turnstile) as child:
            child.kill()
            child.wait(PATIENCE_SECONDS)

        turnstile.begin(connection)

        assert connection.in_transaction


def test_write_lock_is_released_after_the_transaction_has_begun(place: Place) -> None:
    """Passing is for beginning only: the next one waits for the database, in front of the queue."""
    with closing(place.connect()) as connection, _turnstile(place) as turnstile:
        turnstile.begin(connection)

        # It says that it has the lock, or this raises.
        with _holding(place.turnstile):
            assert connection.in_transaction


def test_other_error_than_busy_is_raised_at_once(place: Place) -> None:
    with closing(place.connect()) as connection, _turnstile(place) as turnstile:
        turnstile.begin(connection)

        with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
            turnstile.begin(connection)

        connection.execute("ROLLBACK")
        turnstile.begin(connection)
        assert connection.in_transaction


@contextmanager
def _turnstile(place: Place, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[WriteLock]:
    with closing(WriteLock(place.database, busy_seconds=patience_seconds)) as turnstile:
        yield turnstile


@contextmanager
def _holding(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the lock on `path`."""
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as child:
        assert child.stdout is not None
        try:
            assert select.select([child.stdout], [], [], PATIENCE_SECONDS)[0]
            assert child.stdout.readline() == b"held\n"
            yield child
        finally:
            child.kill()
