"""What does a recording of Claude Code say by itself? Read from its raw frames, with `json` alone.

The other opinion, by somebody who does not trust our Dialect: nothing of ours is imported here, and
nothing is taken over from how the Dialect works. It looks at a recording as a whole: results cut
the output into turns, and everything else is counted where it stands.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Outcome = Literal["completed", "failed", "cancelled", "rate_limited"]
Json = dict[str, Any]
# What the CLI calls the author of the lines that it has written itself.
ITSELF = "<synthetic>"


class Tokens(NamedTuple):
    """Read, written, and both for the cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def minus(self, other: "Tokens") -> "Tokens":
        return Tokens(*(mine - its for mine, its in zip(self, other, strict=True)))


class Use(NamedTuple):
    """A tool was used."""

    id: str
    name: str
    input: Any


class Result(NamedTuple):
    """What was said when a tool was done."""

    id: str
    is_error: bool
    content: Any


@dataclass
class Line:
    """A message that was written to the CLI. `turn` counts from 0."""

    text: str
    uuid: str | None
    # The turn that was open when it was written; None if there was none.
    while_open: int | None
    # Where it came back: in which turn, or before which one.
    echoed_in: int | None = None
    echoed_before: int | None = None
    is_taken_back: bool = False

    @property
    def is_followup(self) -> bool:
        return self.while_open is not None


@dataclass
class Turn:
    """What was printed up to one result, or up to the end of the process without one."""

    outcome: Outcome = "failed"
    # None where there is none, and where no result says which of the texts was the answer.
    text: str | None = None
    # What the CLI says of a failure; never part of the answer.
    complaint: str | None = None
    texts: list[str] = field(default_factory=list)
    text_deltas: str = ""
    thinking_deltas: str = ""
    thoughts: list[str] = field(default_factory=list)
    opened: list[Use] = field(default_factory=list)
    closed: list[Result] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    # None: it was not said, or nothing was counted although a model was at work.
    usd: float | None = None
    tokens: Tokens | None = None
    is_cut_short: bool = False
    resets_at: int | None = None


@dataclass
class Reading:
    """All of a recording."""

    turns: list[Turn] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    # The sessions in their order, each once for every change.
    sessions: list[str] = field(default_factory=list)
    # The models in their order, each once for every change.
    models: list[str] = field(default_factory=list)
    total_usd: float = 0.0
    # The questions that it asked, each with its tool, and what became of it.
    asked: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    compactions: list[Json] = field(default_factory=list)
    has_init: bool = False

    @property
    def followups(self) -> list[Line]:
        return [line for line in self.lines if line.is_followup]


def read(path: Path, *, one_shot: bool = False) -> Reading:
    """Read a recording; with `one_shot` a turn is open from the beginning."""
    reader = _Reader(one_shot=one_shot)
    for record in map(json.loads, path.read_text("utf-8").splitlines()):
        message = record["msg"]
        if isinstance(message, dict) and record["dir"] == "in":
            reader.told(message)
        elif isinstance(message, dict) and record["dir"] == "out":
            reader.printed(message)
    return reader.done()


class _Reader:
    def __init__(self, *, one_shot: bool) -> None:
        self.reading = Reading()
        self.turn = Turn()
        self.is_open = one_shot
        self.tokens = Tokens()
        self.recalls: dict[str, str] = {}
        self.local: list[str] = []

    def done(self) -> Reading:
        """Nothing more comes: a turn that is open was cut short."""
        if self.is_open:
            self.turn.is_cut_short = True
            self.reading.turns.append(self.turn)
        return self.reading

    def told(self, message: Json) -> None:
        match message.get("type"):
            case "user" if isinstance(message.get("message"), dict):
                now = len(self.reading.turns) if self.is_open else None
                text = "\n".join(texts_of(message["message"].get("content")))
                self.reading.lines.append(Line(text, message.get("uuid"), now))
                self.is_open = True
            case "control_request":
                request = message["request"]
                if request["subtype"] == "cancel_async_message":
                    self.recalls[message["request_id"]] = request["message_uuid"]
            case "control_response":
                answer = message["response"]
                self.reading.answers[answer["request_id"]] = answer["response"]["behavior"]
            case _:
                pass

    def printed(self, message: Json) -> None:
        match message["type"]:
            case "system":
                self.system(message)
            case "assistant":
                self.assistant(message)
            case "user":
                self.user(message)
            case "stream_event":
                self.streamed(message)
            case "result":
                self.result(message)
            case "rate_limit_event":
                info = message["rate_limit_info"]
                if info["status"] == "rejected":
                    self.turn.resets_at = info.get("resetsAt")
            case _:
                self.controlled(message)

    def controlled(self, message: Json) -> None:
        match message["type"]:
            case "control_request":
                self.reading.asked[message["request_id"]] = message["request"]["tool_use_id"]
            case "control_cancel_request":
                self.reading.answers[message["request_id"]] = "cancelled"
            case "control_response":
                answer = message["response"]
                uuid = self.recalls.get(answer["request_id"])
                if uuid and answer["response"]["cancelled"]:
                    for line in self.reading.lines:
                        line.is_taken_back |= line.uuid == uuid
            case _:
                pass

    def system(self, message: Json) -> None:
        match message["subtype"]:
            case "init":
                self.is_open = self.reading.has_init = True
                _add_change(self.reading.sessions, message["session_id"])
                _add_change(self.reading.models, message["model"])
            case "model_fallback":
                _add_change(self.reading.models, message["fallback_model"])
            case "api_retry":
                self.turn.retries.append(message["attempt"])
            case "compact_boundary":
                self.reading.compactions.append(message["compact_metadata"])
            case _:
                pass

    def assistant(self, message: Json) -> None:
        if message.get("parent_tool_use_id"):
            return
        is_local = message["message"]["model"] == ITSELF
        for block in message["message"]["content"]:
            if block["type"] == "tool_use":
                self.turn.opened.append(Use(block["id"], block["name"], block["input"]))
            elif block["type"] == "thinking":
                self.turn.thoughts.append(block["thinking"])
            elif block["type"] == "text" and not message.get("error"):
                (self.local if is_local else self.turn.texts).append(block["text"])

    def user(self, message: Json) -> None:
        content = message["message"]["content"]
        if message.get("parent_tool_use_id") or isinstance(content, str):
            return
        if message.get("isReplay"):
            self.echoed(message.get("uuid"), "\n".join(texts_of(content)))
        for block in content:
            if block["type"] == "tool_result":
                is_error = block.get("is_error") is True
                result = Result(block["tool_use_id"], is_error, block["content"])
                self.turn.closed.append(result)

    def echoed(self, uuid: str | None, text: str) -> None:
        """Find the line that came back: by its name, or by its words if it has none."""
        named = [line for line in self.reading.lines if line.uuid and line.uuid == uuid]
        alike = [line for line in self.reading.lines if not line.uuid and line.text == text]
        for line in (named or alike)[:1]:
            if self.is_open:
                line.echoed_in = len(self.reading.turns)
            else:
                line.echoed_before = len(self.reading.turns)

    def streamed(self, message: Json) -> None:
        event = message["event"]
        if message.get("parent_tool_use_id") or event["type"] != "content_block_delta":
            return
        self.turn.text_deltas += event["delta"].get("text", "")
        self.turn.thinking_deltas += event["delta"].get("thinking", "")

    def result(self, message: Json) -> None:
        turn = self.turn
        said = message.get("result")
        # The CLI's own lines are an answer if the result has them; else they stand for nothing.
        turn.texts += [text for text in self.local if said and text.strip() == said.strip()]
        turn.outcome = outcome_of(message)
        whole = said is not None and (turn.outcome == "completed" or not message["is_error"])
        turn.text = said if whole else (turn.texts[-1] if turn.texts else None)
        turn.complaint = None if whole else said or next(iter(message.get("errors", [])), None)
        self.count(message)
        self.reading.turns.append(turn)
        self.turn, self.local, self.is_open = Turn(), [], False

    def count(self, message: Json) -> None:
        """The counters are those of the whole process."""
        tokens = tokens_of(message["modelUsage"].values())
        usd = message["total_cost_usd"] - self.reading.total_usd
        spent = tokens.minus(self.tokens)
        if self.turn.outcome != "cancelled" or any(spent) or usd:
            self.turn.usd, self.turn.tokens = usd, spent
        self.reading.total_usd, self.tokens = message["total_cost_usd"], tokens


def outcome_of(result: Json) -> Outcome:
    """How a turn ended, by the structure of its result; what it says in words does not count."""
    if str(result.get("terminal_reason")).startswith("aborted"):
        return "cancelled"
    if not result["is_error"]:
        return "completed"
    return "rate_limited" if result.get("api_error_status") == 429 else "failed"


def tokens_of(models: Any) -> Tokens:
    """What all models have used together."""
    names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
    used = list(models)
    return Tokens(*(sum(model[name] for model in used) for name in names))


def texts_of(content: str | Sequence[Json]) -> Iterator[str]:
    """The words of a message."""
    if isinstance(content, str):
        yield content
        return
    yield from (block["text"] for block in content if block["type"] == "text")


def _add_change(values: list[str], value: str) -> None:
    if values[-1:] != [value]:
        values.append(value)
