"""Which frames pass between us and the scripted CLI? One struct for each, tagged by `type`."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from steadyrun.dialect import Image
from steadyrun.model.event import JsonObject
from steadyrun.model.usage import Usage


class _Told(Struct, frozen=True, tag_field="type", tag=str.lower):
    """What is said to it."""


class Hello(_Told, frozen=True): ...


class TurnFrame(_Told, frozen=True, tag="turn", omit_defaults=True):
    key: str
    text: str
    images: tuple[Image, ...] = ()
    schema: JsonObject | None = None


class Steer(_Told, frozen=True):
    id: str
    text: str


class Recall(_Told, frozen=True):
    id: str


class Interrupt(_Told, frozen=True):
    turn: str


class Decide(_Told, frozen=True):
    ask: str
    allow: bool
    message: str = ""
    ends_turn: bool = False
    always: bool = False


class _Printed(Struct, frozen=True, tag_field="type", tag=str.lower):
    """What it prints."""


class Ready(_Printed, frozen=True):
    token: str | None


class BeganFrame(_Printed, frozen=True, tag="began"):
    turn: str
    by: Literal["turn", "offer", "self"]
    text: str | None = None


class Failure(Struct, frozen=True):
    code: str
    message: str
    hint: str = ""
    retryable: bool = False
    resets_at: float | None = None


class EndedFrame(_Printed, frozen=True, tag="ended"):
    turn: str
    status: Literal["completed", "failed", "cancelled", "rate_limited"]
    result: str | None = None
    error: Failure | None = None
    usage: Usage | None = None
    cost_usd: float | None = None


class Text(_Printed, frozen=True, gc=False):
    text: str


class Delta(_Printed, frozen=True, gc=False):
    text: str


class Thinking(_Printed, frozen=True, gc=False):
    text: str


class ToolStart(_Printed, frozen=True, tag="tool_start"):
    id: str
    name: str
    input: Any = None


class ToolEnd(_Printed, frozen=True, tag="tool_end"):
    id: str
    name: str
    input: Any = None
    output: Any = None
    error: str | None = None


class Ask(_Printed, frozen=True):
    id: str
    call: str
    name: str
    input: Any = None


class Absorbed(_Printed, frozen=True):
    offer: str
    text: str


class Returned(_Printed, frozen=True):
    offer: str
    text: str
    reason: str | None = None


class UsageFrame(_Printed, frozen=True, tag="usage"):
    usage: Usage
    cost_usd: float | None = None


class Stats(_Printed, frozen=True):
    model: str | None = None
    context_window: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    terminal_reason: str | None = None


class ImageFrame(_Printed, frozen=True, tag="image"):
    name: str
    media_type: str
    size_bytes: int


class Compacting(_Printed, frozen=True):
    trigger: str | None = None


class Compacted(_Printed, frozen=True):
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    error: str | None = None


class Retrying(_Printed, frozen=True):
    reason: str
    attempt: int = 1
    delay_ms: int | None = None


class NoteFrame(_Printed, frozen=True, tag="note"):
    text: str


class Background(_Printed, frozen=True, tag="background"):
    # How many turns of its own it will begin.
    open: int


Told = Hello | TurnFrame | Steer | Recall | Interrupt | Decide

TurnPart = Ready | BeganFrame | EndedFrame | Absorbed | Returned | Background
ToolPart = ToolStart | ToolEnd | Ask
Words = Delta | Thinking | NoteFrame
Compaction = Compacting | Compacted
Fact = Words | Compaction | UsageFrame | Stats | ImageFrame | Retrying
Printed = Text | TurnPart | ToolPart | Fact

told_of: Callable[[bytes], Told] = msgspec.json.Decoder(Told).decode
printed_of: Callable[[bytes], Printed] = msgspec.json.Decoder(Printed).decode
