"""Reads the file of a backup: a tar archive with a list of its files and their hashes.

Nothing in it is trusted: a member has one of the known names, is a regular file and has the hash of
the list. No link is followed, in the archive or on the disk.
"""

import errno
import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, BinaryIO

import msgspec
from msgspec import Struct

from steadyrun.errors import FileUnusable
from steadyrun.lib.safe_paths import escape_path
from steadyrun.runtime.attachments import ATTACHMENTS
from steadyrun.runtime.prompt.system import ROLES
from steadyrun.stores.sqlite import DATABASE

LIST = "backup.json"
FORMAT = 1
# The files of a home that are in a backup besides the store, the attachments and the roles.
SETTINGS = ("config.toml", "trusted.json")
CHUNK_BYTES = 1024 * 1024
_LONGEST_LIST_BYTES = 64 * 1024 * 1024
_ALLOWED = re.compile(
    rf"{re.escape(DATABASE)}|config\.toml|trusted\.json"
    rf"|{ATTACHMENTS}/[0-9a-f]{{64}}|{ROLES}/[^/\x00-\x1f]{{1,200}}\.md"
)


class BackupList(Struct, frozen=True):
    """The content of a backup: the hash of each file, by its name in the home."""

    format: int
    version: str
    created_at: datetime
    files: dict[str, str]


class BackupArchive:
    """An open backup whose files were all compared with their hashes."""

    def __init__(self, file: Path, stream: BinaryIO) -> None:
        self.file = file
        self._stream = stream
        self._members = self._read_members()
        self.list = self._read_list()
        self._check_files()

    @property
    def settings(self) -> list[str]:
        """The names of the files besides the store and the attachments."""
        names = sorted(self.list.files)
        return [name for name in names if name != DATABASE and not is_attachment(name)]

    @property
    def attachments(self) -> list[str]:
        return sorted(filter(is_attachment, self.list.files))

    def read(self, name: str) -> bytes:
        with self._open(name) as member:
            return member.read()

    def copy_store(self, target: Path) -> None:
        """Copy the store to a new file, readable by its owner only."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._open(DATABASE) as member, os.fdopen(os.open(target, flags, 0o600), "wb") as file:
            while chunk := member.read(CHUNK_BYTES):
                file.write(chunk)

    def build_error(self, problem: str) -> FileUnusable:
        return FileUnusable(
            escape_path(self.file), problem, hint="Use a file that `steadyrun backup` has made."
        )

    def _read_members(self) -> dict[str, tarfile.TarInfo]:
        try:
            self._tar = tarfile.open(fileobj=self._stream, mode="r:")  # noqa: SIM115 (the stream is closed)
            members = self._tar.getmembers()
        except (tarfile.TarError, OSError, ValueError) as error:
            raise self.build_error(f"is not a backup: {error}") from error
        found: dict[str, tarfile.TarInfo] = {}
        for member in members:
            is_allowed = member.name == LIST or _ALLOWED.fullmatch(member.name)
            if not is_allowed or member.type != tarfile.REGTYPE or member.name in found:
                raise self.build_error(f"has a member {escape_path(member.name)!r}")
            found[member.name] = member
        return found

    def _read_list(self) -> BackupList:
        if LIST not in self._members or self._members[LIST].size > _LONGEST_LIST_BYTES:
            raise self.build_error("is not a backup: it has no list of its files")
        try:
            found = msgspec.json.decode(self.read(LIST), type=BackupList)
        except msgspec.DecodeError as error:
            raise self.build_error(f"is damaged: {error}") from error
        if found.format != FORMAT:
            raise self.build_error(f"has the format {found.format}, expected {FORMAT}")
        return found

    def _check_files(self) -> None:
        names = self._members.keys() - {LIST}
        if names != self.list.files.keys() or DATABASE not in names:
            raise self.build_error("is damaged: its files are not those of its list")
        for name, wanted in self.list.files.items():
            with self._open(name) as member:
                found = compute_hash(member)
            if found != wanted or (is_attachment(name) and not name.endswith(found)):
                raise self.build_error(f"is damaged: {escape_path(name)} has another hash")

    def _open(self, name: str) -> IO[bytes]:
        member = self._tar.extractfile(self._members[name])
        assert member, "it is a regular file"
        return member


def is_attachment(name: str) -> bool:
    return name.startswith(f"{ATTACHMENTS}/")


def compute_hash(stream: IO[bytes]) -> str:
    found = hashlib.sha256()
    while chunk := stream.read(CHUNK_BYTES):
        found.update(chunk)
    return found.hexdigest()


@contextmanager
def open_archive(file: Path) -> Iterator[BackupArchive]:
    """Open a backup and verify all of it; `FileUnusable` if anything is wrong."""
    with open_unlinked(file) as stream:
        try:
            yield BackupArchive(file, stream)
        except tarfile.TarError as error:
            problem = f"is damaged: {error}"
            raise FileUnusable(escape_path(file), problem) from error


def open_unlinked(file: Path) -> BinaryIO:
    """Open a regular file for reading; a link is not followed, `FileUnusable`."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(file, flags)
    except OSError as error:
        found = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise FileUnusable(escape_path(file), f"cannot be read: {found}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileUnusable(escape_path(file), "expected a regular file, found something else")
    return os.fdopen(descriptor, "rb")
