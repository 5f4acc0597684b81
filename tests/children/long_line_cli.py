"""A CLI that prints many megabytes: `long_line_cli.py shell|scripted|texts MEGABYTES GATE`.

It prints half of one line, waits until the file GATE exists, and prints the other half. As
`scripted` it speaks the protocol of the scripted provider, and the line is the text of its turn. As
`texts` it prints one text of a megabyte in each line instead.
"""

import json
import os
import sys
import threading
from pathlib import Path

_MEGABYTE = b"x" * (1 << 20)
_TEXT = (b'{"type":"text","text":"', b'"}')


def main(kind: str, megabytes: int, gate: Path) -> None:
    if kind == "shell":
        _print_line(megabytes, gate, b"", b"")
        return
    for raw in sys.stdin.buffer:
        message = json.loads(raw)
        match message["type"]:
            case "hello":
                _print({"type": "ready", "token": "t-1"})
            case "turn":
                _print({"type": "began", "turn": message["key"], "by": "turn"})
                if kind == "texts":
                    _print_all(megabytes, gate, _TEXT[0] + _MEGABYTE + _TEXT[1] + b"\n")
                else:
                    _print_line(megabytes, gate, *_TEXT)
                _print({"type": "ended", "turn": message["key"], "status": "completed",
                        "result": "printed"})  # fmt: skip
            case _:
                pass


def _print_line(megabytes: int, gate: Path, before: bytes, after: bytes) -> None:
    _write(before)
    _print_all(megabytes, gate, _MEGABYTE)
    _write(after + b"\n")


def _print_all(count: int, gate: Path, piece: bytes) -> None:
    for number in range(count):
        if number == count // 2:
            while not gate.exists():
                threading.Event().wait(0.02)
        _write(piece)


def _print(message: dict[str, str]) -> None:
    _write(json.dumps(message).encode() + b"\n")


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
