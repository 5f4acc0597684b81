"""Copies the store of a home while it is used, and puts a copy in its place."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from steadyrun.errors import StoreCorrupt, StoreUnusable
from steadyrun.lib.atomic import make_private_directory, sync_file
from steadyrun.store import GENERATION
from steadyrun.stores.sqlite.base import DATABASE
from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.db.errors import translate_errors
from steadyrun.stores.sqlite.db.presence import StorePresence
from steadyrun.stores.sqlite.db.replacement import begin_replacement
from steadyrun.stores.sqlite.db.write_lock import BUSY_TIMEOUT_SECONDS

_DRAFT = ".restore-"
_CLOSED = """
    SELECT process_id FROM processes
    WHERE process_id IN (SELECT value FROM json_each(:processes))
      AND closed_at IS NOT NULL
"""


def copy_store(home: Path, target: Path) -> None:
    """Copy the store of the home at one moment, without blocking its writers, and check the copy.
    `target` is an empty file."""
    database = home / DATABASE
    if not database.exists():
        raise StoreUnusable("does not exist", path=database, hint="There is nothing to copy.")
    with translate_errors(database):
        presence = StorePresence.join(database, busy_seconds=BUSY_TIMEOUT_SECONDS)
        try:
            with closing(schema.connect(database)) as connection:
                schema.refuse_foreign(connection, database)
                connection.execute("VACUUM INTO ?", (str(target),))
        finally:
            presence.leave()
    with translate_errors(target):
        _check(target)
        sync_file(target)


@contextmanager
def open_replacement(home: Path) -> Iterator["StoreReplacement"]:
    """Prepare the replacement of the store. No other process can open it in the block."""
    database = home / DATABASE
    with translate_errors(database):
        make_private_directory(home)
        presence = StorePresence.join_alone(database)
    replacement = StoreReplacement(database)
    try:
        yield replacement
    finally:
        replacement.draft.unlink(missing_ok=True)
        presence.leave()


class StoreReplacement:
    """A new store for a home: its content is written to `draft`, then prepared, then put in place.
    Without `put` nothing is changed."""

    def __init__(self, database: Path) -> None:
        self._database = database
        for left in database.parent.glob(f"{_DRAFT}*"):
            # A restore was killed before it was decided.
            left.unlink()
        self.draft = database.with_name(f"{_DRAFT}{os.urandom(8).hex()}")

    def prepare(self, generation: str) -> None:
        """Check the draft, migrate it, and give it a generation."""
        with translate_errors(self.draft):
            schema.prepare(self.draft)
            _check(self.draft)
            with closing(schema.connect(self.draft)) as connection:
                connection.execute(
                    "INSERT OR REPLACE INTO kv VALUES (?, ?)", (GENERATION, generation.encode())
                )
                # It has no log then, and is one file.
                connection.execute("PRAGMA journal_mode = DELETE")
            sync_file(self.draft)

    def list_closed(self, processes: list[str]) -> set[str]:
        """Those of these processes that have ended for the draft: it has all that they did."""
        values = {"processes": msgspec.json.encode(processes).decode()}
        with translate_errors(self.draft), closing(schema.connect(self.draft)) as connection:
            return {name for [name] in connection.execute(_CLOSED, values)}

    def put(self) -> Path | None:
        """Put the draft in place. Return where the old store is kept, if there was one."""
        with translate_errors(self._database):
            return begin_replacement(self._database, self.draft)


def _check(path: Path) -> None:
    with closing(schema.connect_reader(path)) as connection:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(1)")]
    if found != ["ok"]:
        hint = "Use another backup." if path.name.startswith(_DRAFT) else "Restore a backup."
        raise StoreCorrupt(f"the integrity check found: {found[0]}", path=path, hint=hint)
