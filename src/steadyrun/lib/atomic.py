"""Writes files and links so that a reader sees the old one or the new one, never a part.

The content goes to a new file in the same directory, which is then renamed. Only the owner can read
the files and directories.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_file(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Create or replace the file `path`, readable by its owner only.

    With `is_durable` the file and its name are on the disk when this returns.
    """
    with _open_draft(path) as draft:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            if is_durable:
                stream.flush()
                os.fsync(descriptor)
    if is_durable:
        sync_directory(path.parent)


def make_private_directory(path: Path) -> None:
    """Create a directory and its missing parents, all with mode 0700. `Path.mkdir` would give
    the parents the usual mode, with which other users can read them."""
    if not path.parent.is_dir() and path.parent != path:
        make_private_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def write_link(path: Path, target: Path) -> None:
    """Create or replace the symbolic link `path`."""
    with _open_draft(path) as draft:
        draft.symlink_to(target)


def sync_file(path: Path) -> None:
    """Write the content of a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Write the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _open_draft(path: Path) -> Iterator[Path]:
    """A free name beside `path`. What the block creates there takes the place of `path`; if the
    block fails, it is removed."""
    draft = path.with_name(f".new-{os.urandom(8).hex()}")
    try:
        yield draft
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
