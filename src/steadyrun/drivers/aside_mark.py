"""Marks processes that are set aside: they are not read any more, and their files are kept.

A process belongs to one generation of the store: the file `generation` in its directory names it. A
store that was restored from a backup has another generation, and knows nothing of what the process
did since the backup. Read by that store, its output would become turns that no item asked for.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from steadyrun.drivers.journal.line_guard import MOST_CRASHES, count_crashes
from steadyrun.lib.atomic import write_file

FILE = "aside"
GENERATION = "generation"
_LONGEST_GENERATION = 100
_REASONS = {"store_older": "the store was restored from a backup and is older than its files"}


class AsideMark(Struct, frozen=True):
    """Why a process was set aside: a code, or a sentence."""

    why: str


def write_mark(directory: Path, why: str) -> None:
    write_file(directory / FILE, msgspec.json.encode(AsideMark(why)), is_durable=False)


def has_mark(directory: Path) -> bool:
    return (directory / FILE).exists()


def is_of_generation(directory: Path, generation: str) -> bool:
    """Whether the process was launched for this generation of the store. The first one has no
    name."""
    try:
        with (directory / GENERATION).open(encoding="ascii", errors="replace") as file:
            return file.read(_LONGEST_GENERATION) == generation
    except FileNotFoundError:
        return not generation


def list_set_aside(folder: Path) -> list[tuple[str, str]]:
    """The processes below `folder` that are set aside, each with the reason in words."""
    directories = sorted(filter(Path.is_dir, folder.iterdir())) if folder.is_dir() else []
    found = [(directory.name, _find_reason(directory)) for directory in directories]
    return [(name, reason) for name, reason in found if reason]


def _find_reason(directory: Path) -> str | None:
    if count_crashes(directory) >= MOST_CRASHES:
        return f"{MOST_CRASHES} readers have ended at one long line of its output"
    try:
        mark = msgspec.json.decode((directory / FILE).read_bytes(), type=AsideMark)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        return "for an unknown reason"
    return _REASONS.get(mark.why, mark.why)
