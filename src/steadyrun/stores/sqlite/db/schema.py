"""Creates, opens and migrates the database file."""

import sqlite3
import threading
import time
from collections.abc import Collection
from functools import cache
from pathlib import Path

from steadyrun.errors import StoreForeign, StoreFromFuture, StoreUnusable
from steadyrun.stores.sqlite import migrations
from steadyrun.stores.sqlite.db.errors import build_unreleased

# Marks the file as one of steadyrun ("strn"): no other database is ever migrated.
APPLICATION_ID = 0x7374726E
# STRICT tables came with it.
OLDEST_LIBRARY = (3, 37, 0)
# Batches of events are long; small rows cost little more. Counts only when the file is made.
_PAGE_BYTES = 16384
_LOG_TIMEOUT_SECONDS = 5.0
_WAL_KEPT_BYTES = 64 * 1024 * 1024
# 8 MB: a short log is overwritten while its pages are still in the page cache.
_WAL_PAGES = 500
_MOST_LISTED = 5
_COLUMNS = """
    SELECT tables.name, columns.name
    FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
    WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite_%'
"""
# The columns that the migrations make. To run the migrations for a comparison takes longer than to
# open the store.
COLUMNS = frozenset(
    f"{table}.{column}"
    for table, columns in {
        "agents": "agent_id name provider is_direct removed_at body chain",
        "approvals": "approval_id agent_id run_id about status asked_at body",
        "dedup": "agent_id key item_id expires_at",
        "event_batches": "id agent_id run_id process_id first_seq last_seq tools body",
        "gates": "provider account body",
        "holders": "holder_id kind machine version joined_at",
        "items": (
            "item_id agent_id seq kind text on_lost created_at status delivery attempt "
            "cancel_requested run_id reply started_at settled_at followup before_run tries "
            "error payload"
        ),
        "kv": "key value",
        "lanes": "agent_id status is_paused ready_at holder_id fence last_seq queued",
        "processes": (
            "process_id agent_id provider machine keeper opened_at offset mark_s mark_x mark_r "
            "state state_sent state_offset closed_at seal account"
        ),
        "pruned_events": "agent_id last_seq cursor",
        "runs": (
            "run_id agent_id provider status created_at input_tokens output_tokens "
            "cache_read_tokens cache_write_tokens cost_usd cost_kind body"
        ),
        "sessions": "agent_id provider token body",
    }.items()
    for column in columns.split()
)


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection that begins and ends its transactions itself and may change threads."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    connection.execute("PRAGMA busy_timeout = 5000")
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    connection = connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def prepare(path: Path) -> None:
    """Create the file or apply the migrations that it lacks; refuse the file of another program."""
    _refuse_old_library(path)
    connection = connect(path)
    try:
        refuse_foreign(connection, path)
        is_behind = _read_version(connection) < len(read_migrations())
        if is_behind:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            # Free pages can be cut off the file in slices. Counts only when the file is made.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        if not _has_log(connection):
            _use_log(connection)
        if is_behind:
            _migrate(connection, path)
        _refuse_other_tables(connection, path)
    finally:
        connection.close()


def _has_log(connection: sqlite3.Connection) -> bool:
    """A copy that was made with `VACUUM INTO` has none."""
    [mode] = connection.execute("PRAGMA journal_mode").fetchone()
    return bool(mode == "wal")


def _use_log(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. SQLite does not wait for the locks of this, so we do."""
    limit, pause = time.monotonic() + _LOG_TIMEOUT_SECONDS, threading.Event()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > limit:
                raise
            pause.wait(0.002)
        else:
            return


@cache
def read_migrations() -> tuple[str, ...]:
    """The numbered migrations, in order. Plain files, as keepers need: to ask `importlib.resources`
    for them takes longer than to open the store."""
    files = sorted((Path(migrations.__file__).parent).glob("*.sql"))
    return tuple(file.read_text(encoding="utf-8") for file in files)


def tune_writer(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA busy_timeout = 0")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")


def _refuse_old_library(path: Path) -> None:
    if sqlite3.sqlite_version_info < OLDEST_LIBRARY:
        oldest = ".".join(str(part) for part in OLDEST_LIBRARY)
        raise StoreUnusable(
            f"needs SQLite {oldest} or later; this Python has {sqlite3.sqlite_version}",
            path=path,
            hint="Use a Python that was built with a newer SQLite.",
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    # Two processes may come here at once: the second finds the work done.
    connection.execute("BEGIN EXCLUSIVE")
    try:
        refuse_foreign(connection, path)
        done = _read_version(connection)
        for number, script in enumerate(read_migrations()[done:], start=done + 1):
            _apply(connection, script, path, number)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _apply(connection: sqlite3.Connection, script: str, path: Path, number: int) -> None:
    try:
        for statement in _split_statements(script):
            connection.execute(statement)
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_ERROR:
            raise
        # The tables are not those that the earlier migrations have made.
        raise build_unreleased(path, f"migration {number} failed: {error}") from error


def _refuse_other_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Compare the columns with those of the present version. A file that was made between two
    releases may have the number of a version without its tables."""
    found = frozenset(f"{table}.{column}" for table, column in connection.execute(_COLUMNS))
    if found != COLUMNS:
        facts = [("missing", COLUMNS - found), ("unknown", found - COLUMNS)]
        listed = "; ".join(f"{what}: {_list_some(names)}" for what, names in facts if names)
        raise build_unreleased(path, f"its tables have other columns ({listed})")


def _list_some(names: Collection[str]) -> str:
    rest = len(names) - _MOST_LISTED
    return ", ".join(sorted(names)[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    # In this order: another process may be making the tables and the mark, in one commit, just now.
    [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    [mark] = connection.execute("PRAGMA application_id").fetchone()
    if tables and mark != APPLICATION_ID:
        raise StoreForeign(
            "is a database of another program",
            path=path,
            hint="Point STEADYRUN_HOME at another directory, or move the file away.",
        )
    found, known = _read_version(connection), len(read_migrations())
    if found > known:
        raise StoreFromFuture(path, found=found, known=known)


def _read_version(connection: sqlite3.Connection) -> int:
    [version] = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _split_statements(script: str) -> list[str]:
    statements, text = [], ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            statements.append(text)
            text = ""
    return statements
