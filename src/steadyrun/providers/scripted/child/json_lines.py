"""Reads and writes lines of JSON for the scripted CLI."""

import json
import math
import os
import select
import signal
from typing import Any

Args = dict[str, Any]


def print_frame(kind: str, **fields: Any) -> None:
    """Print one frame."""
    write(1, encode_frame(kind, fields))


def encode_frame(kind: str, fields: Args) -> bytes:
    line = json.dumps({"type": kind, **fields}, ensure_ascii=False, allow_nan=False)
    return line.encode("utf-8", "replace") + b"\n"


def write(descriptor: int, data: bytes) -> None:
    """Write all bytes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def decode_json(text: bytes | str) -> Any:
    """Decode strict JSON. Python's own decoder also accepts NaN and 1e999."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_float)


def _refuse_constant(value: str) -> float:
    raise ValueError(f"{value} is not a number in JSON")


def _parse_float(value: str) -> float:
    number = float(value)
    return number if math.isfinite(number) else _refuse_constant(value)


class InputReader:
    """Reads lines from stdin, and notices SIGINT."""

    def __init__(self) -> None:
        self.is_open = True
        self.is_aborted = False
        self._partial: list[bytes] = []
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._abort)

    def read_lines(self, seconds: float | None) -> list[bytes]:
        """Return the lines that arrive within this time, as soon as there are any."""
        watched = [self._wake, 0] if self.is_open else [self._wake]
        readable = select.select(watched, [], [], seconds)[0]
        if self._wake in readable:
            os.read(self._wake, 64)
        return self._read() if 0 in readable else []

    def _read(self) -> list[bytes]:
        data = os.read(0, 1 << 20)
        self.is_open = bool(data)
        # At the end of stdin, a line without a line break counts as a line.
        first, *more = (data or b"\n").split(b"\n")
        self._partial.append(first)
        if not more:
            return []
        lines = [b"".join(self._partial), *more]
        self._partial = [lines.pop()]
        return [line for line in lines if line.strip()]

    def _abort(self, *_: object) -> None:
        self.is_aborted = True
