"""A program with the protocols of Codex. It plays the steps in its prompt.

    fake_codex.py app-server …                  JSON-RPC over its pipes, for many turns
    fake_codex.py exec [resume] … [THREAD] -    one turn; its prompt is its input

A prompt is a list of steps behind `play:`, or anything: then it is repeated. What it remembers of a
conversation lies in its HOME. Other options are read over. It runs alone: `python -I -S`.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

# -I leaves everything of ours out of the path.
sys.path.append(str(Path(__file__).parents[2]))

from tests.children.fake_player import Frame, Interrupted, Player, say, steps_of

MODEL = "codex-fake-1"
LONGEST_CHARS = 1 << 20
INVALID_REQUEST, INVALID_PARAMS = -32600, -32602
# What every answer of the model uses.
CALL = {"inputTokens": 10, "cachedInputTokens": 4, "cacheWriteInputTokens": 0,
        "outputTokens": 5, "reasoningOutputTokens": 0, "totalTokens": 15}  # fmt: skip
NOTHING = dict.fromkeys(CALL, 0)
FILLED = {"usedPercent": 12.0, "windowDurationMins": 300, "resetsAt": 4102444800}


class RequestRefused(Exception):
    """A request is refused."""

    def __init__(self, message: str, code: int = INVALID_REQUEST) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


class Codex(Player):
    """What both shapes have: a conversation in a file, and what it has used so far."""

    def __init__(self, thread: str | None) -> None:
        super().__init__()
        self.thread = thread or str(uuid.uuid4())
        # A CLI reads its own environment.
        self.file = Path.home() / ".codex" / "sessions" / f"{self.thread}.json"
        self.total = dict(NOTHING)
        # The conversation's last turn, which may be open.
        self.last: str | None = None

    def load(self) -> None:
        if not self.file.exists():
            raise RequestRefused(f"no rollout found for thread id {self.thread}")
        self.memory, self.total, self.last = json.loads(self.file.read_text())

    def save(self, turn: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps([self.memory, self.total, turn]))

    def count(self) -> None:
        self.total = {name: count + CALL[name] for name, count in self.total.items()}


class AppServer(Codex):
    """Plays `codex app-server`: one thread, with one turn at a time.

    `main` plays the queued turns until stdin is closed. `turn` is None between turns. Messages that
    come during a turn are taken between its steps.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.is_initialized = self.is_begun = False
        self.is_experimental = False
        self.turns: list[tuple[str, Frame]] = []
        self.turn: str | None = None
        self.steers: list[Frame] = []
        # What was taken and goes unanswered until the next turn.
        self.unheard: list[Any] = []
        self.interrupts: list[Any] = []
        self.answers: dict[int, Any] = {}
        self.asks = 0
        self.withdrawn: list[int] = []
        self.running: dict[str, tuple[Frame, subprocess.Popen[bytes]]] = {}

    def main(self) -> int:
        while True:
            if self.turns:
                self.play(*self.turns.pop(0))
            else:
                self.listen(None)

    def listen(self, seconds: float | None) -> None:
        """Read input. When stdin is closed, the server exits in the turn and ends its commands."""
        super().listen(seconds)
        if not self.is_open and not self.is_deaf:
            for _, process in self.running.values():
                end(process)
            raise SystemExit(0)

    # -- hearing

    def take(self, told: Frame) -> None:
        if "method" not in told:
            self.answers[told["id"]] = told.get("result")
        elif "id" in told:
            try:
                self.asked(told["id"], told["method"], told.get("params") or {})
            except RequestRefused as turned:
                say(error=turned.error, id=told["id"])

    def asked(self, request: Any, method: str, params: Frame) -> None:
        if self.is_initialized == (method == "initialize"):
            raise RequestRefused(
                "Already initialized" if self.is_initialized else "Not initialized"
            )
        known = {
            "initialize": self.initialize,
            "thread/start": self.start_thread,
            "thread/resume": self.resume_thread,
            "turn/start": self.start_turn,
            "turn/steer": self.steer,
            "turn/interrupt": self.interrupt,
            "thread/backgroundTerminals/terminate": self.terminate,
        }
        if method not in known:
            raise RequestRefused(f"Invalid request: unknown variant `{method}`")
        known[method](request, params)

    def initialize(self, request: Any, params: Frame) -> None:
        self.is_initialized = True
        self.is_experimental = params.get("capabilities", {}).get("experimentalApi", False)
        say(id=request, result={"userAgent": "fake/0", "platformOs": "linux"})
        notify("remoteControl/status/changed", status="disabled")
        notify("configWarning", summary="could not find bubblewrap on PATH", details=None)

    def start_thread(self, request: Any, params: Frame) -> None:
        self.is_begun = True
        say(id=request, result=self.opened(params))
        self.tell("thread/started", thread={"id": self.thread})

    def resume_thread(self, request: Any, params: Frame) -> None:
        asked = Codex(params["threadId"])
        asked.load()
        self.thread, self.file, self.is_begun = asked.thread, asked.file, True
        self.memory, self.total, self.last = asked.memory, asked.total, asked.last
        self.tell("thread/status/changed", status={"type": "idle"})
        say(id=request, result=self.opened(params))
        # The usage of the last turn is reported again.
        self.tell_usage(str(self.last))
        self.tell("thread/goal/cleared")

    def opened(self, params: Frame) -> Frame:
        as_asked = {name: params.get(name) for name in ("cwd", "approvalPolicy", "sandbox")}
        thread = {"id": self.thread, "turns": []}
        return {"thread": thread, "model": params.get("model") or MODEL, **as_asked}

    def start_turn(self, request: Any, params: Frame) -> None:
        self.check_thread(params)
        if (size := sum(map(len, texts_of(params)))) > LONGEST_CHARS:
            longest = f"Input exceeds the maximum length of {LONGEST_CHARS} characters."
            raise RequestRefused(f"{longest} {size}", INVALID_PARAMS)
        if self.turn is None:
            self.turn = str(uuid.uuid4())
            self.turns.append((self.turn, params))
        else:
            self.steers.append(params)
        say(id=request, result={"turn": body(self.turn, "inProgress")})

    def steer(self, request: Any, params: Frame) -> None:
        self.check_thread(params)
        if "expectedTurnId" not in params:
            raise RequestRefused("Invalid request: missing field `expectedTurnId`")
        if self.turn is None:
            raise RequestRefused("no active turn to steer")
        if params["expectedTurnId"] != self.turn:
            found = f"expected active turn id `{params['expectedTurnId']}`"
            raise RequestRefused(f"{found} but found `{self.turn}`")
        self.steers.append(params)
        say(id=request, result={"turnId": self.turn})

    def interrupt(self, request: Any, params: Frame) -> None:
        """It is answered when the turn has ended."""
        if self.turn is not None and params["turnId"] in {"", self.turn}:
            self.wants_end = True
            self.interrupts.append(request)
        elif params["turnId"]:
            raise RequestRefused("no active turn to interrupt")
        else:
            say(id=request, result={})

    def terminate(self, request: Any, params: Frame) -> None:
        if not self.is_experimental:
            raise RequestRefused(f"{params['processId']} requires experimentalApi capability")
        item, process = self.running.pop(params["processId"])
        end(process)
        say(id=request, result={"terminated": True})
        self.tell_item("completed", {**item, "status": "failed", "exitCode": -1})

    def check_thread(self, params: Frame) -> None:
        if not self.is_begun or params["threadId"] != self.thread:
            raise RequestRefused(f"thread not found: {params['threadId']}")

    # -- playing

    def play(self, turn: str, params: Frame) -> None:
        self.last, self.text, status = turn, "", "completed"
        self.save(turn)
        self.tell("thread/status/changed", status={"type": "active", "activeFlags": []})
        self.tell("turn/started", turn=body(turn, "inProgress"))
        notify("warning", threadId=self.thread, message=f"Model metadata for `{MODEL}` not found.")
        try:
            self.play_all(params)
        except Interrupted:
            status = "interrupted"
        self.save(turn)
        self.end(status)

    def play_all(self, params: Frame) -> None:
        """Play a message. Messages that arrive during it are taken between its steps."""
        steps, self.unheard = [*self.unheard, *self.show(params)], []
        while steps:
            self.do(steps.pop(0))
            self.listen(0)
            self.check()
            while self.steers:
                steps += self.show(self.steers.pop(0))

    def show(self, params: Frame) -> list[Any]:
        """Say that a message was taken; the steps it asks for. Nothing is said of an empty one."""
        if not params["input"]:
            return []
        client = params.get("clientUserMessageId")
        item = named("userMessage", clientId=client, content=params["input"])
        self.tell_item("started", item)
        self.tell_item("completed", item)
        return [step for text in texts_of(params)[:1] for step in steps_of(text)]

    def end(self, status: str) -> None:
        """Messages that were not taken are forgotten, questions that are open are withdrawn."""
        turn, self.turn, self.steers = str(self.turn), None, []
        self.wants_end = False
        for request in self.interrupts:
            say(id=request, result={})
        self.interrupts = []
        self.tell("thread/status/changed", status={"type": "idle"})
        items = [named("agentMessage", text=self.text)] if self.text else []
        said = items if status == "completed" else []
        self.tell("turn/completed", turn=body(turn, status, said))
        for ask in self.withdrawn:
            self.tell("serverRequest/resolved", requestId=ask)
        self.withdrawn = []

    def tell(self, method: str, **params: Any) -> None:
        notify(method, threadId=self.thread, **params)

    def tell_item(self, how: str, item: Frame) -> None:
        self.tell(f"item/{how}", item=item, turnId=self.last)

    def tell_usage(self, turn: str) -> None:
        usage = {"total": self.total, "last": CALL, "modelContextWindow": 258400}
        self.tell("thread/tokenUsage/updated", turnId=turn, tokenUsage=usage)

    def do_text(self, text: str) -> None:
        self.do_delta([text])

    def do_delta(self, pieces: list[str]) -> None:
        """One that is interrupted never completes."""
        item = named("agentMessage", text="", phase=None)
        self.tell_item("started", item)
        for piece in pieces:
            about = {"turnId": self.last, "itemId": item["id"]}
            self.tell("item/agentMessage/delta", delta=piece, **about)
            if len(pieces) > 1:
                self.listen(0.005)
                self.check()
        self.text = "".join(pieces)
        self.tell_item("completed", {**item, "text": self.text})
        self.count()
        self.tell_usage(str(self.last))
        notify("account/rateLimits/updated", rateLimits={"limitId": "codex", "primary": FILLED})

    def do_thinking(self, text: str) -> None:
        item = named("reasoning", summary=[], content=[])
        self.tell_item("started", item)
        about = {"turnId": self.last, "itemId": item["id"]}
        self.tell("item/reasoning/summaryTextDelta", delta=text, summaryIndex=0, **about)
        self.tell_item("completed", {**item, "summary": [text]})

    def do_tool(self, given: Frame) -> None:
        item = command(given["command"], "7")
        self.tell_item("started", item)
        if not given.get("leave_open"):
            self.complete(item, "completed", given.get("output", "ok"))

    def do_run(self, line: str) -> None:
        """A command that is really run; an interrupt does not end it."""
        argv = ["/bin/sh", "-c", line]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        item = command(line, str(process.pid))
        self.running[item["processId"]] = (item, process)
        self.tell_item("started", item)
        self.wait(lambda: process.poll() is not None)
        del self.running[item["processId"]]
        self.complete(item, "failed" if process.returncode else "completed", "")

    def do_late(self, text: str) -> None:
        """Say something, and take a message as the last thing of a turn, too late for the model to
        see it."""
        self.do({"text": text})
        self.wait(lambda: bool(self.steers))
        self.unheard += self.show(self.steers.pop(0))

    def do_ask(self, given: Frame) -> None:
        """A command or a file change that needs approval."""
        if changes := given.get("changes"):
            item, kind = named("fileChange", changes=changes, status="inProgress"), "fileChange"
            more: Frame = {"reason": None, "grantRoot": None}
        else:
            item, kind = command(given["command"], None), "commandExecution"
            more = {"command": item["command"], "cwd": item["cwd"], "reason": "may I?"}
        self.tell_item("started", item)
        ask, self.asks = self.asks, self.asks + 1
        about = {"threadId": self.thread, "turnId": self.last, "itemId": item["id"], **more}
        say(id=ask, method=f"item/{kind}/requestApproval", params=about)
        try:
            self.wait(lambda: ask in self.answers)
        except Interrupted:
            self.withdrawn.append(ask)
            raise
        self.tell("serverRequest/resolved", requestId=ask)
        self.decided(item, (self.answers.pop(ask) or {}).get("decision"))

    def decided(self, item: Frame, decision: str | None) -> None:
        if decision in {"accept", "acceptForSession"}:
            self.complete(item, "completed", "done")
        else:
            self.complete(item, "declined" if decision else "failed", None)
        if decision == "cancel":
            raise Interrupted

    def complete(self, item: Frame, status: str, output: Any) -> None:
        code = {"completed": 0, "failed": 1}.get(status)
        what = {"aggregatedOutput": output, "exitCode": code} if "command" in item else {}
        self.tell_item("completed", {**item, **what, "status": status})


class Exec(Codex):
    """Plays `codex exec --json`: one turn, without further input."""

    def __init__(self, argv: list[str]) -> None:
        self.is_resumed = argv[:1] == ["resume"]
        super().__init__(argv[-2] if self.is_resumed else None)
        self.prompt = sys.stdin.buffer.read().decode()
        self.is_open = False
        self.items = 0

    def main(self) -> int:
        try:
            if self.is_resumed:
                self.load()
        except RequestRefused as turned:
            sys.stderr.write(f"Error: thread/resume: {turned} (code {INVALID_REQUEST})\n")
            return 1
        say(type="thread.started", thread_id=self.thread)
        if len(self.prompt) > LONGEST_CHARS:
            sys.stderr.write(f"Error: Input exceeds the maximum length of {LONGEST_CHARS}\n")
            return 1
        say(type="turn.started")
        self.item("completed", "error", message=f"Model metadata for `{MODEL}` not found.")
        for step in steps_of(self.prompt):
            self.do(step)
        self.save(self.thread)
        names = {"input_tokens": "inputTokens", "cached_input_tokens": "cachedInputTokens",
                 "output_tokens": "outputTokens"}  # fmt: skip
        usage = {ours: self.total[theirs] for ours, theirs in names.items()}
        # A request to a model always uses tokens; zero would mean that no request was made.
        usage["input_tokens"] = usage["input_tokens"] or 1
        say(type="turn.completed", usage=usage)
        return 0

    def item(self, how: str, kind: str, **more: Any) -> None:
        say(type=f"item.{how}", item={"id": f"item_{self.items}", "type": kind, **more})
        self.items += how == "completed"

    def do_text(self, text: str) -> None:
        self.text = text
        self.count()
        self.item("completed", "agent_message", text=text)

    def do_delta(self, pieces: list[str]) -> None:
        self.do_text("".join(pieces))

    def do_thinking(self, text: str) -> None:
        self.item("completed", "reasoning", text=text)

    def do_tool(self, given: Frame) -> None:
        what = {"command": given["command"], "aggregated_output": "", "exit_code": None}
        self.item("started", "command_execution", **what, status="in_progress")
        if not given.get("leave_open"):
            done = {"aggregated_output": given.get("output", "ok"), "exit_code": 0}
            self.item("completed", "command_execution", **{**what, **done}, status="completed")


def body(turn: str, status: str, items: list[Frame] | None = None) -> Frame:
    view = "summary" if items else "notLoaded"
    return {"id": turn, "status": status, "items": items or [], "itemsView": view, "error": None}


def named(kind: str, **more: Any) -> Frame:
    return {"type": kind, "id": f"{kind}-{uuid.uuid4()}", **more}


def command(line: str, process: str | None) -> Frame:
    done = {"aggregatedOutput": None, "exitCode": None, "status": "inProgress"}
    where = {"cwd": str(Path.cwd()), "processId": process}
    return named("commandExecution", command=line, **where, **done)


def texts_of(params: Frame) -> list[str]:
    return [part["text"] for part in params["input"] if part["type"] == "text"]


def notify(method: str, **params: Any) -> None:
    say(method=method, params=params, emittedAtMs=1)


def end(process: "subprocess.Popen[bytes]") -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(argv: list[str]) -> int:
    return Exec(argv[1:]).main() if argv[0] == "exec" else AppServer().main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
