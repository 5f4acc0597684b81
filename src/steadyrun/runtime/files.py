"""How is a file opened that somebody else has put there? A regular one only, never waiting."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from steadyrun.errors import FileUnusable


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe or a device would hold us up, or do something."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _wrong_kind(path)
        stream = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 (see opener)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise _wrong_kind(path)
    return stream


def unreadable(path: Path, error: OSError | ValueError) -> FileUnusable:
    problem = error.strerror if isinstance(error, OSError) else str(error)
    return FileUnusable(shown(path), f"cannot be read: {problem}")


def shown(path: Path) -> str:
    """The path as a text, also if it is none."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _wrong_kind(path: Path) -> FileUnusable:
    return FileUnusable(shown(path), "expected a regular file, found something else")


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)
