"""Plays the steps of a turn. Each function `play_…` plays one kind of step."""

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from steadyrun.providers.scripted.child.input_queue import LONGEST_WAIT_SECONDS, InputQueue
from steadyrun.providers.scripted.child.json_lines import Args, encode_frame, print_frame, write
from steadyrun.providers.scripted.child.schema_sample import build_sample
from steadyrun.providers.scripted.child.script import ScriptedTurn, TurnFailed

FLOOD_BATCH = 100
FILE_POLL_SECONDS = 0.01


class TurnInterrupted(Exception):
    """The turn was interrupted."""


class OpenTurn:
    """The turn that is played. The player makes one for each turn, and its steps change it."""

    def __init__(self, queue: InputQueue, request: ScriptedTurn) -> None:
        self.queue, self.request = queue, request
        self.texts = [request.text] if request.by != "self" else []
        self.result: str | None = None
        self.usage: dict[str, int] = {}
        self.cost_usd: float | None = None
        self.tools = 0

    def poll_input(self, *, is_between: bool = True) -> None:
        """Read new input. Between steps, absorb the offers."""
        self.queue.read_input(0)
        self.check_interrupt()
        for offer in list(self.queue.offers) if is_between else ():
            text = self.queue.offers.pop(offer)
            self.texts.append(text)
            print_frame("absorbed", offer=offer, text=text)

    def check_interrupt(self) -> None:
        if self.queue.must_end(self.request):
            raise TurnInterrupted

    def wait(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        """Wait this long, or until a condition holds. An interrupt ends the wait."""
        end = time.monotonic() + seconds
        while not (until and until()) and (remaining := end - time.monotonic()) > 0:
            self.queue.read_input(min(remaining, LONGEST_WAIT_SECONDS))
            self.check_interrupt()


# -- answers: text, results, and facts about the turn


def play_text(_: OpenTurn, args: Args) -> None:
    print_frame("text", text=args["text"])


def play_delta(turn: OpenTurn, args: Args) -> None:
    for piece in args["pieces"]:
        print_frame("delta", text=piece)
        turn.wait(args["seconds"])
    if args["until"]:
        _wait_for_file(turn, Path(args["until"]))
    print_frame("text", text="".join(args["pieces"]))


def play_thinking(_: OpenTurn, args: Args) -> None:
    print_frame("thinking", text=args["text"])


def play_result(turn: OpenTurn, args: Args) -> None:
    turn.result = args["text"]


def play_structured(turn: OpenTurn, _: Args) -> None:
    schema = turn.request.schema
    if schema is None:
        raise TurnFailed("schema_missing", "structured: expected a turn with a schema, found none")
    try:
        turn.result = json.dumps(build_sample(schema, schema), ensure_ascii=False)
    except (TypeError, LookupError, AttributeError) as error:
        raise TurnFailed("schema_invalid", f"cannot read the schema: {error!r}") from error
    print_frame("text", text=turn.result)


def play_recall(turn: OpenTurn, _: Args) -> None:
    settings = turn.queue.settings
    facts: Args = {"earlier": [text for texts in turn.queue.memory.turns for text in texts]}
    facts |= {"system": settings.system, "model": settings.model, "mode": settings.mode}
    facts["images"] = [
        {"media_type": image["media_type"], "bytes": len(image["data"].rstrip("=")) * 3 // 4}
        for image in turn.request.images
    ]
    print_frame("text", text=json.dumps(facts, ensure_ascii=False))


def play_usage(turn: OpenTurn, args: Args) -> None:
    cost_usd = args["cost_usd"]
    for name, count in args.items():
        if name != "cost_usd" and count is not None:
            turn.usage[name] = turn.usage.get(name, 0) + count
    if cost_usd is not None:
        turn.cost_usd = (turn.cost_usd or 0.0) + cost_usd
    print_frame("usage", usage=turn.usage, cost_usd=turn.cost_usd)
    allowed = turn.queue.settings.max_cost_usd
    if allowed is not None and (turn.cost_usd or 0.0) > allowed:
        raise TurnFailed("max_cost", f"the turn may cost ${allowed} and costs ${turn.cost_usd}")


def play_stats(turn: OpenTurn, args: Args) -> None:
    print_frame("stats", **{**args, "model": args["model"] or turn.queue.settings.model})


def play_image(_: OpenTurn, args: Args) -> None:
    print_frame("image", name=args["name"], media_type=args["media_type"], size_bytes=args["bytes"])


def play_compaction(_: OpenTurn, args: Args) -> None:
    print_frame("compacting", trigger=args["trigger"])
    print_frame("compacted", **args)


def play_retrying(_: OpenTurn, args: Args) -> None:
    print_frame("retrying", **args)


# -- tools, with or without an approval


def play_tool(turn: OpenTurn, args: Args) -> None:
    call = _start_tool(turn, args)
    if not args["leave_open"]:
        turn.wait(args["seconds"])
        _end_tool(turn, call, args, _find_refusal(turn, args["name"]) or args["error"])


def play_approval(turn: OpenTurn, args: Args) -> None:
    call = _start_tool(turn, args)
    error, ends_turn = _find_refusal(turn, args["name"]), False
    is_asked = turn.queue.settings.mode == "default" and args["name"] not in turn.queue.always
    if error is None and is_asked:
        answer = _ask(turn, call, args)
        if answer.get("always"):
            turn.queue.always.add(args["name"])
        error = None if answer["allow"] else f"denied: {answer.get('message', '')}"
        ends_turn = answer.get("ends_turn", False)
    _end_tool(turn, call, args, error)
    if ends_turn:
        raise TurnInterrupted


def _start_tool(turn: OpenTurn, args: Args) -> str:
    allowed = turn.queue.settings.max_turns
    if allowed is not None and turn.tools >= allowed:
        raise TurnFailed("max_turns", f"the turn may use {allowed} tools and needs one more")
    turn.tools += 1
    call = turn.queue.make_id("call")
    print_frame("tool_start", id=call, name=args["name"], input=args["input"])
    return call


def _end_tool(turn: OpenTurn, call: str, args: Args, error: str | None) -> None:
    output = None if error else args["output"]
    print_frame(
        "tool_end", id=call, name=args["name"], input=args["input"], output=output, error=error
    )
    turn.poll_input()


def _find_refusal(turn: OpenTurn, name: str) -> str | None:
    tools, deny = turn.queue.settings.tools, turn.queue.settings.deny
    is_allowed = (tools is None or name in tools) and name not in deny
    return None if is_allowed else f"the tool {name} is not allowed"


def _ask(turn: OpenTurn, call: str, args: Args) -> Args:
    """Ask for approval. If stdin is closed, the answer is a denial."""
    ask, answers, wire = turn.queue.make_id("ask"), turn.queue.answers, turn.queue.reader
    print_frame("ask", id=ask, call=call, name=args["name"], input=args["input"])
    turn.wait(math.inf, lambda: ask in answers or not wire.is_open)
    return answers.get(
        ask, {"allow": False, "message": "no answer is possible, because stdin is closed"}
    )


# -- faults: errors, crashes, and unusual output


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


# -- waits, and steps of the process


def play_wait(turn: OpenTurn, args: Args) -> None:
    turn.wait(args["seconds"])


def play_until(turn: OpenTurn, args: Args) -> None:
    _wait_for_file(turn, Path(args["path"]))


def _wait_for_file(turn: OpenTurn, path: Path) -> None:
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


# The functions by the names of their steps.
PLAY_STEPS: dict[str, Callable[[OpenTurn, Args], None]] = {
    name.removeprefix("play_"): play
    for name, play in list(globals().items())
    if name.startswith("play_")
}
