"""Writes a backup of a home, also while a daemon runs.

The store is copied first, then the files: all files that are named in the copy are there by then.
"""

import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from steadyrun.app.backups.backup_archive import (
    FORMAT,
    LIST,
    SETTINGS,
    BackupList,
    compute_hash,
    is_attachment,
    open_unlinked,
)
from steadyrun.errors import Conflict, FileUnusable
from steadyrun.lib.atomic import sync_directory
from steadyrun.lib.safe_paths import escape_path
from steadyrun.model.agent import is_role_name
from steadyrun.runtime.attachments import ATTACHMENTS
from steadyrun.runtime.prompt.system import ROLES
from steadyrun.stores.sqlite import DATABASE
from steadyrun.stores.sqlite.backup import copy_store
from steadyrun.version import __version__

_DIGEST_CHARS = 64


class BackupDocument(Struct, frozen=True):
    """A backup that was written. `left_out` names files that are links, or damaged."""

    file: str
    bytes: int
    attachments: int
    settings: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def write_backup(home: Path, file: Path, *, replaces: bool) -> BackupDocument:
    """Write the whole backup or nothing. An existing file is replaced only with `replaces`."""
    if not replaces and os.path.lexists(file):
        raise _build_conflict(file)
    try:
        with _open_draft(file) as copy, _open_draft(file) as packed:
            copy_store(home, copy)
            places = {DATABASE: copy, **{name: home / name for name in _list_files(home)}}
            names = _pack(places, packed)
            _publish(packed, file, replaces=replaces)
            return BackupDocument(
                str(file),
                file.stat().st_size,
                sum(map(is_attachment, names)),
                tuple(name for name in names if not is_attachment(name) and name != DATABASE),
                tuple(name for name in places if name not in names),
            )
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise FileUnusable(escape_path(file), problem) from error


def _pack(places: Mapping[str, Path], packed: Path) -> list[str]:
    """Write the archive; return the names of the files in it."""
    hashes = {name: found for name, place in places.items() if (found := _hash_file(name, place))}
    content = BackupList(FORMAT, __version__, datetime.now(UTC), hashes)
    with packed.open("wb") as target, tarfile.open(fileobj=target, mode="w") as tar:
        _add(tar, LIST, io.BytesIO(msgspec.json.encode(content)))
        for name in hashes:
            with open_unlinked(places[name]) as stream:
                _add(tar, name, stream)
    return list(hashes)


def _hash_file(name: str, place: Path) -> str | None:
    """The hash of a file; None for a link, and for an attached file that is damaged."""
    try:
        with open_unlinked(place) as stream:
            found = compute_hash(stream)
    except FileUnusable:
        return None
    return None if is_attachment(name) and not name.endswith(found) else found


def _add(tar: tarfile.TarFile, name: str, stream: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = stream.seek(0, os.SEEK_END), 0o600
    stream.seek(0)
    tar.addfile(member, stream)


def _list_files(home: Path) -> Iterator[str]:
    """The names of the files to copy; other files in these directories are not of steadyrun."""
    yield from (name for name in SETTINGS if os.path.lexists(home / name))
    for role in _list_folder(home / ROLES):
        if role.endswith(".md") and is_role_name(role.removesuffix(".md")):
            yield f"{ROLES}/{role}"
    for name in _list_folder(home / ATTACHMENTS):
        if len(name) == _DIGEST_CHARS:
            yield f"{ATTACHMENTS}/{name}"


def _list_folder(folder: Path) -> list[str]:
    is_there = folder.is_dir() and not folder.is_symlink()
    return sorted(each.name for each in folder.iterdir()) if is_there else []


@contextmanager
def _open_draft(file: Path) -> Iterator[Path]:
    """An empty private file beside `file`, which is removed at the end."""
    draft = file.with_name(f".new-{os.urandom(8).hex()}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        yield draft
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _publish(packed: Path, file: Path, *, replaces: bool) -> None:
    """Give the archive its name. A link of that name is replaced, not followed."""
    with packed.open("rb") as stream:
        os.fsync(stream.fileno())
    if replaces:
        packed.replace(file)
    else:
        try:
            os.link(packed, file)
        except FileExistsError as error:
            raise _build_conflict(file) from error
    sync_directory(file.parent)


def _build_conflict(file: Path) -> Conflict:
    return Conflict(f"{escape_path(file)} exists already", hint="Name another, or add --force.")
