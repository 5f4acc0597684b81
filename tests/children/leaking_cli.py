"""A CLI that prints a secret across the places where steadyrun cuts.

`leaking_cli.py KIND NUMBER SHARE`: the secret is in the variable PLANTED_SECRET_NUMBER, and SHARE
hundredths of it are before each cut. The kind `shell` prints plain text and fails; `scripted`
speaks the protocol of the scripted provider.
"""

import json
import os
import sys

# The caps of the test's configuration: of the output of a command, and of a text in a long line.
CAP_BYTES = 6000
TEXT_BYTES = 1 << 19
EXCERPTS = (200, 4096)
WORDS = "ordinary words "


def main(kind: str, number: int, share: int) -> None:
    secret = os.environ[f"PLANTED_SECRET_{number}"]  # noqa: TID251 (a CLI reads its own)
    if kind == "shell":
        _write(1, _plant(secret, share, CAP_BYTES))
        # The end of stderr: a cut comes before its last 200 and 4096 characters.
        for size in reversed(EXCERPTS):
            _write(2, f"{secret} {_fill(size - 1 - len(secret) * share // 100)}\n")
        sys.exit(3)
    for raw in sys.stdin.buffer:
        message = json.loads(raw)
        match message["type"]:
            case "hello":
                _print({"type": "ready", "token": "t-1"})
            case "turn":
                _print({"type": "began", "turn": message["key"], "by": "turn"})
                _print({"type": "tool_start", "id": "c", "name": "Bash",
                        "input": {"command": _plant(secret, share, 120)}})  # fmt: skip
                _print({"type": "tool_end", "id": "c", "name": "Bash",
                        "output": _plant(secret, share, 200)})  # fmt: skip
                _print({"type": "text", "text": _plant(secret, share, TEXT_BYTES, 3 << 20)})
                _print({"type": "note", "text": _plant(secret, share, 160)})
                _print({"type": "ended", "turn": message["key"], "status": "failed",
                        "result": _plant(secret, share, 1024), "error": {"code": "planted",
                        "message": _plant(secret, share, 1000), "hint": secret}})  # fmt: skip
            case _:
                pass


def _plant(secret: str, share: int, limit: int, rest: int = 5000) -> str:
    return f"{_fill(limit - 1 - len(secret) * share // 100)} {secret} {_fill(rest)}"


def _fill(length: int) -> str:
    return (WORDS * (length // len(WORDS) + 1))[: max(0, length)]


def _print(message: "dict[str, object]") -> None:
    _write(1, json.dumps(message) + "\n")


def _write(descriptor: int, text: str) -> None:
    rest = memoryview(text.encode())
    while rest:
        rest = rest[os.write(descriptor, rest) :]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
