"""A CLI that behaves badly, in the way its first argument names; the second is its directory.

It notes the id of each of its processes in `pids` and says "ready" when all of them are there.
Started as `python -I -S`, so it imports little.
"""

import os
import signal
import sys
from pathlib import Path

LINE_BYTES = 64 << 20
FLOOD_BYTES = 20 << 20


def linger() -> None:
    _note()
    while True:
        signal.pause()


def ignore() -> None:
    """Ignore every signal that can be ignored, also in its child."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    _linger_in_fork()
    _ready_when(1)


def fork_twice() -> None:
    """Start a grandchild in a session of its own, which no process waits for."""
    if os.fork() == 0:
        os.setsid()
        _linger_in_fork()
        os._exit(0)
    _ready_when(1)


def clean() -> None:
    """A child that has neither our environment nor our session."""
    _spawn_clean()
    _ready_when(1)


def close_stdio() -> None:
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    linger()


def flood_stderr() -> None:
    for number in range(FLOOD_BYTES // 1000):
        os.write(2, b"%999d\n" % number)
    _ready_when(0)


def print_long_line() -> None:
    rest = memoryview(b"x" * LINE_BYTES + b"\n")
    while rest:
        rest = rest[os.write(1, rest) :]


def print_without_end() -> None:
    while True:
        os.write(1, b"y" * 65536)


def exit_at_eof() -> None:
    """Ignore SIGINT; exit when stdin is closed."""
    signal.signal(signal.SIGINT, lambda *_: _say(b"ouch\n"))
    _say(b"ready\n")
    while data := os.read(0, 65536):
        _say(data)
    _say(b"eof\n")


def exit_at_interrupt() -> None:
    signal.signal(signal.SIGINT, lambda *_: os._exit(7))
    _say(b"ready\n")
    while data := os.read(0, 65536):
        _say(data)
    _say(b"eof\n")
    linger()


def leave_children() -> None:
    """End by itself, and leave three children of three kinds."""
    _linger_in_fork()
    _spawn_clean()
    if os.fork() == 0:
        os.setsid()
        linger()
    _wait_for_notes(3)
    sys.exit(3)


def run_away() -> None:
    """Be replaced by a child again and again; each lives for a moment only."""
    if os.fork():
        _ready_when(0)
    while os.fork() == 0:
        os.setsid()


def tick() -> None:
    """Print something, again and again."""
    signal.signal(signal.SIGALRM, lambda *_: _say(b"tick\n"))
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    linger()


def _say(data: bytes) -> None:
    os.write(1, data)


def _note() -> None:
    with open("pids", "ab", 0) as notes:  # noqa: PTH123
        notes.write(b"%d\n" % os.getpid())


def _linger_in_fork() -> None:
    if os.fork() == 0:
        linger()


def _spawn_clean() -> None:
    words = ["env", "-i", "setsid", sys.executable, "-I", "-S", __file__, "linger", sys.argv[2]]
    if os.fork() == 0:
        os.execvp("env", words)


def _ready_when(notes: int) -> None:
    """Wait for the others, then say so and stay."""
    _wait_for_notes(notes)
    _say(b"ready\n")
    linger()


def _wait_for_notes(count: int) -> None:
    while count and (not Path("pids").exists() or Path("pids").read_bytes().count(b"\n") < count):
        os.sched_yield()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
