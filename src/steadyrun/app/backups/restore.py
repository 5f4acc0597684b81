"""Restores a home from a backup, when nothing runs on it.

The store is replaced in one step and the old one is kept. Files that the home has are kept, too.
The restored store has a new generation: processes that were started before are set aside.
"""

import os
import secrets
from datetime import datetime
from pathlib import Path

import anyio.to_thread
from msgspec import Struct

from steadyrun.app.backups.backup_archive import BackupArchive, open_archive
from steadyrun.app.daemon import lock_home
from steadyrun.drivers.launcher import KeeperLauncher
from steadyrun.drivers.lineage import PROCESSES
from steadyrun.errors import (
    Conflict,
    DaemonRunning,
    StoreBusy,
    StoreCorrupt,
    StoreForeign,
    StoreFromFuture,
    StoreUnusable,
)
from steadyrun.lib.atomic import make_private_directory, write_file
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.model.ids import ProcessId
from steadyrun.runtime.attachments import is_whole
from steadyrun.stores.sqlite.backup import StoreReplacement, open_replacement

_GENERATION_BYTES = 8
_STOP = "Add --stop, which ends it without waiting for runs, or first: steadyrun down"


class RestoreDocument(Struct, frozen=True):
    """A restore. `replaced` is where the old store is kept; `kept` names files of the home that
    differ from the backup and were not changed. `set_aside` are processes that have done more than
    the store has."""

    file: str
    created_at: datetime
    version: str
    replaced: str | None
    kept: tuple[str, ...]
    set_aside: tuple[ProcessId, ...]


async def restore(home: Path, file: Path, *, stops: bool) -> RestoreDocument:
    """Restore the home, or change nothing. With `stops`, processes of agents are ended; the caller
    has ended the daemon."""
    try:
        async with lock_home(home):
            await anyio.to_thread.run_sync(_check_backup, file)
            await _end_processes(home, stops=stops)
            return await anyio.to_thread.run_sync(_restore, home, file)
    except DaemonRunning as error:
        raise Conflict(error.message, hint=_STOP) from error
    except StoreBusy as error:
        problem = "another process has the store open: a command or a program that uses the library"
        raise Conflict(f"{home}: {problem}", hint="End it, then try again.") from error
    except OSError as error:
        raise StoreUnusable(f"cannot be restored: {error.strerror}", path=home) from error


def _check_backup(file: Path) -> None:
    """Read all of the backup, before anything is ended or changed."""
    with open_archive(file):
        return


async def _end_processes(home: Path, *, stops: bool) -> None:
    with FileWatches() as watches:
        launcher = KeeperLauncher(home, {}, clock=SystemClock(), watches=watches)
        running = await launcher.files.list_running()
        if running and not stops:
            problem = f"{len(running)} processes of agents run on {home}"
            raise Conflict(problem, hint=_STOP)
        for process in running:
            await launcher.end_any(process)


def _restore(home: Path, file: Path) -> RestoreDocument:
    with open_archive(file) as archive, open_replacement(home) as replacement:
        _prepare(archive, replacement)
        processes = _list_processes(home)
        closed = replacement.list_closed(processes)
        kept = [name for name in archive.settings if not _restore_setting(archive, home, name)]
        for name in archive.attachments:
            _restore_attachment(archive, home, name)
        replaced = replacement.put()
        return RestoreDocument(
            str(file),
            archive.list.created_at,
            archive.list.version,
            str(replaced) if replaced else None,
            tuple(kept),
            tuple(ProcessId(name) for name in processes if name not in closed),
        )


def _prepare(archive: BackupArchive, replacement: StoreReplacement) -> None:
    archive.copy_store(replacement.draft)
    try:
        replacement.prepare(secrets.token_hex(_GENERATION_BYTES))
    except (StoreCorrupt, StoreForeign, StoreFromFuture) as error:
        raise archive.build_error(f"has no usable store: {error.problem}") from error


def _list_processes(home: Path) -> list[str]:
    folder = home / PROCESSES
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


def _restore_setting(archive: BackupArchive, home: Path, name: str) -> bool:
    """Write a file that the home lacks; return False if it has another one, which is kept."""
    place, content = home / name, archive.read(name)
    if os.path.lexists(place):
        return place.is_file() and place.read_bytes() == content
    _write(place, content)
    return True


def _restore_attachment(archive: BackupArchive, home: Path, name: str) -> None:
    place = home / name
    if not is_whole(place):
        _write(place, archive.read(name))


def _write(place: Path, content: bytes) -> None:
    make_private_directory(place.parent)
    write_file(place, content)
