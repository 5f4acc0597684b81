"""Describes the frames of Codex, and which parts of them may differ."""

import re
from collections.abc import Callable
from typing import Any

from steadyrun.drivers.replay import RecordedLine
from tests.recordings.shapes import Json, Shape, get, put

# What is said in words, wherever it stands; deltas and items say the same words.
_WORDS = (
    ("params", "delta"),
    ("params", "message"),
    ("params", "summary"),
    ("params", "error", "message"),
    ("params", "error", "additionalDetails"),
    ("params", "turn", "error", "message"),
    ("params", "item", "text"),
    ("error", "message"),
    ("error", "data", "message"),
    ("item", "text"),
    ("item", "message"),
    ("message",),
)
# What tells whose a frame is, and what it is.
_KEPT = ("threadId", "turnId", "itemId", "requestId", "type", "id")
_INNER = ("item", "turn", "error", "tokenUsage", "rateLimits", "thread", "usage", "status")


def _kind_of(line: RecordedLine) -> str:
    if isinstance(line.msg, str):
        return "text"
    body = line.msg.get("params") or line.msg
    answer = line.msg.get("result", line.msg.get("error"))
    words = [line.msg.get("method"), line.msg.get("type"), get(body, ("item", "type"))]
    words += [get(body, (part, "status")) for part in ("item", "turn")]
    words += [get(body, ("status", "type")), get(body, ("willRetry",))]
    keys = " ".join(answer) if isinstance(answer, dict) else ""
    found = " ".join(str(word) for word in words if word is not None)
    return f"{line.dir} {found or f'answer {keys}'}"


def _garbled(message: Json, value: Any) -> Json:
    """What it is about stays; a frame about nothing is another matter."""
    kept = {key: part for key, part in message.items() if key in ("method", "type", "id")}
    rest = {key: part for key, part in message.items() if key not in kept}
    return kept | {key: _garbled_part(part, value) for key, part in rest.items()}


def _garbled_part(part: Any, value: Any) -> Any:
    if not isinstance(part, dict):
        return value
    return {
        key: _garbled_part(inner, value) if key in _INNER else inner if key in _KEPT else value
        for key, inner in part.items()
    }


def _emptied(message: Json) -> Json:
    return {key: message[key] for key in ("method", "type", "id") if key in message}


def _reworded(message: Json, words: Callable[[str], str]) -> Json:
    # What fails under `exec` has no other place for the status of the API's answer.
    is_failure = message.get("type") == "turn.failed"
    for path in _WORDS:
        said = get(message, path)
        # What an API has answered is passed on as it is: that is no prose.
        if isinstance(said, str) and not said.startswith('{"error":') and not is_failure:
            message = put(message, path, words(said))
    items = get(message, ("params", "turn", "items"))
    if items:
        stated = [item | {"text": words(item["text"])} for item in items]
        message = put(message, ("params", "turn", "items"), stated)
    return message


def _beside(message: Json, value: Any) -> Json:
    for path in _BESIDE:
        if get(message, path) is not None:
            message = put(message, path, value)
    return message


_BESIDE = (
    ("emittedAtMs",),
    ("usage",),
    ("params", "tokenUsage"),
    ("params", "rateLimits"),
    ("params", "status"),
    ("params", "turn", "itemsView"),
    ("params", "turn", "rootTurnId"),
    ("params", "turn", "durationMs"),
    ("params", "turn", "startedAt"),
    ("params", "item", "startedAtMs"),
    ("params", "item", "memoryCitation"),
    ("params", "item", "commandActions"),
    ("result", "model"),
    ("result", "thread", "path"),
    ("result", "thread", "status"),
    ("result", "turn", "status"),
)


CODEX = Shape(
    names=re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:msg|call|rs|req)_[0-9a-f]+"),
    noise=(
        "Warning: this is no frame",
        "{",
        "[]",
        "null",
        '"turn/completed"',
        {"method": "no/such/method", "params": {"status": "failed", "turn": {"id": "x"}}},
        {"method": "no/such/question", "id": 0, "params": {}},
        {"params": {"turn": {"status": "completed"}}},
        {"method": None, "params": {}},
        {"method": ["turn/completed"]},
        {"id": 123456, "result": {"turn": {"id": "x"}}},
        {"id": "unknown:request", "error": {"code": -32600, "message": "no active turn to steer"}},
        {"type": "no.such.type", "usage": {"input_tokens": 1}},
        {"type": ["turn.completed"]},
    ),
    prose=(
        "",
        "exceeded retry limit, last status: 429 Too Many Requests",
        "You've hit your usage limit. Try again at 11:32 PM.",
        "no rollout found for thread id 01a1e154-0000-7000-8000-000000000000",
        "thread not found",
        "no active turn to steer",
        "Not inside a trusted directory and --skip-git-repo-check was not specified.",
        "unexpected status 401 Unauthorized",
        "Reconnecting... 3/5",
        "turn aborted by user",
    ),
    kind_of=_kind_of,
    garbled=_garbled,
    emptied=_emptied,
    reworded=_reworded,
    beside=_beside,
    inner=(
        ("params",),
        ("params", "item"),
        ("params", "turn"),
        ("params", "error"),
        ("params", "tokenUsage"),
        ("params", "tokenUsage", "total"),
        ("params", "tokenUsage", "last"),
        ("params", "rateLimits"),
        ("params", "rateLimits", "primary"),
        ("result",),
        ("result", "turn"),
        ("result", "thread"),
        ("error",),
        ("item",),
        ("usage",),
    ),
    kinds=("method", "type"),
)
