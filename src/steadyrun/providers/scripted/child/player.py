"""What does each step of a script do? One turn, played from its beginning to its end."""

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
from steadyrun.providers.scripted.child.schema_sample import least
from steadyrun.providers.scripted.child.script import Failed, Turn, steps_of
from steadyrun.providers.scripted.child.wire import Args, frame, say, write

FLOOD_BATCH = 100
FILE_POLL_SECONDS = 0.01


class Interrupted(Exception):
    """The turn ends here because somebody said so."""


class Player:
    """One turn. Every `do_` is a step."""

    def __init__(self, desk: InputQueue, turn: Turn) -> None:
        self.desk, self.turn = desk, turn
        self.said = [turn.text] if turn.by != "self" else []
        self.result: str | None = None
        self.usage: dict[str, int] = {}
        self.cost_usd: float | None = None
        self.tools = 0

    def run(self) -> None:
        """Say that it began, play it, remember it, say how it ended."""
        offered = self.turn.text if self.turn.by == "offer" else None
        say("began", turn=self.turn.id, by=self.turn.by, text=offered)
        status, error = self._tried(self._play)
        if status == "cancelled":
            for offer in list(self.desk.offers):
                self.desk.give_back(offer, "interrupted")
        kept, problem = self._tried(self._remember)
        if problem:
            status, error = kept, problem
        account = {"usage": self.usage or None, "cost_usd": self.cost_usd}
        say("ended", turn=self.turn.id, status=status, result=self.result, error=error, **account)

    def _tried(self, act: Callable[[], None]) -> tuple[str, Args | None]:
        try:
            act()
        except Interrupted:
            return "cancelled", None
        except Failed as failed:
            return failed.status, failed.fact
        return "completed", None

    def _play(self) -> None:
        memory = self.desk.memory
        if memory.problem:
            raise memory.problem
        steps = steps_of(self.turn, self.desk.settings.script, len(memory.turns))
        for n, (name, args) in enumerate(steps):
            self._look_up(is_between=n > 0)
            getattr(self, f"do_{name}")(args)

    def _remember(self) -> None:
        if self.said:
            self.desk.memory.add(self.said)

    def _look_up(self, *, is_between: bool = True) -> None:
        """Read what came meanwhile; between steps, take in what was offered."""
        self.desk.listen(0)
        self._check()
        for offer in list(self.desk.offers) if is_between else ():
            text = self.desk.offers.pop(offer)
            self.said.append(text)
            say("absorbed", offer=offer, text=text)

    def _check(self) -> None:
        if self.desk.must_end(self.turn):
            raise Interrupted

    def _wait(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        end = time.monotonic() + seconds
        while not (until and until()) and (left := end - time.monotonic()) > 0:
            self.desk.listen(min(left, LONGEST_WAIT_SECONDS))
            self._check()

    # -- what is said

    def do_text(self, args: Args) -> None:
        say("text", text=args["text"])

    def do_delta(self, args: Args) -> None:
        for piece in args["pieces"]:
            say("delta", text=piece)
            self._wait(args["seconds"])
        say("text", text="".join(args["pieces"]))

    def do_thinking(self, args: Args) -> None:
        say("thinking", text=args["text"])

    def do_result(self, args: Args) -> None:
        self.result = args["text"]

    def do_structured(self, _: Args) -> None:
        schema = self.turn.schema
        if schema is None:
            raise Failed("schema_missing", "structured: expected a turn with a schema, found none")
        try:
            self.result = json.dumps(least(schema, schema), ensure_ascii=False)
        except (TypeError, LookupError, AttributeError) as error:
            raise Failed("schema_invalid", f"cannot read the schema: {error!r}") from error
        say("text", text=self.result)

    def do_recall(self, _: Args) -> None:
        settings = self.desk.settings
        known: Args = {"earlier": [text for turn in self.desk.memory.turns for text in turn]}
        known |= {"system": settings.system, "model": settings.model, "mode": settings.mode}
        known["images"] = [
            {"media_type": image["media_type"], "bytes": len(image["data"].rstrip("=")) * 3 // 4}
            for image in self.turn.images
        ]
        say("text", text=json.dumps(known, ensure_ascii=False))

    # -- tools

    def do_tool(self, args: Args) -> None:
        call = self._start_tool(args)
        if not args["leave_open"]:
            self._wait(args["seconds"])
            self._end_tool(call, args, self._refusal(args["name"]) or args["error"])

    def do_approval(self, args: Args) -> None:
        call = self._start_tool(args)
        error, ends_turn = self._refusal(args["name"]), False
        is_asked = self.desk.settings.mode == "default" and args["name"] not in self.desk.always
        if error is None and is_asked:
            answer = self._ask(call, args)
            if answer.get("always"):
                self.desk.always.add(args["name"])
            error = None if answer["allow"] else f"denied: {answer.get('message', '')}"
            ends_turn = answer.get("ends_turn", False)
        self._end_tool(call, args, error)
        if ends_turn:
            raise Interrupted

    def _start_tool(self, args: Args) -> str:
        allowed = self.desk.settings.max_turns
        if allowed is not None and self.tools >= allowed:
            raise Failed("max_turns", f"the turn may use {allowed} tools and wants one more")
        self.tools += 1
        call = self.desk.name("call")
        say("tool_start", id=call, name=args["name"], input=args["input"])
        return call

    def _end_tool(self, call: str, args: Args, error: str | None) -> None:
        output = None if error else args["output"]
        say("tool_end", id=call, name=args["name"], input=args["input"], output=output, error=error)
        self._look_up()

    def _refusal(self, name: str) -> str | None:
        tools, deny = self.desk.settings.tools, self.desk.settings.deny
        is_allowed = (tools is None or name in tools) and name not in deny
        return None if is_allowed else f"the tool {name} is not allowed"

    def _ask(self, call: str, args: Args) -> Args:
        """The answer. Who can no longer answer has not allowed it."""
        ask, answers, wire = self.desk.name("ask"), self.desk.answers, self.desk.wire
        say("ask", id=ask, call=call, name=args["name"], input=args["input"])
        self._wait(math.inf, lambda: ask in answers or not wire.is_open)
        return answers.get(ask, {"allow": False, "message": "nobody is there to ask"})

    # -- what is told about the turn

    def do_usage(self, args: Args) -> None:
        cost_usd = args["cost_usd"]
        for name, count in args.items():
            if name != "cost_usd" and count is not None:
                self.usage[name] = self.usage.get(name, 0) + count
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd
        say("usage", usage=self.usage, cost_usd=self.cost_usd)
        allowed = self.desk.settings.max_cost_usd
        if allowed is not None and (self.cost_usd or 0.0) > allowed:
            raise Failed("max_cost", f"the turn may cost ${allowed} and costs ${self.cost_usd}")

    def do_stats(self, args: Args) -> None:
        say("stats", **{**args, "model": args["model"] or self.desk.settings.model})

    def do_image(self, args: Args) -> None:
        say("image", name=args["name"], media_type=args["media_type"], size_bytes=args["bytes"])

    def do_compaction(self, args: Args) -> None:
        say("compacting", trigger=args["trigger"])
        say("compacted", **args)

    def do_retrying(self, args: Args) -> None:
        say("retrying", **args)

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
        raise Failed(args["code"], args["message"], retryable=args["retryable"])

    def do_rate_limit(self, args: Args) -> None:
        resets_at = args["resets_at"]
        if args["resets_in"] is not None:
            resets_at = time.time() + args["resets_in"]  # noqa: TID251 (a CLI has its own clock)
        raise Failed(
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
        write(1, frame("text", {"text": args["text"]}).rstrip(b"\n"))
        os._exit(args["code"])

    # -- what goes wrong around it

    def do_flood(self, args: Args) -> None:
        filler = "x" * args["bytes"]
        for start in range(0, args["count"], FLOOD_BATCH):
            numbers = range(start, min(start + FLOOD_BATCH, args["count"]))
            texts = [f"{n} {filler}"[: args["bytes"]] for n in numbers]
            write(1, b"".join(frame("text", {"text": text}) for text in texts))
            if args["stderr"]:
                write(2, "".join(f"{text}\n" for text in texts).encode())
            self.desk.listen(0)
            self._check()

    def do_stderr(self, args: Args) -> None:
        write(2, args["text"].encode("utf-8", "replace") + b"\n")

    def do_unknown(self, args: Args) -> None:
        write(1, frame(args["name"], args["fields"] or {}))

    def do_garbage(self, args: Args) -> None:
        write(
            1, b'{"type":"text","text":"\xff\xfe"}\n' if args["invalid_utf8"] else b"not JSON {\n"
        )

    def do_big_line(self, args: Args) -> None:
        say("text", text="x" * args["bytes"])

    def do_self_turn(self, args: Args) -> None:
        self.desk.self_turns.append((args["after"], args["steps"]))
        self.desk.tell_background()

    def do_background(self, args: Args) -> None:
        pid = os.fork()
        if pid == 0:
            _sleep_apart(args["seconds"])
        say("note", text=f"background process {pid}")

    def do_ignore_sigterm(self, _: Args) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _sleep_apart(seconds: float) -> None:
    """Become a process in a session of its own that outlives us."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        script = f"import time; time.sleep({seconds})"
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", script])  # noqa: S606
    finally:
        os._exit(127)
