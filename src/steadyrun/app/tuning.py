"""Tunes memory allocation and garbage collection for a daemon."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# In a daemon a collection starts after this many new objects.
_COLLECT_AT = 20_000
# From malloc.h of glibc: the largest number of heaps.
_M_ARENA_MAX = -8


def share_heap() -> None:
    """Let all threads allocate from one heap. Memory that one thread frees cannot be used by other
    heaps, and the threads of a daemon come and go with the work of its agents."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


@contextmanager
def collect_garbage_rarely() -> Iterator[None]:
    """Collect less often until the block ends. A daemon runs long and has many objects: to search
    all of them after every 700 new ones would take most of its time."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AT, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
