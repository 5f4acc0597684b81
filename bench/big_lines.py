"""Measures a line of a megabyte against claude-agent-sdk, and checks that 16 MB pass.

By default the SDK refuses a line above 1 MiB and the whole stream fails; its limit is raised here.
"""

from collections.abc import Callable
from pathlib import Path

from bench import agent_lines, contender
from bench.agent_lines import MEGABYTE
from bench.contender import Name, Task
from bench.measure import (
    Failed,
    Rounds,
    Row,
    format_seconds,
    make_scratch,
    measure_steadily,
    run_in_turns,
)

LINES = 100
HUGE_BYTES = 16 * MEGABYTE
_MAX_BUFFER = 64 * MEGABYTE
_ROUNDS = 4
_NAMES: tuple[Name, ...] = ("ours", "sdk")


def rows() -> list[Row]:
    _check_huge()
    return measure_steadily(_measure, _build_rows, controls=["sdk"])


def _check_huge() -> None:
    with make_scratch() as folder:
        saved = agent_lines.build_texts(1, HUGE_BYTES).save(folder)
        contender.drive("ours", Task(str(saved.scripted), 1))
        print(f"big lines: one of {HUGE_BYTES / MEGABYTE:.0f} MB passes")
        try:
            contender.drive("sdk", Task(str(saved.claude), 1))
            print("big lines: the SDK accepts the line without a raised limit")
        except Failed:
            print("big lines: the SDK fails on it, unless its max_buffer_size is raised")


def _measure() -> Rounds:
    with make_scratch() as folder:
        saved = agent_lines.build_texts(LINES, MEGABYTE).save(folder)
        paths = {"ours": saved.scripted, "sdk": saved.claude}
        return run_in_turns(
            {who: _measure_contender(who, paths[who]) for who in _NAMES}, rounds=_ROUNDS
        )


def _measure_contender(who: Name, lines: Path) -> Callable[[], float]:
    order = Task(str(lines), LINES, max_buffer=_MAX_BUFFER)
    return lambda: contender.drive(who, order).cpu / LINES


def _build_rows(found: Rounds) -> list[Row]:
    ours, its = min(found["ours"]), min(found["sdk"])
    name = "big lines: CPU for 1 MB / SDK"
    return [Row(name, format_seconds(ours), format_seconds(its), ours / its, floor=0.4)]
