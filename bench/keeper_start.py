"""Measures what a keeper adds to the start of a program, against a Python that does nothing.

The time counts from the call to the first byte that `/bin/echo` writes to its file, through a
keeper and without one. The difference is what the keeper adds.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import anyio

from bench.measure import Rounds, Row, format_seconds, make_scratch, measure_steadily, run_in_turns
from steadyrun.drivers import keeper_client
from steadyrun.drivers.keeper_client import KeeperLimits, KeeperSpec

ROUNDS = 30
_ECHO = ("/bin/echo", "here")
_BARE = [sys.executable, "-I", "-S", "-c", "pass"]
_LIMIT_SECONDS = 30.0


def rows() -> list[Row]:
    return measure_steadily(_measure, _build_rows, controls=["python"])


def _measure() -> Rounds:
    return run_in_turns(
        {"kept": lambda: anyio.run(_start_kept), "alone": _start_alone, "python": _start_python},
        rounds=ROUNDS,
    )


async def _start_kept() -> float:
    with make_scratch() as folder:
        # The first use of a worker thread creates it; that is not part of a keeper.
        await anyio.to_thread.run_sync(_do_nothing)
        directory = folder / "process"
        spec = KeeperSpec("prc_bench", str(directory), _ECHO, "/", {}, "null", (), KeeperLimits())
        begin = time.perf_counter()
        await keeper_client.start(spec)
        _wait_for_byte(directory / "journal")
        took = time.perf_counter() - begin
        await keeper_client.wait_until_gone(directory)
    return took


def _start_alone() -> float:
    with make_scratch() as folder, (folder / "journal").open("wb") as journal:
        begin = time.perf_counter()
        child = subprocess.Popen(_ECHO, stdin=subprocess.DEVNULL, stdout=journal, env={})
        _wait_for_byte(folder / "journal")
        took = time.perf_counter() - begin
        child.wait(_LIMIT_SECONDS)
    return took


def _start_python() -> float:
    begin = time.perf_counter()
    subprocess.run(_BARE, env={}, check=True)
    return time.perf_counter() - begin


def _do_nothing() -> None:
    pass


def _wait_for_byte(path: Path) -> None:
    until = time.monotonic() + _LIMIT_SECONDS
    while not path.stat().st_size:
        if time.monotonic() > until:
            raise TimeoutError(path)
        os.sched_yield()


def _build_rows(found: Rounds) -> list[Row]:
    kept, alone, python = (min(found[name]) for name in ("kept", "alone", "python"))
    print(
        f"keeper start: echo through a keeper {format_seconds(kept)}, "
        f"by itself {format_seconds(alone)}"
    )
    added = kept - alone
    name = "keeper start: added / python -I -S -c pass"
    return [Row(name, format_seconds(added), format_seconds(python), added / python, floor=5)]
