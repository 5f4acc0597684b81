"""Measures how fast a line reaches its subscriber at 500 lines a second, against claude-agent-sdk.

Every line carries the time at which it is printed. Lines of steadyrun are durable when they arrive;
those of the SDK are in memory only.
"""

from collections.abc import Callable
from pathlib import Path

from bench import agent_lines, contender
from bench.contender import Name, Task
from bench.measure import (
    Rounds,
    Row,
    compute_percentile,
    expect,
    format_seconds,
    make_scratch,
    measure_steadily,
    run_in_turns,
)

LINES = 1000
PER_SECOND = 500
# The first lines reach a program that is still starting.
_WARM_UP = 100
_ROUNDS = 5
_PARTS = (0.5, 0.9)
_NAMES: tuple[Name, ...] = ("ours", "sdk")


def rows() -> list[Row]:
    return measure_steadily(_measure, _build_rows, controls=["sdk p50"])


def _measure() -> Rounds:
    found: Rounds = {_make_key(who, part): [] for who in _NAMES for part in _PARTS}
    with make_scratch() as folder:
        saved = agent_lines.build_stamped(LINES).save(folder)
        paths = {"ours": saved.scripted, "sdk": saved.claude}
        run_in_turns(
            {who: _make_contender(who, paths[who], found) for who in _NAMES}, rounds=_ROUNDS
        )
    return found


def _make_contender(who: Name, lines: Path, found: Rounds) -> Callable[[], float]:
    def timed() -> float:
        order = Task(str(lines), LINES, 1 / PER_SECOND, is_stamped=True)
        seen = contender.drive(who, order)
        expect(len(seen.delays) == LINES, f"{who}: {len(seen.delays)} of {LINES} lines arrived")
        for part in _PARTS:
            found[_make_key(who, part)].append(compute_percentile(seen.delays[_WARM_UP:], part))
        return found[_make_key(who, 0.5)][-1]

    return timed


def _build_rows(found: Rounds) -> list[Row]:
    best = {name: min(rounds) for name, rounds in found.items()}
    rows = []
    for part in _PARTS:
        ours, its = best[_make_key("ours", part)], best[_make_key("sdk", part)]
        floor, goal = (1.2, 0.6) if part == 0.5 else (None, None)
        name = f"latency: line to subscriber / SDK, p{part * 100:.0f}"
        rows.append(Row(name, format_seconds(ours), format_seconds(its), ours / its, floor, goal))
    return rows


def _make_key(who: str, part: float) -> str:
    return f"{who} p{part * 100:.0f}"
