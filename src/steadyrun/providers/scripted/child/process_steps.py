"""Plays the steps that wait, and those that concern the process."""

import math
import os
import signal
import sys
from pathlib import Path

from steadyrun.providers.scripted.child.open_turn import OpenTurn, PlayStep
from steadyrun.providers.scripted.child.wire import Args, print_frame

FILE_POLL_SECONDS = 0.01


def play_wait(turn: OpenTurn, args: Args) -> None:
    turn.wait(args["seconds"])


def play_until(turn: OpenTurn, args: Args) -> None:
    path = Path(args["path"])
    while not path.exists():
        turn.wait(FILE_POLL_SECONDS)


def play_hang(turn: OpenTurn, args: Args) -> None:
    while args["ignore_interrupt"]:
        signal.pause()
    turn.wait(math.inf)


def play_self_turn(turn: OpenTurn, args: Args) -> None:
    turn.queue.self_turns.append((args["after"], args["steps"]))
    turn.queue.report_background()


def play_background(_: OpenTurn, args: Args) -> None:
    pid = os.fork()
    if pid == 0:
        _become_sleeper(args["seconds"])
    print_frame("note", text=f"background process {pid}")


def play_ignore_sigterm(_: OpenTurn, __: Args) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _become_sleeper(seconds: float) -> None:
    """Replace this process by one that sleeps in a session of its own."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        script = f"import time; time.sleep({seconds})"
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", script])  # noqa: S606
    finally:
        os._exit(127)


PROCESS_STEPS: dict[str, PlayStep] = {
    "wait": play_wait,
    "until": play_until,
    "hang": play_hang,
    "self_turn": play_self_turn,
    "background": play_background,
    "ignore_sigterm": play_ignore_sigterm,
}
