"""Plays the steps that fail: errors, crashes, and unusual output."""

import contextlib
import os
import signal
import time

from steadyrun.providers.scripted.child.open_turn import OpenTurn, PlayStep
from steadyrun.providers.scripted.child.script import TurnFailed
from steadyrun.providers.scripted.child.wire import Args, encode_frame, print_frame, write

FLOOD_BATCH = 100


def play_fail(_: OpenTurn, args: Args) -> None:
    raise TurnFailed(args["code"], args["message"], retryable=args["retryable"])


def play_rate_limit(_: OpenTurn, args: Args) -> None:
    resets_at = args["resets_at"]
    if args["resets_in"] is not None:
        resets_at = time.time() + args["resets_in"]  # noqa: TID251 (a CLI has its own clock)
    raise TurnFailed(
        "rate_limited",
        args["message"],
        status="rate_limited",
        retryable=True,
        resets_at=resets_at,
    )


def play_crash(_: OpenTurn, args: Args) -> None:
    if args["signal"]:
        with contextlib.suppress(OSError):  # two of them cannot be caught
            signal.signal(args["signal"], signal.SIG_DFL)
        os.kill(os.getpid(), args["signal"])
    os._exit(args["code"])


def play_no_newline(_: OpenTurn, args: Args) -> None:
    write(1, encode_frame("text", {"text": args["text"]}).rstrip(b"\n"))
    os._exit(args["code"])


def play_flood(turn: OpenTurn, args: Args) -> None:
    filler = "x" * args["bytes"]
    for start in range(0, args["count"], FLOOD_BATCH):
        numbers = range(start, min(start + FLOOD_BATCH, args["count"]))
        texts = [f"{n} {filler}"[: args["bytes"]] for n in numbers]
        write(1, b"".join(encode_frame("text", {"text": text}) for text in texts))
        if args["stderr"]:
            write(2, "".join(f"{text}\n" for text in texts).encode())
        turn.queue.read_input(0)
        turn.check_interrupt()


def play_stderr(_: OpenTurn, args: Args) -> None:
    write(2, args["text"].encode("utf-8", "replace") + b"\n")


def play_unknown(_: OpenTurn, args: Args) -> None:
    write(1, encode_frame(args["name"], args["fields"] or {}))


def play_garbage(_: OpenTurn, args: Args) -> None:
    write(1, b'{"type":"text","text":"\xff\xfe"}\n' if args["invalid_utf8"] else b"not JSON {\n")


def play_big_line(_: OpenTurn, args: Args) -> None:
    print_frame("text", text="x" * args["bytes"])


FAULT_STEPS: dict[str, PlayStep] = {
    "fail": play_fail,
    "rate_limit": play_rate_limit,
    "crash": play_crash,
    "no_newline": play_no_newline,
    "flood": play_flood,
    "stderr": play_stderr,
    "unknown": play_unknown,
    "garbage": play_garbage,
    "big_line": play_big_line,
}
