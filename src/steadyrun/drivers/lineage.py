"""Finds the process of a run that a process descends from.

A keeper adopts every orphan below it (it is a subreaper), so a daemon of an agent stays below its
keeper whatever it does: a new session, a second fork, an empty environment. The keeper is known by
its command line, which other processes cannot change. If keeper and outer process were killed, the
mark in the environment is left.
"""

import os
from pathlib import Path

from steadyrun.drivers.keeper import MARK
from steadyrun.lib.processes.tree import find_in_lineage, read_variable, read_words

# The folder of the home with a directory for each process of a run.
PROCESSES = "processes"
_KEEPER = b"keeper.py"


def find_run_process(pid: int, processes: Path) -> str | None:
    """The id of the process of a run from which `pid` descends, among those with a directory in
    `processes`. None if there is none. `TimeoutError` if its ancestors change all the time."""
    return find_in_lineage(pid, lambda each: _find_process(each, processes))


def read_mark(pid: int) -> str | None:
    """The mark of the process of a run, of any home."""
    return read_variable(pid, MARK) or None


def _find_process(pid: int, processes: Path) -> str | None:
    directory = _find_directory(read_words(pid))
    if directory is not None and _is_same(directory.parent, processes):
        return directory.name
    mark = read_mark(pid)
    is_ours = mark is not None and "/" not in mark and (processes / mark).is_dir()
    return mark if is_ours else None


def _find_directory(words: list[bytes]) -> Path | None:
    """The directory of a keeper or outer process, by its command line (`build_command`)."""
    if len(words) < 5 or words[1:3] != [b"-I", b"-S"]:
        return None
    if os.path.basename(words[-2]) != _KEEPER:  # noqa: PTH119
        return None
    return Path(os.fsdecode(words[-1]))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False
