"""Creates and reads the secret key of a home, with which its fingerprints are computed.

The launch settings and the account of a process are compared by fingerprints. These are in the
record, and without the key they do not reveal what they were computed from.
"""

import os
from pathlib import Path

from steadyrun.errors import StoreUnusable
from steadyrun.lib.atomic import make_private_directory
from steadyrun.lib.flock import lock, open_lock

_FILE = "seal"
_BYTES = 32


def load_home_key(home: Path) -> bytes:
    """Return the key of this home. The first caller creates it."""
    file = home / _FILE
    try:
        make_private_directory(home)
        descriptor = open_lock(file)
        try:
            return _read_key(descriptor) or _create_key(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreUnusable(str(error.strerror), path=file) from error


def _create_key(descriptor: int) -> bytes:
    """Create the key under a lock: another process may be doing the same."""
    lock(descriptor)
    found = _read_key(descriptor)
    if found:
        return found
    key = os.urandom(_BYTES)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, key, 0)
    return key


def _read_key(descriptor: int) -> bytes | None:
    """Read the key; None if it is missing or was not written completely."""
    found = os.pread(descriptor, _BYTES + 1, 0)
    return found if len(found) == _BYTES else None
