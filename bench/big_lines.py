"""Measures a line of a megabyte against claude-agent-sdk, and checks that 16 MB pass.

By default the SDK refuses a line above 1 MiB and the whole stream fails; its limit is raised here.
"""

from collections.abc import Callable
from pathlib import Path

from bench import agent_lines, contender
from bench.agent_lines import MEGABYTE
from bench.contender import Name, Order
from bench.measure import Failed, Rounds, Row, believed, in_turns, scratch, seconds

LINES = 100
HUGE_BYTES = 16 * MEGABYTE
_MAX_BUFFER = 64 * MEGABYTE
_ROUNDS = 4
_NAMES: tuple[Name, ...] = ("ours", "sdk")


def rows() -> list[Row]:
    _check_huge()
    return believed(_measure, _rows, controls=["sdk"])


def _check_huge() -> None:
    with scratch() as folder:
        saved = agent_lines.texts(1, HUGE_BYTES).save(folder)
        contender.drive("ours", Order(str(saved.scripted), 1))
        print(f"big lines: one of {HUGE_BYTES / MEGABYTE:.0f} MB passes")
        try:
            contender.drive("sdk", Order(str(saved.claude), 1))
            print("big lines: the SDK takes it without being told to")
        except Failed:
            print("big lines: the SDK fails on it, unless its max_buffer_size is raised")


def _measure() -> Rounds:
    with scratch() as folder:
        saved = agent_lines.texts(LINES, MEGABYTE).save(folder)
        paths = {"ours": saved.scripted, "sdk": saved.claude}
        return in_turns({who: _timed(who, paths[who]) for who in _NAMES}, rounds=_ROUNDS)


def _timed(who: Name, lines: Path) -> Callable[[], float]:
    order = Order(str(lines), LINES, max_buffer=_MAX_BUFFER)
    return lambda: contender.drive(who, order).cpu / LINES


def _rows(found: Rounds) -> list[Row]:
    ours, its = min(found["ours"]), min(found["sdk"])
    name = "big lines: CPU for 1 MB / SDK"
    return [Row(name, seconds(ours), seconds(its), ours / its, floor=0.4)]
