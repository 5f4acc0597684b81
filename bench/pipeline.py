"""Measures events a second from a coding agent to a program, against claude-agent-sdk.

steadyrun does the whole work: keeper and journal, framing, Dialect, scrubbing, commit, and a
subscriber that gets what was stored. The SDK keeps everything in memory. Its configuration is the
leanest possible: `query` with a plain prompt, no hooks, tools or permissions, the agent as its
`cli_path`. Both run on asyncio. Wall time begins when the agent begins to print: a late first event
is not left out.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import agent_lines, contender
from bench.agent_lines import DELTAS, Lines, Saved
from bench.contender import Measured, Name, Task
from bench.measure import Rounds, Row, format_seconds, make_scratch, measure_steadily, run_in_turns

LINES = 20_000
_ROUNDS = 5
_NAMES: tuple[Name, ...] = ("ours", "sdk", "raw")


def rows() -> list[Row]:
    durable = _compare("every line durable", agent_lines.build_usual(LINES), floor=3, goal=5)
    mixed = _compare(f"{DELTAS:.0%} deltas", agent_lines.build_usual(LINES, deltas=DELTAS))
    return [*durable, *mixed]


def _compare(
    name: str, lines: Lines, *, floor: float | None = None, goal: float | None = None
) -> list[Row]:
    with make_scratch() as folder:
        saved = lines.save(folder)
        return measure_steadily(
            lambda: _measure(name, saved),
            lambda found: _build_rows(name, found, floor, goal),
            controls=["sdk wall", "raw cpu"],
        )


def _measure(name: str, saved: Saved) -> Rounds:
    seen: dict[Name, list[Measured]] = {who: [] for who in _NAMES}
    run_in_turns({who: _make_contender(who, saved, seen[who]) for who in _NAMES}, rounds=_ROUNDS)
    missing = LINES - min(each.events for each in seen["ours"])
    if missing > 0:
        print(f"pipeline: {name}: a burst is more than we show: up to {missing} deltas left out")
    return {
        f"{who} {what}": [getattr(each, what) / LINES for each in some]
        for who, some in seen.items()
        for what in ("cpu", "wall")
    }


def _make_contender(who: Name, saved: Saved, seen: list[Measured]) -> Callable[[], float]:
    lines: Path = saved.of("claude" if who == "sdk" else "scripted")

    def timed() -> float:
        seen.append(contender.drive(who, Task(str(lines), LINES)))
        return seen[-1].cpu

    return timed


def _build_rows(name: str, found: Rounds, floor: float | None, goal: float | None) -> list[Row]:
    best = {each: min(rounds) for each, rounds in found.items()}
    row = partial(_build_row, name, best)
    rate = {who: 1 / best[f"{who} wall"] for who in ("ours", "sdk")}
    return [
        Row(
            f"pipeline: {name}, events a second / SDK",
            f"{rate['ours']:.0f} /s",
            f"{rate['sdk']:.0f} /s",
            rate["ours"] / rate["sdk"],
            floor,
            goal,
            is_more_better=True,
        ),
        row("sdk", "SDK"),
        row("raw", "read and decode only", goal=None if goal is None else 2),
    ]


def _build_row(
    name: str, best: dict[str, float], who: str, shown: str, goal: float | None = None
) -> Row:
    ours, its = best["ours cpu"], best[f"{who} cpu"]
    shown = f"pipeline: {name}, CPU an event / {shown}"
    return Row(shown, format_seconds(ours), format_seconds(its), ours / its, goal=goal)
