"""Replaces the database file by another one, in one step, and keeps the old file.

The new file first gets the name `steadyrun.restored`: from then on the replacement is decided. A
process that is killed afterwards leaves it to the next process that opens the store. Both need the
exclusive lock of `StorePresence`.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from steadyrun.lib.atomic import sync_directory

LOG_SUFFIXES = ("-wal", "-shm")


def begin_replacement(database: Path, draft: Path) -> Path | None:
    """Replace the database by `draft`, which is complete and has no log. Return where the old file
    is kept; None if there was none."""
    draft.replace(_locate_new(database))
    sync_directory(database.parent)
    return finish_replacement(database)


def is_replacement_open(database: Path) -> bool:
    return _locate_new(database).exists()


def finish_replacement(database: Path) -> Path | None:
    """Carry out a replacement that was decided. Every step may be repeated."""
    new = _locate_new(database)
    if not new.exists():
        return None
    # The same name at every attempt.
    stamp = datetime.fromtimestamp(new.stat().st_mtime, UTC).strftime("%Y%m%dT%H%M%S")
    kept = database.with_name(f"{database.name}.replaced-{stamp}")
    has_old = _keep(database, kept)
    _keep(_add_suffix(database, "-wal"), _add_suffix(kept, "-wal"))
    for suffix in LOG_SUFFIXES:
        # SQLite would apply the log of the old file to the new one.
        _add_suffix(database, suffix).unlink(missing_ok=True)
    sync_directory(database.parent)
    new.replace(database)
    sync_directory(database.parent)
    return kept if has_old else None


def _locate_new(database: Path) -> Path:
    return database.with_suffix(".restored")


def _add_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _keep(file: Path, kept: Path) -> bool:
    """Give the file a second name; return whether it has one."""
    if not os.path.lexists(kept) and os.path.lexists(file):
        os.link(file, kept, follow_symlinks=False)
    return os.path.lexists(kept)
