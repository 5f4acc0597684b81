"""Reads facts from the raw frames of a recording of Claude Code.

It looks at a recording as a whole: results cut the output into turns, and everything else is
counted where it stands.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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

# What the CLI calls the author of the lines that it has written itself.
ITSELF = "<synthetic>"
# The tool of the CLI that is none: who was given a form answers by calling it.
FORM = "StructuredOutput"


def read(path: Path, *, one_shot: bool = False) -> Reading:
    """Read a recording; with `one_shot` a turn is open from the beginning."""
    reader = _Reader(one_shot=one_shot)
    for way, message in frames(path):
        (reader.told if way == "in" else reader.printed)(message)
    return reader.done()


class _Reader:
    def __init__(self, *, one_shot: bool) -> None:
        self.reading = Reading()
        self.turn = Turn()
        self.is_open = one_shot
        self.tokens = Tokens()
        self.recalls: dict[str, str] = {}
        self.local: list[str] = []
        self.forms: set[str] = set()

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
                        line.is_returned |= line.name == uuid
            case _:
                pass

    def system(self, message: Json) -> None:
        match message["subtype"]:
            case "init":
                self.is_open = self.reading.has_session = True
                add_change(self.reading.sessions, message["session_id"])
                add_change(self.reading.models, message["model"])
            case "model_fallback":
                add_change(self.reading.models, message["fallback_model"])
            case "api_retry":
                self.turn.retries.append(message["attempt"])
            case "compact_boundary":
                about = message["compact_metadata"]
                done = Compaction(about["trigger"], about["pre_tokens"], about["post_tokens"])
                self.reading.compactions.append(done)
            case _:
                pass

    def assistant(self, message: Json) -> None:
        if message.get("parent_tool_use_id"):
            return
        is_local = message["message"]["model"] == ITSELF
        for block in message["message"]["content"]:
            if block["type"] == "tool_use" and block["name"] == FORM:
                self.forms.add(block["id"])
                self.turn.texts.append(compact(block["input"]))
            elif block["type"] == "tool_use":
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
            if block["type"] == "tool_result" and block["tool_use_id"] not in self.forms:
                is_error = block.get("is_error") is True
                result = Result(block["tool_use_id"], is_error, block["content"])
                self.turn.closed.append(result)

    def echoed(self, uuid: str | None, text: str) -> None:
        """Find the line that came back: by its name, or by its words if it has none."""
        named = [line for line in self.reading.lines if line.name and line.name == uuid]
        alike = [line for line in self.reading.lines if not line.name and line.text == text]
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


def compact(value: Any) -> str:
    """JSON as the CLI itself writes it into a result."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


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
