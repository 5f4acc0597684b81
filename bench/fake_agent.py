"""A coding agent that plays the lines of a file, for benchmarks.

    fake_agent.py SPEECH LINES PACE_SECONDS[@GATE]

`raw` prints the lines at once. `claude` and `scripted` begin when they get a request in their own
format; their result has the time at which they began to print, or, without lines, at which they had
read the request. Each line is one write. With a pace, lines come at their times and carry them. A
gate is a FIFO: lines come after another process has opened it, in the rounds of the file with its
name and `.plan`. It runs as `python -I -S`.
"""

import json
import os
import sys
import time

# Placeholder in a line that carries the time at which it is printed.
STAMP = b"0" * 20
_SESSION = "8d5f2b14-6a3c-4e0f-9b7a-1c2d3e4f5a6b"


def main(speech: str, path: str, pace: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123 (pathlib is half of the start)
        lines = file.read().splitlines(keepends=True)
    if speech == "raw":
        _play(lines, pace, time.monotonic_ns())
        return
    for raw in sys.stdin.buffer:
        read_at = time.monotonic_ns()
        told = json.loads(raw)
        match told["type"]:
            case "control_request":
                answer = {"subtype": "success", "request_id": told["request_id"], "response": {}}
                _print({"type": "control_response", "response": answer})
            case "user":
                _print({"type": "system", "subtype": "init", "session_id": _SESSION,
                        "claude_code_version": "2.2.0"})  # fmt: skip
                _print(_result(_play(lines, pace, read_at)))
            case "hello":
                _print({"type": "ready", "token": _SESSION})
            case "turn":
                _print({"type": "began", "turn": told["key"], "by": "turn"})
                begun = _play(lines, pace, read_at)
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


def _play(lines: list[bytes], pace: str, read_at: int) -> int:
    """Print all lines; return the time at which that began."""
    seconds, _, gate = pace.partition("@")
    begun = time.monotonic_ns() if lines else read_at
    if gate:
        _play_rounds(lines, float(seconds), gate)
    elif float(seconds):
        _play_paced(lines, float(seconds), begun / 1e9)
    else:
        for line in lines:
            os.write(1, line)
    return begun


def _play_rounds(lines: list[bytes], pace: float, gate: str) -> None:
    """Each round has its share of the lines; agents begin it in turn, within one pace."""
    os.close(os.open(gate, os.O_RDONLY))
    with open(f"{gate}.plan") as file:  # noqa: PTH123
        begin, every, rounds = map(float, file.read().split())
    begin += os.getpid() % 1000 / 1000 * pace
    part = len(lines) // int(rounds)
    for number in range(int(rounds)):
        _play_paced(lines[number * part : (number + 1) * part], pace, begin + number * every)


def _play_paced(lines: list[bytes], pace: float, begin: float) -> None:
    for number, line in enumerate(lines):
        ahead = begin + number * pace - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)  # noqa: TID251 (the pace is what is measured)
        os.write(1, line.replace(STAMP, b"%020d" % time.monotonic_ns(), 1))


def _print(told: dict[str, object]) -> None:
    os.write(1, json.dumps(told, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:4])
