"""Opens files from untrusted directories: only regular files, and without blocking."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from steadyrun.errors import FileUnusable
from steadyrun.lib.safe_paths import PathScope, escape_path


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


def to_unreadable(path: Path, error: OSError | ValueError) -> FileUnusable:
    problem = error.strerror if isinstance(error, OSError) else str(error)
    return FileUnusable(escape_path(path), f"cannot be read: {problem}")


def _build_wrong_kind(path: Path) -> FileUnusable:
    return FileUnusable(escape_path(path), "expected a regular file, found something else")
