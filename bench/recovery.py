"""Measures what is lost when the driving process is killed, and how fast events follow a new start.

A process drives a run and is killed with -9 in the middle of it; the agent continues to print. A
new process opens the same home. At the end each line of the journal must be an event of the record,
once and in order. The time counts from the start of the new process, its imports included, to the
first event that had not been stored before the kill.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio

import steadyrun
from bench import agent_lines
from bench.contender_ours import check, read_stored, write_config
from bench.measure import Row, expect, format_seconds, make_scratch
from steadyrun.config import Config, load
from steadyrun.drivers.lineage import PROCESSES
from steadyrun.library import RunHandle
from steadyrun.model.event import StoredEvent, TextFinal

LINES = 4000
PER_SECOND = 1000
LIMIT_SECONDS = 2.0
_ROUNDS = 3
# The first process is killed after this many lines; the agent prints on until the next one starts.
_SEEN_BEFORE = 1000
_WAIT_SECONDS = 60.0


def rows() -> list[Row]:
    took = [_recover() for _ in range(_ROUNDS)]
    print(f"recovery: {_ROUNDS} kills, 0 of {_ROUNDS * LINES} printed events lost, "
          f"first new event after {', '.join(map(format_seconds, took))}")  # fmt: skip
    worst = max(took)
    name = "recovery: first new event after kill -9, worst / limit"
    return [
        Row(
            name,
            format_seconds(worst),
            format_seconds(LIMIT_SECONDS),
            worst / LIMIT_SECONDS,
            floor=1,
        )
    ]


def _recover() -> float:
    with make_scratch() as folder:
        saved, home = agent_lines.build_stamped(LINES).save(folder), folder / "home"
        write_config(home, agent_lines.build_command("scripted", saved.scripted, 1 / PER_SECOND))
        run = _drive_and_kill(home)
        killed_at = _read_now()
        took = _follow_to_end(home, run, killed_at)
        anyio.run(_check, home, run)
    return took


def _drive_and_kill(home: Path) -> str:
    with _start_process("drive", str(home)) as driver:
        assert driver.stdout
        run = driver.stdout.readline().strip()
        expect(driver.stdout.readline() == "enough\n", "the first driver failed")
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait(_WAIT_SECONDS)
    return run


def _follow_to_end(home: Path, run: str, killed_at: datetime) -> float:
    begin = time.monotonic_ns()
    with _start_process("follow", str(home), run, killed_at.isoformat()) as follower:
        assert follower.stdout
        first = follower.stdout.readline()
        expect(bool(first), "no event followed")
        expect(follower.wait(_WAIT_SECONDS) == 0, "the second driver failed")
    return (int(first) - begin) / 1e9


def _start_process(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench.recovery", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def _check(home: Path, run: str) -> None:
    [process] = (home / PROCESSES).iterdir()
    async with steadyrun.open(_load_config(home)) as sr:
        events = await read_stored(await sr.run(run))
    texts = sum(type(each.event) is TextFinal for each in events)
    expect(texts == LINES, f"{texts} of {LINES} lines are in the record")
    check(events, process / "journal")


# -- in the second process


async def _drive(home: str) -> None:
    seen = 0
    async with steadyrun.open(_load_config(Path(home))) as sr:
        run = await sr.start("Go.", provider="scripted", cwd=home)
        print(run.id, flush=True)
        async for event in run.events():
            seen += type(event.event) is TextFinal
            if seen == _SEEN_BEFORE:
                print("enough", flush=True)


async def _follow(home: str, run: str, killed_at: str) -> None:
    async with steadyrun.open(_load_config(Path(home))) as sr:
        handle = await sr.run(run)
        print(await _find_first_new(handle, datetime.fromisoformat(killed_at)), flush=True)
        result = await handle.result()
        expect(result.status == "completed", f"the run is {result.status}: {result.error}")


async def _find_first_new(run: RunHandle, killed_at: datetime) -> int:
    """The time of an event is when a driver read it: an event after the kill is new."""
    async for event in run.events():
        if isinstance(event, StoredEvent) and event.at > killed_at:
            return time.monotonic_ns()
    return 0


def _load_config(home: Path) -> Config:
    return load(home, cwd=home)


def _read_now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    _ROLES: dict[str, Callable[..., Awaitable[None]]] = {"drive": _drive, "follow": _follow}
    anyio.run(_ROLES[sys.argv[1]], *sys.argv[2:])
