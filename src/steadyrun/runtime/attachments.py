"""Stores the files of messages as copies in the home, named by the hash of their content.

The sender may change or delete a file; the accepted copy stays. Equal files are stored once.
"""

import errno
import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from steadyrun.errors import FileUnusable, InvalidUsage, StoreFailed, StoreFull, StoreUnusable
from steadyrun.lib.atomic import sync_directory, write_file
from steadyrun.lib.safe_paths import escape_path, make_directory, open_regular
from steadyrun.model.item import Attachment
from steadyrun.model.media import MOST_IMAGES, detect_image_type

ATTACHMENTS = "attachments"
MOST_FILES = 16
LARGEST_FILE_BYTES = 20 * 1024 * 1024
LARGEST_FILES_BYTES = 50 * 1024 * 1024
LONGEST_NAME = 100

_LONGEST_ENDING = 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# A name is printed to terminals and put into prompts: it must not move the cursor, break a line or
# change the direction of text.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def store_files(files: Sequence[Path], home: Path) -> tuple[Attachment, ...]:
    """Copy files into the home; none is copied unless all are acceptable."""
    if len(files) > MOST_FILES:
        raise InvalidUsage(f"expected at most {MOST_FILES} files, found {len(files)}")
    names = [_check_name(file) for file in files]
    with ExitStack() as stack:
        streams = [stack.enter_context(open_regular(file)) for file in files]
        _check_limits(files, streams)
        contents = zip(names, files, streams, strict=True)
        return tuple(_store_file(name, file, stream, home) for name, file, stream in contents)


def find_files(files: Sequence[Attachment], home: Path) -> list[tuple[Attachment, str]]:
    """Find the copies; `FileUnusable` names one that is missing or cannot be read."""
    return [(file, _find_file(file, home)) for file in files]


def _find_file(file: Attachment, home: Path) -> str:
    place = home / file.place
    hint = f"Send it again: {place} is missing or has changed."
    try:
        is_unchanged = _has_right_hash(place)
    except FileUnusable as error:
        raise FileUnusable(file.name, f"its copy {error.problem}", hint=hint) from error
    if not is_unchanged:
        raise FileUnusable(file.name, "its copy is damaged: its hash has changed", hint=hint)
    return str(place)


def _check_name(file: Path) -> str:
    name = file.name
    if not name:
        raise FileUnusable(escape_path(file), "expected a file, found no name")
    if _HARMFUL.search(name):
        hint = "Rename it, or send a copy with another name."
        raise FileUnusable(repr(str(file)), "its name has control characters", hint=hint)
    if len(name) <= LONGEST_NAME:
        return name
    ending = file.suffix if len(file.suffix) <= _LONGEST_ENDING else ""
    return name[: LONGEST_NAME - len(ending)] + ending


def _check_limits(files: Sequence[Path], streams: Sequence[BinaryIO]) -> None:
    sizes = [os.fstat(stream.fileno()).st_size for stream in streams]
    for file, size in zip(files, sizes, strict=True):
        _check_size(file, size)
    if sum(sizes) > LARGEST_FILES_BYTES:
        found = f"expected at most {LARGEST_FILES_BYTES} bytes of files, found {sum(sizes)}"
        raise InvalidUsage(found, hint="Send fewer files, or give their paths in the text.")
    images = sum(
        detect_image_type(os.pread(stream.fileno(), 16, 0)) is not None for stream in streams
    )
    if images > MOST_IMAGES:
        raise InvalidUsage(f"expected at most {MOST_IMAGES} images, found {images}")


def _check_size(file: Path, size: int) -> None:
    if size > LARGEST_FILE_BYTES:
        problem = f"expected at most {LARGEST_FILE_BYTES} bytes, found {size}"
        hint = "Give its path in the text instead."
        raise FileUnusable(escape_path(file), problem, hint=hint)


def _store_file(name: str, file: Path, stream: BinaryIO, home: Path) -> Attachment:
    # The file may have grown since the check.
    content = stream.read(LARGEST_FILE_BYTES + 1)
    _check_size(file, len(content))
    place = f"{ATTACHMENTS}/{hashlib.sha256(content).hexdigest()}"
    try:
        _write(home / place, content)
    except OSError as error:
        raise _to_store_error(error, home / ATTACHMENTS) from error
    return Attachment(name, place, len(content), detect_image_type(content))


def _write(place: Path, content: bytes) -> None:
    """Write the file atomically and durably. A damaged copy is replaced."""
    make_directory(place.parent)
    if is_whole(place):
        sync_directory(place.parent)
    else:
        write_file(place, content)


def is_whole(place: Path) -> bool:
    """Whether this is a copy whose content has the hash that is its name. A link is none."""
    try:
        return place.exists() and not place.is_symlink() and _has_right_hash(place)
    except FileUnusable:
        return False


def _has_right_hash(place: Path) -> bool:
    """Whether the content has the hash that is its name; `FileUnusable` if it cannot be read."""
    # No copy is longer; what is longer has another hash anyway.
    with open_regular(place) as stream:
        content = stream.read(LARGEST_FILE_BYTES + 1)
    return hashlib.sha256(content).hexdigest() == place.name


def _to_store_error(error: OSError, path: Path) -> StoreFailed:
    problem = f"a file cannot be stored: {error.strerror}"
    if error.errno in _FULL:
        return StoreFull(problem, path=path, hint="Free some space there, then try again.")
    hint = "Check that the directory exists and that you may write to it."
    return StoreUnusable(problem, path=path, hint=hint)
