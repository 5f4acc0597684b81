"""A coding agent that plays the lines of a file: what stands at the other end in benchmarks.

    fake_agent.py SPEECH LINES PACE_SECONDS

`raw` prints them at once; `claude` and `scripted` begin when they are asked to, in the words of the
one or the other, and tell in their result when they began to print. There is one write for a line.
With a pace, lines come at their times and carry them. It runs alone: `python -I -S`.
"""

import json
import os
import sys
import time

# Stands in the text of a line that is to carry its time.
STAMP = b"0" * 20
_SESSION = "8d5f2b14-6a3c-4e0f-9b7a-1c2d3e4f5a6b"


def main(speech: str, path: str, pace_seconds: float) -> None:
    with open(path, "rb") as file:  # noqa: PTH123 (pathlib is half of the start)
        lines = file.read().splitlines(keepends=True)
    if speech == "raw":
        _play(lines, pace_seconds)
        return
    for raw in sys.stdin.buffer:
        told = json.loads(raw)
        match told["type"]:
            case "control_request":
                answer = {"subtype": "success", "request_id": told["request_id"], "response": {}}
                _print({"type": "control_response", "response": answer})
            case "user":
                _print({"type": "system", "subtype": "init", "session_id": _SESSION,
                        "claude_code_version": "2.2.0"})  # fmt: skip
                _print(_result(_play(lines, pace_seconds)))
            case "hello":
                _print({"type": "ready", "token": _SESSION})
            case "turn":
                _print({"type": "began", "turn": told["key"], "by": "turn"})
                begun = _play(lines, pace_seconds)
                _print({"type": "ended", "turn": told["key"], "status": "completed",
                        "result": str(begun)})  # fmt: skip
            case _:
                pass


def _result(begun: int) -> dict[str, object]:
    return {
        "type": "result",
        "subtype": "success",
        "duration_ms": 1,
        "duration_api_ms": 1,
        "is_error": False,
        "num_turns": 1,
        "session_id": _SESSION,
        "result": str(begun),
    }


def _play(lines: list[bytes], pace_seconds: float) -> int:
    """Print all of them; return when that began."""
    begun = time.monotonic_ns()
    if not pace_seconds:
        for line in lines:
            os.write(1, line)
        return begun
    for number, line in enumerate(lines):
        ahead = begun / 1e9 + number * pace_seconds - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)  # noqa: TID251 (the pace is the thing itself)
        os.write(1, line.replace(STAMP, b"%020d" % time.monotonic_ns(), 1))
    return begun


def _print(told: dict[str, object]) -> None:
    os.write(1, json.dumps(told, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
