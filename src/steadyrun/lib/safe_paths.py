"""Resolves and opens untrusted paths: they stay inside allowed directories and are regular files.
The own files of the home are opened here as well: links among them are not followed.

A path is checked by where it ends, after every link on its way, never by how it is written. A link
can be created between the check and the use; therefore `PathScope.open` follows no links.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from steadyrun.errors import FileUnusable, PathRefused

# The limit of Linux for one call; for a longer path realpath would guess.
LONGEST_PATH_BYTES = 4095

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The errors of a link where links are not followed.
_NOT_FOLLOWED = {errno.ELOOP, errno.ENOTDIR}
# The last one is for a chain of links that is longer than Python can follow.
_UNFOLLOWABLE = (OSError, ValueError, RecursionError)
_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class PathScope:
    """The allowed directories by their real paths; relative paths start in the first one. The
    parents of these directories are trusted, and a hard link is the file itself.
    """

    roots: tuple[Path, ...]

    @classmethod
    def from_directories(cls, cwd: str | Path, *added: str | Path) -> "PathScope":
        """The directories as they are now; `FileUnusable` if one is not a directory."""
        return cls(tuple(resolve_directory(each) for each in (cwd, *added)))

    def resolve(self, path: str) -> Path:
        """The real path, whether it exists or not; `PathRefused` if it is outside all roots."""
        try:
            real = Path(_resolve(path, self.roots[0]))
            root, parts = self._locate(real, named=path)
            _require_no_link(root, parts)
        except _UNFOLLOWABLE as error:
            raise PathRefused(
                escape_path(path), f"cannot be followed: {_describe(error)}"
            ) from error
        return real

    def open(self, real: Path, flags: int, mode: int = 0o666) -> int:
        """Open a result of `resolve`; return its descriptor.

        A link that was created since is `PathRefused`; all other failures are an OSError.
        """
        root, parts = self._locate(real, named=real)
        try:
            return _walk(root, parts, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        except OSError as error:
            if error.errno not in _NOT_FOLLOWED:
                raise
            problem = "a part of it is a link, or is not a directory"
            raise PathRefused(escape_path(real), problem) from error

    def _locate(self, real: Path, *, named: str | Path) -> tuple[Path, tuple[str, ...]]:
        """The root that contains a path, and the parts below it."""
        for root in self.roots:
            # By its parts: /srv/adamant begins like /srv/ada, and is not in it.
            if real.is_relative_to(root) and ".." not in real.parts:
                return root, real.relative_to(root).parts
        raise PathRefused(
            escape_path(named), f"leads out of {', '.join(map(escape_path, self.roots))}"
        )


def resolve_directory(path: str | Path) -> Path:
    """The real path of a directory, else `FileUnusable`."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        is_directory = stat.S_ISDIR(real.stat().st_mode)
    except _UNFOLLOWABLE as error:
        problem = f"there is no such directory: {_describe(error)}"
        hint = "Create it, or choose another one."
        raise FileUnusable(escape_path(path), problem, hint=hint) from error
    if not is_directory:
        raise FileUnusable(escape_path(path), "expected a directory, found something else")
    return real


def open_regular(path: Path, scope: PathScope | None = None) -> BinaryIO:
    """Open a regular file for reading; a pipe or a device could block or have side effects.

    With a scope, `path` is a result of its `resolve`, and no link is followed.
    """

    def opener(name: str, flags: int) -> int:
        flags |= os.O_NONBLOCK
        return os.open(name, flags) if scope is None else scope.open(path, flags)

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _build_wrong_kind(path)
        stream = open(path, "rb", opener=opener)  # noqa: SIM115 (closed by the caller)
    except (OSError, ValueError) as error:
        raise to_unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise _build_wrong_kind(path)
    return stream


def open_own(path: Path, flags: int) -> int:
    """Open a file of the home for writing, created if it is missing, for its owner only.

    A link in its place is `FileUnusable`, and so is anything that is not a regular file: it would
    direct what is written to a place that this program did not choose.
    """
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_CREAT | safe, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _build_link(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _build_wrong_kind(path)
    return descriptor


def make_directory(path: Path) -> None:
    """Make a directory of the home, for its owner only, and the home itself. One that exists is
    kept; a link in its place is `FileUnusable`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if path.is_symlink():
            raise _build_link(path) from None
        if not path.is_dir():
            raise


def to_unreadable(path: Path, error: OSError | ValueError) -> FileUnusable:
    problem = error.strerror if isinstance(error, OSError) else str(error)
    return FileUnusable(escape_path(path), f"cannot be read: {problem}")


def escape_path(path: str | Path) -> str:
    """The path as printable text, also if it is not text or contains terminal sequences."""
    text = str(path)
    end = "" if len(text) <= LONGEST_PATH_BYTES else "…"
    # A whole component: a part of one may be a part of a secret.
    kept = text[:_LONGEST_SHOWN].rpartition("/")[0] if end else text
    return "".join(c if c.isprintable() else _escape(c) for c in kept) + end


def _escape(character: str) -> str:
    # How Python represents a byte that is not UTF-8.
    byte = ord(character) - 0xDC00
    if 0x80 <= byte <= 0xFF:
        return f"\\x{byte:02x}"
    return character.encode("unicode_escape").decode()


def _resolve(path: str, cwd: Path) -> str:
    size = len(os.fsencode(path))
    if not 0 < size <= LONGEST_PATH_BYTES:
        raise ValueError(f"expected 1 to {LONGEST_PATH_BYTES} bytes, found {size}")
    # A zero byte raises ValueError there. Joined as text: a Path would drop significant parts.
    return os.path.realpath(os.path.join(cwd, path))  # noqa: PTH118


def _require_no_link(root: Path, parts: tuple[str, ...]) -> None:
    """Raise for a part that is still a link: realpath treats parts it cannot read as no links, and
    leaves a link that leads to itself.
    """
    here = root
    for part in parts:
        here /= part
        try:
            found = here.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _walk(root: Path, parts: tuple[str, ...], flags: int, mode: int) -> int:
    """Open part by part, each in the directory opened before."""
    if not parts:
        return os.open(root, flags, mode)
    here = os.open(root, _STEP)
    try:
        for part in parts[:-1]:
            below = os.open(part, _STEP, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1], flags, mode, dir_fd=here)
    finally:
        os.close(here)


def _describe(error: OSError | ValueError | RecursionError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _build_link(path: Path) -> FileUnusable:
    problem = "is a symbolic link, which is not followed"
    return FileUnusable(escape_path(path), problem, hint="Put what it points to in its place.")


def _build_wrong_kind(path: Path) -> FileUnusable:
    return FileUnusable(escape_path(path), "expected a regular file, found something else")
