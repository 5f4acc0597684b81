"""Describes the frames of Claude Code, and which parts of them may differ."""

import re
from collections.abc import Callable
from typing import Any

from steadyrun.drivers.replay import RecordedLine
from tests.recordings.shapes import Json, Shape


def _kind_of(line: RecordedLine) -> str:
    if isinstance(line.msg, str):
        return "text"
    inner = [line.msg.get(name) for name in ("event", "request", "response", "message")]
    parts = [line.msg, *inner, *(_content(each) for each in inner)]
    words = [part.get(key) for part in parts if isinstance(part, dict) for key in _KINDS]
    marks = [mark for mark in ("isReplay", "isSynthetic", "error") if line.msg.get(mark)]
    return " ".join([line.dir, *(word for word in words if isinstance(word, str)), *marks])


_KINDS = ("type", "subtype")


def _content(part: Any) -> Any:
    """The first part of a message, or what has changed in a stream."""
    if not isinstance(part, dict):
        return None
    content = part.get("content") or [part.get("delta")]
    return content[0] if isinstance(content, list) else {"type": "string"}


def _garbled(message: Json, value: Any) -> Json:
    kept = {key: message[key] for key in _KINDS if key in message}
    return dict.fromkeys(message, value) | kept


def _reworded(message: Json, words: Callable[[str], str]) -> Json:
    said: Json = {}
    if isinstance(message.get("result"), str):
        said["result"] = words(message["result"])
    if "errors" in message:
        said["errors"] = [words(error) for error in message["errors"]]
    if message.get("type") == "assistant":
        content = [
            block | {"text": words(block["text"])} if block["type"] == "text" else block
            for block in message["message"]["content"]
        ]
        said["message"] = message["message"] | {"content": content}
    return message | said


def _beside(message: Json, value: Any) -> Json:
    names = ("usage", "modelUsage", "permission_denials", "duration_ms", "uuid", "fast_mode_state")
    is_end = message.get("type") == "result"
    return message | {name: value for name in names if is_end and name in message}


CLAUDE = Shape(
    names=re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:toolu|msg)_[0-9a-f]+"),
    noise=(
        "Warning: this is no frame",
        "{",
        "[]",
        "null",
        '"result"',
        {"type": "no_such_type", "session_id": "x", "is_error": True},
        {"type": "system", "subtype": "no_such_subtype", "status": "compacting"},
        {"subtype": "success", "result": "no type"},
        {"type": None},
        {"type": ["result"]},
    ),
    prose=(
        "",
        "API Error: 429 rate limit exceeded",
        "Prompt is too long",
        "Not logged in · Please run /login",
        "Overloaded",
        "[Request interrupted by user]",
        "No conversation found with session ID",
        "(no content)",
    ),
    kind_of=_kind_of,
    garbled=_garbled,
    emptied=lambda message: {"type": message["type"]},
    reworded=_reworded,
    beside=_beside,
    inner=(
        ("message",),
        ("event",),
        ("rate_limit_info",),
        ("compact_metadata",),
        ("request",),
        ("response",),
    ),
    kinds=("type",),
)
