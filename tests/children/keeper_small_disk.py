"""Meets a full disk with a keeper, and says what happened in one line.

keeper_small_disk.py PLACE        a directory on a small device of its own
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.children.keeper_driver import Driver, Kept, hostile

RESERVE_BYTES = 4 << 20


def main(place: Path) -> None:
    ballast = place / "ballast"
    story = {"guarded": _below_the_reserve(place / "one", ballast)}
    ballast.unlink()
    story["full"] = _without_any_room(place / "two", ballast)
    os.write(1, json.dumps(story).encode() + b"\n")


def _below_the_reserve(directory: Path, ballast: Path) -> dict[str, Any]:
    kept = hostile(directory, "tick", limits={"free_bytes": RESERVE_BYTES})
    kept.wait_for(b"tick")
    _fill(ballast, leave=RESERVE_BYTES // 2)
    return kept.wait_for_end()


def _without_any_room(directory: Path, ballast: Path) -> dict[str, Any]:
    kept, big = Kept(directory, ["cat"]), b"x" * 100_000 + b"\n"
    with Driver(directory) as driver:
        driver.claim()
        first = driver.frame("first", b"first\n")
        kept.wait_for(b"first\n")
        _fill(ballast, leave=0)
        before = kept.read("sent")
        refused = driver.frame("big", big)
        is_cut_back = kept.read("sent") == before
        ballast.unlink()
        accepted = driver.frame("big", big)
        kept.wait_for(big)
        _fill(ballast, leave=0)
        exited = driver.stop()
    return {
        "answers": [first, refused, accepted],
        "is_cut_back": is_cut_back,
        "is_given_once": kept.read("journal") == b"first\n" + big,
        "exited": exited,
        "exit": kept.wait_for_end(),
    }


def _fill(ballast: Path, *, leave: int) -> None:
    disk = os.statvfs(ballast.parent)
    with ballast.open("wb", 0) as file, contextlib.suppress(OSError):
        size = disk.f_bavail * disk.f_frsize - leave
        while size > 0:
            size -= file.write(b"x" * size)
        while not leave:
            file.write(b"x")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
