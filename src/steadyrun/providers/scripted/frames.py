"""Defines the frames that the scripted CLI reads and prints, tagged by `type`."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from steadyrun.dialect import Image
from steadyrun.model.event import JsonObject
from steadyrun.model.usage import Usage
from steadyrun.providers.shared.numbers import StoredInteger


class _InputFrame(Struct, frozen=True, tag_field="type"):
    """A frame that the scripted CLI reads."""


class HelloFrame(_InputFrame, frozen=True, tag="hello"): ...


class TurnFrame(_InputFrame, frozen=True, tag="turn", omit_defaults=True):
    key: str
    text: str
    images: tuple[Image, ...] = ()
    schema: JsonObject | None = None


class SteerFrame(_InputFrame, frozen=True, tag="steer"):
    id: str
    text: str


class RecallFrame(_InputFrame, frozen=True, tag="recall"):
    id: str


class InterruptFrame(_InputFrame, frozen=True, tag="interrupt"):
    turn: str


class DecideFrame(_InputFrame, frozen=True, tag="decide"):
    ask: str
    allow: bool
    message: str = ""
    ends_turn: bool = False
    always: bool = False


class _OutputFrame(Struct, frozen=True, tag_field="type"):
    """A frame that the scripted CLI prints."""


class ReadyFrame(_OutputFrame, frozen=True, tag="ready"):
    token: str | None


class BeganFrame(_OutputFrame, frozen=True, tag="began"):
    turn: str
    by: Literal["turn", "offer", "self"]
    text: str | None = None


class ScriptedFailure(Struct, frozen=True):
    code: str
    message: str
    hint: str = ""
    retryable: bool = False
    resets_at: float | None = None


class EndedFrame(_OutputFrame, frozen=True, tag="ended"):
    turn: str
    status: Literal["completed", "failed", "cancelled", "rate_limited"]
    result: str | None = None
    error: ScriptedFailure | None = None
    usage: Usage | None = None
    cost_usd: float | None = None


class TextFrame(_OutputFrame, frozen=True, tag="text", gc=False):
    text: str


class DeltaFrame(_OutputFrame, frozen=True, tag="delta", gc=False):
    text: str


class ThinkingFrame(_OutputFrame, frozen=True, tag="thinking", gc=False):
    text: str


class ToolStartFrame(_OutputFrame, frozen=True, tag="tool_start"):
    id: str
    name: str
    input: Any = None


class ToolEndFrame(_OutputFrame, frozen=True, tag="tool_end"):
    id: str
    name: str
    input: Any = None
    output: Any = None
    error: str | None = None


class AskFrame(_OutputFrame, frozen=True, tag="ask"):
    id: str
    call: str
    name: str
    input: Any = None


class AbsorbedFrame(_OutputFrame, frozen=True, tag="absorbed"):
    offer: str
    text: str


class ReturnedFrame(_OutputFrame, frozen=True, tag="returned"):
    offer: str
    text: str
    reason: str | None = None


class UsageFrame(_OutputFrame, frozen=True, tag="usage"):
    usage: Usage
    cost_usd: float | None = None


class StatsFrame(_OutputFrame, frozen=True, tag="stats"):
    model: str | None = None
    context_window: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    terminal_reason: str | None = None


class ImageFrame(_OutputFrame, frozen=True, tag="image"):
    name: str
    media_type: str
    size_bytes: int


class CompactingFrame(_OutputFrame, frozen=True, tag="compacting"):
    trigger: str | None = None


class CompactedFrame(_OutputFrame, frozen=True, tag="compacted"):
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    error: str | None = None


class RetryingFrame(_OutputFrame, frozen=True, tag="retrying"):
    reason: str
    attempt: int = 1
    delay_ms: int | None = None


class NoteFrame(_OutputFrame, frozen=True, tag="note"):
    text: str


class BackgroundFrame(_OutputFrame, frozen=True, tag="background"):
    # How many turns it will still begin by itself.
    open: StoredInteger


InputFrame = HelloFrame | TurnFrame | SteerFrame | RecallFrame | InterruptFrame | DecideFrame

OutputFrame = (
    ReadyFrame | BeganFrame | EndedFrame | AbsorbedFrame | ReturnedFrame | BackgroundFrame
    | TextFrame | DeltaFrame | ThinkingFrame | NoteFrame
    | ToolStartFrame | ToolEndFrame | AskFrame | CompactingFrame | CompactedFrame
    | UsageFrame | StatsFrame | ImageFrame | RetryingFrame
)  # fmt: skip

decode_input: Callable[[bytes], InputFrame] = msgspec.json.Decoder(InputFrame).decode
decode_output: Callable[[bytes], OutputFrame] = msgspec.json.Decoder(OutputFrame).decode
