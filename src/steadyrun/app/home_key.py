"""What are the fingerprints of a home made with? A key of its own: made once, and never told.

What a process was launched with and on whose account it works is compared by fingerprints. They are
in the record, and without the key nobody finds out what they were made of.
"""

import os
from pathlib import Path

from steadyrun.errors import StoreUnusable
from steadyrun.lib.flock import lock, open_lock

_FILE = "seal"
_BYTES = 32


def load_home_key(home: Path) -> bytes:
    """The key of this home. Whoever needs it first makes it, and all others get that one."""
    file = home / _FILE
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_lock(file)
        try:
            return _read_key(descriptor) or _create_key(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreUnusable(str(error.strerror), path=file) from error


def _create_key(descriptor: int) -> bytes:
    """Somebody else may be about to make it as well: the second one finds it made."""
    lock(descriptor)
    found = _read_key(descriptor)
    if found:
        return found
    key = os.urandom(_BYTES)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, key, 0)
    return key


def _read_key(descriptor: int) -> bytes | None:
    """What is there, unless whoever wrote it was cut off."""
    found = os.pread(descriptor, _BYTES + 1, 0)
    return found if len(found) == _BYTES else None
