"""Measures the start of commands that only print, against a Python that does nothing."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import (
    Failed,
    Rounds,
    Row,
    expect,
    format_seconds,
    measure_steadily,
    run_in_turns,
)
from steadyrun import __version__

ROUNDS = 30
# The environment is the same for all contenders, and bytecode caches are allowed.
_ENVIRONMENT = {"LANG": "C.UTF-8"}
_PYTHON = Path(sys.executable)
_COMMAND = _PYTHON.with_name("steadyrun")
_COMMANDS = {
    "bare": [str(_PYTHON), "-I", "-c", "pass"],
    "--version": [str(_COMMAND), "--version"],
    "--help": [str(_COMMAND), "--help"],
}


def rows() -> list[Row]:
    _check()
    return measure_steadily(_measure, _build_rows, controls=["bare"])


def _check() -> None:
    if not _COMMAND.exists():
        raise Failed(f"there is no {_COMMAND.name} beside {_PYTHON.name}")
    expect(__version__ in _read_output("--version"), "--version does not say the version")
    expect("steadyrun" in _read_output("--help"), "--help does not help")


def _read_output(name: str) -> str:
    done = subprocess.run(
        _COMMANDS[name], env=_ENVIRONMENT, capture_output=True, text=True, check=False
    )
    expect(done.returncode == 0, f"{name} ended with {done.returncode}")
    return done.stdout


def _measure() -> Rounds:
    return run_in_turns({name: _make_contender(name) for name in _COMMANDS}, rounds=ROUNDS)


def _make_contender(name: str) -> Callable[[], float]:
    def timed() -> float:
        begin = time.perf_counter()
        done = subprocess.run(
            _COMMANDS[name], env=_ENVIRONMENT, stdout=subprocess.DEVNULL, check=False
        )
        took = time.perf_counter() - begin
        expect(done.returncode == 0, f"{name} ended with {done.returncode}")
        return took

    return timed


def _build_rows(found: Rounds) -> list[Row]:
    for name, rounds in found.items():
        print(f"start: {name} best {format_seconds(min(rounds))}, median "
              f"{format_seconds(statistics.median(rounds))}")  # fmt: skip
    return [
        _build_row("--version", found, floor=1.5, goal=1.1),
        _build_row("--help", found, floor=3.5, goal=2.3),
    ]


def _build_row(name: str, found: Rounds, *, floor: float, goal: float) -> Row:
    ours, bare = min(found[name]), min(found["bare"])
    shown = f"start: {name} / python -I -c pass"
    return Row(shown, format_seconds(ours), format_seconds(bare), ours / bare, floor, goal)
