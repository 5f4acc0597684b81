"""Finds facts about a process and its ancestors in /proc, as they are at one moment."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Ancestors that end while they are read are rare: after so many times, something is wrong.
_MOST_TRIES = 100


def find_in_lineage(pid: int, find: Callable[[int], T | None]) -> T | None:
    """The first result of `find` for the process and its ancestors, the nearest first.

    An ancestor may end before all are read, and its id may be used again. Then its children have
    another parent, and everything is read again. Raises `TimeoutError` if that never ends.
    """
    for _ in range(_MOST_TRIES):
        lineage = list_lineage(pid)
        found = next((found for each in lineage if (found := find(each)) is not None), None)
        if found is not None or list_lineage(pid) == lineage:
            return found
    raise TimeoutError(f"the ancestors of process {pid} do not stay the same")


def list_lineage(pid: int) -> list[int]:
    """The process and its ancestors, the nearest first; empty if the process has ended."""
    lineage: list[int] = []
    # An id can appear twice only if it was used again in between.
    while pid > 0 and pid not in lineage and (stat := _read_stat(pid)):
        lineage.append(pid)
        pid = int(stat[1])
    return lineage


def read_start(pid: int) -> int | None:
    """When the process started, in ticks since the start of the machine; None if it has ended."""
    stat = _read_stat(pid)
    return int(stat[19]) if stat else None


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or by a debugger."""
    return _read_stat(pid)[:1] in ([b"T"], [b"t"])


def read_words(pid: int) -> list[bytes]:
    """The words of the command line; none if this user may not read them."""
    return _read(pid, "cmdline").split(b"\0")[:-1]


def read_variable(pid: int, name: str) -> str | None:
    """A variable of the environment with which the process was started. None if there is none, or
    if this user may not read it."""
    start = name.encode() + b"="
    found = (each for each in _read(pid, "environ").split(b"\0") if each.startswith(start))
    value = next(found, None)
    return None if value is None else os.fsdecode(value.removeprefix(start))


def _read_stat(pid: int) -> list[bytes]:
    """State, parent and so on. The name of the program, before them, may contain anything."""
    return _read(pid, "stat").rpartition(b") ")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
