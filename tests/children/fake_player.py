"""Plays the steps of a prompt for the fake CLIs, which read their input at the same time.

A prompt is a list of steps behind `play:`, or anything: then it is repeated. The programs run alone
(`python -I -S`), and find this file by where they are themselves.
"""

import base64
import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

Frame = dict[str, Any]


class Interrupted(Exception):
    """The driver has asked to interrupt the turn."""


class Player:
    """One process: what comes in, and the steps that every CLI can play."""

    def __init__(self) -> None:
        self.text = ""
        self.memory: list[str] = []
        self.is_open = True
        self.is_deaf = False
        self.wants_end = False
        self._rest = b""

    def take(self, told: Frame) -> None:
        """Take a frame that was read from stdin."""
        raise NotImplementedError

    def do_text(self, text: str) -> None:
        """Say something."""
        raise NotImplementedError

    def listen(self, seconds: float | None) -> None:
        """Take what comes within this time; a turn may be interrupted by it."""
        if not self.is_open:
            select.select([], [], [], 0.01 if seconds is None else seconds)
            return
        ready, _, _ = select.select([0], [], [], seconds)
        if not ready:
            return
        chunk = os.read(0, 1 << 16)
        self.is_open = bool(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                self.take(json.loads(line))

    def check(self) -> None:
        if self.wants_end and not self.is_deaf:
            raise Interrupted

    def wait(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.listen(0.01)
            self.check()

    def do(self, step: Any) -> None:
        name, given = (step, None) if isinstance(step, str) else next(iter(step.items()))
        getattr(self, f"do_{name}")(given)

    def do_until(self, path: str) -> None:
        self.wait(lambda: Path(path).exists())

    def do_hang(self, _: None) -> None:
        self.wait(lambda: False)

    def do_deaf(self, _: None) -> None:
        self.is_deaf = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_stderr(self, text: str) -> None:
        os.write(2, text.encode())

    def do_flood(self, size: int) -> None:
        while size > 0:
            size -= os.write(2, b"warning\n" * 1000)

    def do_crash(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def do_fork(self, seconds: float) -> None:
        if os.fork() == 0:
            os.setsid()
            for descriptor in (0, 1, 2):
                os.close(descriptor)
            select.select([], [], [], seconds)
            os._exit(0)

    def do_raw(self, line: str) -> None:
        os.write(1, line.encode() + b"\n")

    def do_bytes(self, line: str) -> None:
        os.write(1, base64.b64decode(line) + b"\n")

    def do_remember(self, text: str) -> None:
        self.memory.append(text)
        self.do_text("remembered")

    def do_recall(self, _: None) -> None:
        self.do_text(" ".join(self.memory) or "nothing")


def steps_of(text: str) -> list[Any]:
    text = text.strip()
    if text.startswith("play:"):
        steps: list[Any] = json.loads(text[5:])
        return steps
    return [{"text": text[:1000]}]


def say(**frame: Any) -> None:
    raw = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    while raw:
        raw = raw[os.write(1, raw) :]
