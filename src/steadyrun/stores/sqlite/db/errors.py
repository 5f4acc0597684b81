"""Translates errors of SQLite and of the file system to errors of the store."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from steadyrun.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreUnusable,
)

_ROOM = "Free some space there, then try again. What was acknowledged before is safe."
_COPY = "Put a backup in its place, or move the file away to begin with an empty store."
_PLACE = "Check that the directory exists and that you may write to it (owner, mode, mount)."
# What SQLite reports when a write, or the file it shares with other processes, cannot grow.
_NO_ROOM = {
    sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP,
}  # fmt: skip
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise an error inside the block as an error of the store."""
    try:
        yield
    except (sqlite3.Error, msgspec.DecodeError, OSError) as error:
        raise to_store_error(error, path) from error


def to_store_error(error: Exception, path: Path) -> Exception:
    """The error of the store for an error of SQLite or of the system; any other error stays."""
    if isinstance(error, sqlite3.Error):
        return _translate_sqlite(error, path)
    if isinstance(error, msgspec.DecodeError):
        return StoreCorrupt(f"a row cannot be read: {error}", path=path, hint=_COPY)
    return _translate_system(error, path) if isinstance(error, OSError) else error


def _translate_sqlite(error: sqlite3.Error, path: Path) -> StoreFailed:
    """Name the failure by SQLite's result code; its extended codes keep theirs in the low byte."""
    # Operational and without a code: Python could not decode a stored text.
    is_decoding = isinstance(error, sqlite3.OperationalError)
    uncoded = sqlite3.SQLITE_CORRUPT if is_decoding else sqlite3.SQLITE_ERROR
    code = getattr(error, "sqlite_errorcode", uncoded)
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            failure: StoreFailed = build_busy(path)
        case sqlite3.SQLITE_FULL:
            failure = StoreFull("the device is full", path=path, hint=_ROOM)
        case sqlite3.SQLITE_IOERR if code in _NO_ROOM:
            failure = StoreFull(f"writing failed: {error}", path=path, hint=_ROOM)
        case sqlite3.SQLITE_IOERR:
            failure = StoreUnusable(f"reading or writing failed: {error}", path=path, hint=_PLACE)
        case sqlite3.SQLITE_CORRUPT:
            failure = StoreCorrupt(f"the database is damaged: {error}", path=path, hint=_COPY)
        case sqlite3.SQLITE_NOTADB:
            failure = StoreForeign("is not a database", path=path, hint=_COPY)
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            failure = StoreUnusable(
                f"cannot be opened for writing: {error}", path=path, hint=_PLACE
            )
        case _:
            failure = _translate_statement(error, code, path)
    return failure


def _translate_statement(error: sqlite3.Error, code: int, path: Path) -> StoreFailed:
    """The database is in order, and refuses a statement: it may have other tables than ours."""
    found = str(error)
    is_unknown = found.startswith(("no such table", "no such column")) or "has no column" in found
    if is_unknown or code == sqlite3.SQLITE_CONSTRAINT_CHECK:
        return build_unreleased(path, found)
    return StoreFailed(f"the database refused: {error}", path=path)


def _translate_system(error: OSError, path: Path) -> StoreFailed:
    where = Path(error.filename) if isinstance(error.filename, str) else path
    if error.errno in _FULL:
        return StoreFull("the device is full", path=where, hint=_ROOM)
    return StoreUnusable(f"cannot be used: {error.strerror}", path=where, hint=_PLACE)


def build_unreleased(path: Path, problem: str) -> StoreForeign:
    return StoreForeign(
        f"was made by a version that was never released: {problem}",
        path=path,
        hint="Use the version that made it, restore a backup, or move the file away.",
    )


def build_busy(path: Path) -> StoreBusy:
    return StoreBusy(
        "another process has held the store for too long",
        path=path,
        hint="Try again; if the error persists, a process that uses this home is stopped in the"
        " middle of a write.",
    )
