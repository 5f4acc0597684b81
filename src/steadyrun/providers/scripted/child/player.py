"""Plays one turn of a script, from its beginning to its end."""

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
from steadyrun.providers.scripted.child.schema_sample import build_sample
from steadyrun.providers.scripted.child.script import ScriptedTurn, TurnFailed, find_steps
from steadyrun.providers.scripted.child.wire import Args, encode_frame, print_frame, write

FLOOD_BATCH = 100
FILE_POLL_SECONDS = 0.01


class TurnInterrupted(Exception):
    """The turn was interrupted."""


class Player:
    """Plays one turn. `cli.main` makes a player for each turn and calls `run`.

    The turn begins, plays its steps in order, and ends as completed, failed, rate limited or
    cancelled. Each method `do_…` plays the step of that name.
    """

    def __init__(self, queue: InputQueue, turn: ScriptedTurn) -> None:
        self.queue, self.turn = queue, turn
        self.texts = [turn.text] if turn.by != "self" else []
        self.result: str | None = None
        self.usage: dict[str, int] = {}
        self.cost_usd: float | None = None
        self.tools = 0

    def run(self) -> None:
        """Print `began`, play the steps, store the texts, and print `ended`."""
        offered = self.turn.text if self.turn.by == "offer" else None
        print_frame("began", turn=self.turn.id, by=self.turn.by, text=offered)
        status, error = self._run_guarded(self._play)
        if status == "cancelled":
            for offer in list(self.queue.offers):
                self.queue.return_offer(offer, "interrupted")
        kept, problem = self._run_guarded(self._remember)
        if problem:
            status, error = kept, problem
        account = {"usage": self.usage or None, "cost_usd": self.cost_usd}
        print_frame(
            "ended", turn=self.turn.id, status=status, result=self.result, error=error, **account
        )

    def _run_guarded(self, act: Callable[[], None]) -> tuple[str, Args | None]:
        try:
            act()
        except TurnInterrupted:
            return "cancelled", None
        except TurnFailed as failed:
            return failed.status, failed.fact
        return "completed", None

    def _play(self) -> None:
        memory = self.queue.memory
        if memory.problem:
            raise memory.problem
        steps = find_steps(self.turn, self.queue.settings.script, len(memory.turns))
        for n, (name, args) in enumerate(steps):
            self._poll_input(is_between=n > 0)
            getattr(self, f"do_{name}")(args)

    def _remember(self) -> None:
        if self.texts:
            self.queue.memory.add(self.texts)

    def _poll_input(self, *, is_between: bool = True) -> None:
        """Read new input. Between steps, absorb the offers."""
        self.queue.read_input(0)
        self._check_interrupt()
        for offer in list(self.queue.offers) if is_between else ():
            text = self.queue.offers.pop(offer)
            self.texts.append(text)
            print_frame("absorbed", offer=offer, text=text)

    def _check_interrupt(self) -> None:
        if self.queue.must_end(self.turn):
            raise TurnInterrupted

    def _wait(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        end = time.monotonic() + seconds
        while not (until and until()) and (remaining := end - time.monotonic()) > 0:
            self.queue.read_input(min(remaining, LONGEST_WAIT_SECONDS))
            self._check_interrupt()

    # -- text

    def do_text(self, args: Args) -> None:
        print_frame("text", text=args["text"])

    def do_delta(self, args: Args) -> None:
        for piece in args["pieces"]:
            print_frame("delta", text=piece)
            self._wait(args["seconds"])
        print_frame("text", text="".join(args["pieces"]))

    def do_thinking(self, args: Args) -> None:
        print_frame("thinking", text=args["text"])

    def do_result(self, args: Args) -> None:
        self.result = args["text"]

    def do_structured(self, _: Args) -> None:
        schema = self.turn.schema
        if schema is None:
            raise TurnFailed(
                "schema_missing", "structured: expected a turn with a schema, found none"
            )
        try:
            self.result = json.dumps(build_sample(schema, schema), ensure_ascii=False)
        except (TypeError, LookupError, AttributeError) as error:
            raise TurnFailed("schema_invalid", f"cannot read the schema: {error!r}") from error
        print_frame("text", text=self.result)

    def do_recall(self, _: Args) -> None:
        settings = self.queue.settings
        facts: Args = {"earlier": [text for turn in self.queue.memory.turns for text in turn]}
        facts |= {"system": settings.system, "model": settings.model, "mode": settings.mode}
        facts["images"] = [
            {"media_type": image["media_type"], "bytes": len(image["data"].rstrip("=")) * 3 // 4}
            for image in self.turn.images
        ]
        print_frame("text", text=json.dumps(facts, ensure_ascii=False))

    # -- tools

    def do_tool(self, args: Args) -> None:
        call = self._start_tool(args)
        if not args["leave_open"]:
            self._wait(args["seconds"])
            self._end_tool(call, args, self._find_refusal(args["name"]) or args["error"])

    def do_approval(self, args: Args) -> None:
        call = self._start_tool(args)
        error, ends_turn = self._find_refusal(args["name"]), False
        is_asked = self.queue.settings.mode == "default" and args["name"] not in self.queue.always
        if error is None and is_asked:
            answer = self._ask(call, args)
            if answer.get("always"):
                self.queue.always.add(args["name"])
            error = None if answer["allow"] else f"denied: {answer.get('message', '')}"
            ends_turn = answer.get("ends_turn", False)
        self._end_tool(call, args, error)
        if ends_turn:
            raise TurnInterrupted

    def _start_tool(self, args: Args) -> str:
        allowed = self.queue.settings.max_turns
        if allowed is not None and self.tools >= allowed:
            raise TurnFailed("max_turns", f"the turn may use {allowed} tools and wants one more")
        self.tools += 1
        call = self.queue.make_id("call")
        print_frame("tool_start", id=call, name=args["name"], input=args["input"])
        return call

    def _end_tool(self, call: str, args: Args, error: str | None) -> None:
        output = None if error else args["output"]
        print_frame(
            "tool_end", id=call, name=args["name"], input=args["input"], output=output, error=error
        )
        self._poll_input()

    def _find_refusal(self, name: str) -> str | None:
        tools, deny = self.queue.settings.tools, self.queue.settings.deny
        is_allowed = (tools is None or name in tools) and name not in deny
        return None if is_allowed else f"the tool {name} is not allowed"

    def _ask(self, call: str, args: Args) -> Args:
        """Ask for approval. If stdin is closed, the answer is a denial."""
        ask, answers, wire = self.queue.make_id("ask"), self.queue.answers, self.queue.reader
        print_frame("ask", id=ask, call=call, name=args["name"], input=args["input"])
        self._wait(math.inf, lambda: ask in answers or not wire.is_open)
        return answers.get(
            ask, {"allow": False, "message": "no answer is possible, because stdin is closed"}
        )

    # -- facts about the turn

    def do_usage(self, args: Args) -> None:
        cost_usd = args["cost_usd"]
        for name, count in args.items():
            if name != "cost_usd" and count is not None:
                self.usage[name] = self.usage.get(name, 0) + count
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd
        print_frame("usage", usage=self.usage, cost_usd=self.cost_usd)
        allowed = self.queue.settings.max_cost_usd
        if allowed is not None and (self.cost_usd or 0.0) > allowed:
            raise TurnFailed("max_cost", f"the turn may cost ${allowed} and costs ${self.cost_usd}")

    def do_stats(self, args: Args) -> None:
        print_frame("stats", **{**args, "model": args["model"] or self.queue.settings.model})

    def do_image(self, args: Args) -> None:
        print_frame(
            "image", name=args["name"], media_type=args["media_type"], size_bytes=args["bytes"]
        )

    def do_compaction(self, args: Args) -> None:
        print_frame("compacting", trigger=args["trigger"])
        print_frame("compacted", **args)

    def do_retrying(self, args: Args) -> None:
        print_frame("retrying", **args)

    # -- time and ends

    def do_wait(self, args: Args) -> None:
        self._wait(args["seconds"])

    def do_until(self, args: Args) -> None:
        path = Path(args["path"])
        while not path.exists():
            self._wait(FILE_POLL_SECONDS)

    def do_hang(self, args: Args) -> None:
        while args["ignore_interrupt"]:
            signal.pause()
        self._wait(math.inf)

    def do_fail(self, args: Args) -> None:
        raise TurnFailed(args["code"], args["message"], retryable=args["retryable"])

    def do_rate_limit(self, args: Args) -> None:
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

    def do_crash(self, args: Args) -> None:
        if args["signal"]:
            with contextlib.suppress(OSError):  # two of them cannot be caught
                signal.signal(args["signal"], signal.SIG_DFL)
            os.kill(os.getpid(), args["signal"])
        os._exit(args["code"])

    def do_no_newline(self, args: Args) -> None:
        write(1, encode_frame("text", {"text": args["text"]}).rstrip(b"\n"))
        os._exit(args["code"])

    # -- unusual output and processes

    def do_flood(self, args: Args) -> None:
        filler = "x" * args["bytes"]
        for start in range(0, args["count"], FLOOD_BATCH):
            numbers = range(start, min(start + FLOOD_BATCH, args["count"]))
            texts = [f"{n} {filler}"[: args["bytes"]] for n in numbers]
            write(1, b"".join(encode_frame("text", {"text": text}) for text in texts))
            if args["stderr"]:
                write(2, "".join(f"{text}\n" for text in texts).encode())
            self.queue.read_input(0)
            self._check_interrupt()

    def do_stderr(self, args: Args) -> None:
        write(2, args["text"].encode("utf-8", "replace") + b"\n")

    def do_unknown(self, args: Args) -> None:
        write(1, encode_frame(args["name"], args["fields"] or {}))

    def do_garbage(self, args: Args) -> None:
        write(
            1, b'{"type":"text","text":"\xff\xfe"}\n' if args["invalid_utf8"] else b"not JSON {\n"
        )

    def do_big_line(self, args: Args) -> None:
        print_frame("text", text="x" * args["bytes"])

    def do_self_turn(self, args: Args) -> None:
        self.queue.self_turns.append((args["after"], args["steps"]))
        self.queue.report_background()

    def do_background(self, args: Args) -> None:
        pid = os.fork()
        if pid == 0:
            _become_sleeper(args["seconds"])
        print_frame("note", text=f"background process {pid}")

    def do_ignore_sigterm(self, _: Args) -> None:
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
