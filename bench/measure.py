"""Measures and prints ratios that are reproducible.

Contenders take turns for several rounds, and the best round of each counts: on a shared machine the
least disturbed round is the most reliable. If a control differs much from round to round, the
measurement is repeated, and marked as too noisy if that does not help.
"""

import gc
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

ROUNDS = 5
MOST_SPREAD = 0.30
_ATTEMPTS = 3

Rounds = dict[str, list[float]]
Verdict = Literal["-", "ok", "goal", "FAIL", "too noisy"]


class Failed(Exception):
    """The result differs from what was written, or a contender could not run."""


@dataclass(frozen=True)
class Row:
    """One line of the table. A `floor` must be reached, a `goal` is aimed for."""

    name: str
    ours: str
    peer: str
    ratio: float
    floor: float | None = None
    goal: float | None = None
    is_more_better: bool = False
    is_noisy: bool = False

    @property
    def verdict(self) -> Verdict:
        if self.is_noisy:
            return "too noisy"
        if self.floor is not None and not self._reaches(self.floor):
            return "FAIL"
        if self.goal is not None and self._reaches(self.goal):
            return "goal"
        return "-" if self.floor is None else "ok"

    @property
    def is_failed(self) -> bool:
        return self.verdict in {"FAIL", "too noisy"}

    def limit(self, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{'>=' if self.is_more_better else '<='} {value:g}"

    def _reaches(self, mark: float) -> bool:
        return self.ratio >= mark if self.is_more_better else self.ratio <= mark


def run_in_turns(contenders: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> Rounds:
    """Run every contender once per round, in alternating order."""
    found: Rounds = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders.items())
        for name, run in order if number % 2 == 0 else reversed(order):
            gc.collect()
            found[name].append(run())
    return found


def measure_steadily(
    measure: Callable[[], Rounds], rows: Callable[[Rounds], list[Row]], *, controls: Sequence[str]
) -> list[Row]:
    """Measure until the controls are steady; rows that never get steady are marked."""
    found: Rounds = {}
    for attempt in range(1, _ATTEMPTS + 1):
        found = measure()
        noisy = {name: compute_spread(found[name]) for name in controls}
        noisy = {name: much for name, much in noisy.items() if much > MOST_SPREAD}
        if not noisy:
            return rows(found)
        told = ", ".join(f"{name} by {much:.0%}" for name, much in noisy.items())
        print(f"too noisy (attempt {attempt} of {_ATTEMPTS}): the median round of {told}")
        print("    is above the best one.")
    return [replace(row, is_noisy=True) for row in rows(found)]


def compute_spread(rounds: Sequence[float]) -> float:
    """How far the median round is above the best one, as a fraction of the best one."""
    return statistics.median(rounds) / min(rounds) - 1


def compute_percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def expect(is_so: bool, what: str) -> None:
    """Fail the benchmark unless `is_so`: speed without the right result has no value."""
    if not is_so:
        raise Failed(what)


@contextmanager
def make_scratch() -> Iterator[Path]:
    """A directory that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        yield Path(folder)


def format_seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value * 1e9:.0f} ns"


def format_table(rows: Sequence[Row]) -> str:
    head = ("name", "ours", "peer", "ratio", "floor", "goal", "verdict")
    body = [
        (r.name, r.ours, r.peer, f"{r.ratio:.2f}", r.limit(r.floor), r.limit(r.goal), r.verdict)
        for r in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return "\n".join(_line(cells, widths) for cells in (head, *body))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers, verdict = cells
    first, *middle, _ = widths
    aligned = [cell.rjust(width) for cell, width in zip(numbers, middle, strict=True)]
    return "  ".join([name.ljust(first), *aligned, verdict])


@contextmanager
def use_one_core() -> Iterator[None]:
    """Keep all threads on one core: the cost of waking another core belongs to the machine."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
