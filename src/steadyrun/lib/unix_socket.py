"""Reaches a unix socket in a directory with a path of any length.

The kernel limits the path of a socket to 107 bytes. The path through the descriptor of the
directory is always short.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET = "socket"


@contextmanager
def shorten_path(directory: Path) -> Iterator[str]:
    """A short path to the file `socket` in `directory`, valid in the block."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
