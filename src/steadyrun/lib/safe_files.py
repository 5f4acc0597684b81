"""How is a file opened that somebody else has put there? A regular one only, never waiting."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from steadyrun.errors import FileUnusable
from steadyrun.lib.safe_paths import PathScope, escape_path


def open_regular(path: Path, scope: PathScope | None = None) -> BinaryIO:
    """Open a file for reading; a pipe or a device would hold us up, or do something.

    With a scope it is a path that this has resolved, and no link is followed any more.
    """

    def opener(name: str, flags: int) -> int:
        flags |= os.O_NONBLOCK
        return os.open(name, flags) if scope is None else scope.open(path, flags)

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _build_wrong_kind(path)
        stream = open(path, "rb", opener=opener)  # noqa: SIM115 (closed by whoever asked)
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
