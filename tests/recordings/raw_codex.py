"""Reads facts from the raw frames of a recording of Codex.

It looks at a recording as a whole: the ends of turns cut the output into turns, what was written is
found again by its name or its words, and counters are those of a thread. The frames of the app
server have a `method` or an `id`, those of `exec` have a `type`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.recordings.raw import (
    Compaction,
    Json,
    Line,
    Outcome,
    Reading,
    Result,
    Tokens,
    Turn,
    Use,
    add_change,
    frames,
)

OUTCOMES: dict[str, Outcome] = {
    "completed": "completed",
    "interrupted": "cancelled",
    "failed": "failed",
}
# The parts of an item that say what a tool is to do.
INPUTS = {
    "commandExecution": ("command", "cwd"),
    "command_execution": ("command",),
    "fileChange": ("changes",),
}
NAMES = {"command_execution": "commandExecution"}
# What an HTTP status means, and what Codex says without one.
STATUSES = {429: "rate_limited", 401: "auth"}
WORDS = {
    "usageLimitExceeded": "rate_limited",
    "serverOverloaded": "overloaded",
    "internalServerError": "server_error",
    "responseStreamDisconnected": "server_error",
}

# What the API itself calls it.
BODIES = {"context_length_exceeded": "prompt_too_long"}


def read(path: Path, *, one_shot: bool = False) -> Reading:
    """Read a recording; with `one_shot` a turn is open from the beginning."""
    reader = _Exec() if one_shot else _AppServer()
    for way, message in frames(path):
        (reader.told if way == "in" else reader.printed)(message)
    return reader.done()


class _Reader:
    def __init__(self) -> None:
        self.reading = Reading()
        self.turn: Turn | None = None

    def done(self) -> Reading:
        """Nothing more comes: a turn that is open was cut short."""
        if self.turn:
            self.turn.is_cut_short, self.turn.text = True, None
            self.reading.turns.append(self.turn)
        for line in self.reading.followups:
            line.is_returned |= line.echoed_in is None
        return self.reading

    def told(self, message: Json) -> None: ...

    def printed(self, message: Json) -> None: ...

    def step(self, turn: Turn, item: Json, *, is_over: bool) -> None:
        """Something that was said or done; a tool may begin before it is over."""
        kind: str = item["type"]
        if kind in INPUTS and not is_over:
            about = {name: item[name] for name in INPUTS[kind]}
            turn.opened.append(Use(item["id"], NAMES.get(kind, kind), about))
        elif kind in INPUTS:
            output = item.get("aggregatedOutput", item.get("aggregated_output"))
            turn.closed.append(Result(item["id"], item["status"] != "completed", output))
        elif kind in ("agentMessage", "agent_message") and is_over:
            turn.texts.append(item["text"])
        elif kind == "reasoning" and is_over:
            turn.thoughts += item["summary"]

    def end(self, outcome: Outcome, error: Json | None = None) -> None:
        turn = self.turn
        assert turn
        turn.outcome = outcome
        turn.text = turn.text or (turn.texts[-1] if turn.texts else None)
        if error:
            turn.complaint = body_of(error).get("message", error["message"])
        self.reading.turns.append(turn)
        self.turn = None


class _Exec(_Reader):
    def __init__(self) -> None:
        super().__init__()
        self.turn = Turn()

    def printed(self, message: Json) -> None:
        assert self.turn
        match message["type"]:
            case "thread.started":
                self.reading.has_session = True
                add_change(self.reading.sessions, message["thread_id"])
            case "item.started" | "item.completed" as when:
                self.step(self.turn, message["item"], is_over=when == "item.completed")
            case "turn.completed":
                self.turn.tokens = _exec_tokens(message["usage"])
                self.end("completed")
            case "turn.failed":
                # The number of the API's answer has no place of its own.
                is_limit = "last status: 429 " in message["error"]["message"]
                self.turn.code = "rate_limited" if is_limit else "provider_error"
                self.end("rate_limited" if is_limit else "failed", message["error"])
            case _:
                pass


class _Asked(NamedTuple):
    method: str
    line: Line | None


class _AppServer(_Reader):
    """Reads the raw frames of `codex app-server`, in their order.

    The reader of a recording gives it each frame. At most one turn is open at a time: `turn_id` is
    None until the server has named the turn. Notifications of other threads are ignored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turn_id: str | None = None
        self.thread: str | None = None
        self.model: str | None = None
        self.asked: dict[str, _Asked] = {}
        self.totals: dict[str, Tokens] = {}
        # How long the conversation is, and how long it was before the compaction that goes on.
        self.size: int | None = None
        self.size_before: int | None = None
        self.wants_compaction = False
        self.refused: Json | None = None
        self.windows: list[Json] = []

    # -- what was written

    def told(self, message: Json) -> None:
        if "method" not in message:
            decision = message["result"]["decision"]
            allowed = decision.startswith("accept")
            self.reading.answers[str(message["id"])] = "allow" if allowed else "deny"
            return
        params, line = message.get("params", {}), None
        match message["method"]:
            case "turn/start" | "turn/steer" | "thread/queue/add" as method:
                line = self.write(method, params)
            case "thread/compact/start":
                self.wants_compaction = True
            case _:
                pass
        if "id" in message:
            self.asked[str(message["id"])] = _Asked(message["method"], line)

    def write(self, method: str, params: Json) -> Line:
        now = len(self.reading.turns) if self.turn else None
        name = params.get("clientUserMessageId")
        line = Line(_words(params["input"]), name, now, is_offer=method != "turn/start")
        self.reading.lines.append(line)
        if method == "turn/start" and not self.turn:
            self.turn, self.turn_id = Turn(), None
            self.enter(params["threadId"])
            # It holds for the turns that follow, too.
            self.model = params.get("model", self.model)
            if self.model:
                add_change(self.reading.models, self.model)
        return line

    def enter(self, thread: str) -> None:
        """A turn belongs to this thread, if there is any."""
        if self.thread:
            self.thread = thread
            add_change(self.reading.sessions, thread)

    # -- what was printed

    def printed(self, message: Json) -> None:
        if "method" not in message:
            self.answered(self.asked[str(message["id"])], message)
        elif "id" in message:
            self.reading.asked[str(message["id"])] = message["params"]["itemId"]
        elif message["params"].get("threadId") in (None, self.thread):
            self.notified(message["method"], message["params"])

    def answered(self, asked: _Asked, message: Json) -> None:
        error, line = message.get("error"), asked.line
        match asked.method:
            case "thread/start" | "thread/resume" if error:
                self.refused = error
            case "thread/start" | "thread/resume" if not self.thread:
                self.open_thread(message["result"])
            case "turn/start" if error and line and not line.is_followup:
                assert self.turn
                self.turn.code = "resume_not_found" if self.refused else "provider_error"
                self.end("failed", self.refused or error)
            case "turn/start" if line and not line.is_followup:
                self.turn_id = message["result"]["turn"]["id"]
            case "turn/start" | "turn/steer" if error and line:
                line.is_returned = True
            case _:
                pass

    def open_thread(self, result: Json) -> None:
        self.thread = result["thread"]["id"]
        self.reading.has_session = True
        add_change(self.reading.sessions, result["thread"]["id"])
        self.model = result["model"]

    def notified(self, method: str, params: Json) -> None:
        match method:
            case "turn/started":
                self.turn = self.turn or Turn(is_self=True)
                self.turn_id = params["turn"]["id"]
            case "thread/tokenUsage/updated":
                self.count(params)
            case "account/rateLimits/updated":
                limits = params["rateLimits"]
                self.windows = [limits[name] for name in ("primary", "secondary") if limits[name]]
            case "serverRequest/resolved":
                self.reading.answers.setdefault(str(params["requestId"]), "cancelled")
            case _ if self.turn and self.turn_id in (params.get("turnId"), _id_of(params)):
                self.in_turn(self.turn, method, params)
            case _:
                pass

    def in_turn(self, turn: Turn, method: str, params: Json) -> None:
        match method:
            case "item/started" | "item/completed":
                self.item(turn, params["item"], is_over=method == "item/completed")
            case "item/agentMessage/delta":
                turn.text_deltas += params["delta"]
            case "item/reasoning/summaryTextDelta":
                turn.thinking_deltas += params["delta"]
            case "error" if params["willRetry"]:
                turn.retries.append(len(turn.retries) + 1)
                turn.retry_codes.append(code_of(params["error"]))
            case "turn/completed":
                self.complete(turn, params["turn"])
            case _:
                pass

    def item(self, turn: Turn, item: Json, *, is_over: bool) -> None:
        if item["type"] == "userMessage" and not is_over:
            self.echoed(turn, item["clientId"], _words(item["content"]))
        elif item["type"] == "contextCompaction" and not is_over:
            self.size_before = self.size
        elif item["type"] == "contextCompaction":
            trigger = "manual" if self.wants_compaction else "auto"
            self.wants_compaction = False
            self.reading.compactions.append(Compaction(trigger, self.size_before, self.size))
        else:
            self.step(turn, item, is_over=is_over)

    def echoed(self, turn: Turn, name: str | None, text: str) -> None:
        """Find the line that came back: by its name, or by its words if it has none."""
        for line in self.reading.lines:
            is_open = line.echoed_in is None and not line.is_returned
            if is_open and (line.name, line.text if not name else text) == (name, text):
                line.echoed_in = len(self.reading.turns)
                turn.is_self = False
                return

    def count(self, params: Json) -> None:
        """What a turn has used is how much the total of its thread has grown; the total is said
        again where nothing was used."""
        total = tokens_of(params["tokenUsage"]["total"])
        spent = total.minus(self.totals.get(params["threadId"], Tokens()))
        if self.turn and self.turn_id == params["turnId"] and any(spent):
            self.turn.tokens = (self.turn.tokens or Tokens()).plus(spent)
        self.totals[params["threadId"]] = total
        self.size = params["tokenUsage"]["last"]["totalTokens"]

    def complete(self, turn: Turn, said: Json) -> None:
        answers = [item["text"] for item in said["items"] if item["type"] == "agentMessage"]
        turn.text = answers[-1] if answers else None
        outcome = OUTCOMES[said["status"]]
        if said["error"]:
            turn.code = code_of(said["error"])
        if turn.code == "rate_limited":
            outcome = "rate_limited"
            full = [each["resetsAt"] for each in self.windows if each["usedPercent"] >= 100]
            turn.resets_at = max(full, default=None)
        for line in self.reading.followups:
            is_of_it = line.while_open == len(self.reading.turns) and line.name is None
            line.is_returned |= is_of_it and line.echoed_in is None
        self.end(outcome, said["error"])


def code_of(error: Json) -> str:
    """The kind of a failure, by its structure; what it says in words does not count."""
    info = error["codexErrorInfo"]
    word, about = (info, {}) if isinstance(info, str) else next(iter(info.items()))
    said = WORDS.get(word) or BODIES.get(body_of(error).get("code", ""), "provider_error")
    return STATUSES.get(about.get("httpStatusCode"), said)


def body_of(error: Json) -> Json:
    """The answer of the API, where Codex passes it on as it is: that is no prose."""
    message = error["message"]
    found: Json = json.loads(message)["error"] if message.startswith("{") else {}
    return found


def tokens_of(counted: Json) -> Tokens:
    """Input is counted with what came from the cache."""
    cached, written = counted["cachedInputTokens"], counted.get("cacheWriteInputTokens", 0)
    new = counted["inputTokens"] - cached - written
    return Tokens(new, counted["outputTokens"], cached, written)


def _exec_tokens(counted: Json) -> Tokens:
    cached, written = counted["cached_input_tokens"], counted["cache_write_input_tokens"]
    new = counted["input_tokens"] - cached - written
    return Tokens(new, counted["output_tokens"], cached, written)


def _words(content: Sequence[Json]) -> str:
    """What a message says."""
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def _id_of(params: Json) -> Any:
    return params["turn"]["id"] if "turn" in params else None
