"""Holds the prompts of the agents: short scripts, each with a mark of its own.

The mark is the last text of a script, so that a record shows which script it belongs to.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

Steps = list[Any]


def says(mark: str) -> Steps:
    return [{"text": mark}]


def works(mark: str) -> Steps:
    tool = {"name": "Read", "output": "x", "seconds": 0.02}
    return [{"text": f"{mark}-1"}, {"tool": tool}, {"text": mark}]


def lasts(mark: str) -> Steps:
    """Take in the messages that are offered during the turn."""
    return [{"text": f"{mark}-1"}, {"wait": 0.25}, {"text": mark}]


def wait_after_last_step(mark: str) -> Steps:
    """What is offered in its last step gets a turn of its own."""
    return [{"text": mark}, {"wait": 0.25}]


def waits_for(gate: Path) -> Callable[[str], Steps]:
    """Wait for the gate in the first step: no message is absorbed before the gate is open."""

    def waits(mark: str) -> Steps:
        return [{"until": str(gate)}, {"text": mark}]

    return waits


def asks(mark: str) -> Steps:
    return [{"approval": {"name": "Write", "output": "written"}}, {"text": mark}]


def crashes(mark: str) -> Steps:
    return [{"text": f"{mark}-1"}, {"crash": 3}]


def is_limited(mark: str) -> Steps:
    announced = {"retrying": {"reason": "rate_limited", "attempt": 1, "delay_ms": 20}}
    return [{"text": f"{mark}-1"}, announced, {"rate_limit": {"resets_in": 0.3}}]


def continue_unprompted(mark: str) -> Steps:
    """Begin an unprompted turn after the end of this one."""
    return [{"self_turn": {"steps": [{"text": f"{mark}-own"}]}}, {"text": mark}]


def wake_later(mark: str) -> Steps:
    """It begins such a turn when nothing has run for a while."""
    return [{"self_turn": {"steps": [{"text": f"{mark}-own"}], "after": 0.15}}, {"text": mark}]


def hangs(mark: str) -> Steps:
    return [{"text": f"{mark}-1"}, "hang"]


def ignore_interrupts(mark: str) -> Steps:
    return [{"text": f"{mark}-1"}, {"hang": {"ignore_interrupt": True}}]


def print_deltas(mark: str) -> Steps:
    """Print many deltas, which are not stored."""
    return [{"delta": {"pieces": ["y" * 3000] * 3, "seconds": 0.03}}, {"text": mark}]


def floods(mark: str) -> Steps:
    return [{"flood": {"count": 200, "bytes": 200}}, {"text": mark}]


def leaves_behind(mark: str) -> Steps:
    """A process that would outlive it by a minute."""
    return [{"background": 60}, {"text": mark}]


def written(steps: Steps) -> str:
    return "script:" + msgspec.json.encode(steps).decode()


def shell(mark: str, trace: str) -> str:
    """The same for a shell: it leaves a trace where it was run."""
    return f"sh -c 'echo {mark} >> {trace}; sleep 0.05; echo {mark}'"
