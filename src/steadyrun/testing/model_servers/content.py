"""Defines the content of one answer: blocks, their tokens, and pauses between their pieces."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from steadyrun.testing.model_servers.faults import Pause, StreamGate


@dataclass(frozen=True)
class AnswerTokens:
    """The usage that an answer reports. Cached tokens are not part of the input."""

    input: int = 10
    output: int = 5
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    """The part of the output that was reasoning; not every API reports it."""

    @property
    def whole_input(self) -> int:
        return self.input + self.cache_read + self.cache_write


@dataclass(frozen=True)
class TextBlock:
    """A text block; each piece is one delta. `phase` is for OpenAI's APIs only."""

    pieces: tuple[str | Pause, ...]
    phase: str = ""


@dataclass(frozen=True)
class ThinkingBlock:
    """A thinking block; a reasoning summary in OpenAI's APIs. The signature is invented."""

    pieces: tuple[str | Pause, ...]


@dataclass(frozen=True)
class CallBlock:
    """A tool call. An empty id is replaced by one made of the request's and the block's number.

    A string as input is for a tool without a schema. Only the Responses API has a namespace.
    """

    name: str
    input: Mapping[str, Any] | str
    id: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class RawBlock:
    """A block in the format of the API."""

    fields: Mapping[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | CallBlock | RawBlock


@dataclass(frozen=True)
class ModelAnswer:
    """The answer to one request. An empty stop reason is derived from the blocks."""

    parts: tuple[AnswerBlock | Pause, ...]
    tokens: AnswerTokens = AnswerTokens()
    stop: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    held: StreamGate | None = None

    @property
    def has_calls(self) -> bool:
        return any(isinstance(part, CallBlock) for part in self.parts)


def answer(
    *parts: str | AnswerBlock | Pause,
    tokens: AnswerTokens | None = None,
    stop: str = "",
    headers: Mapping[str, str] | None = None,
    held: StreamGate | None = None,
) -> ModelAnswer:
    """Build an answer of blocks; a string is a text block. `held` is a gate before the headers."""
    blocks = tuple(make_text(part) if isinstance(part, str) else part for part in parts)
    return ModelAnswer(blocks, tokens or AnswerTokens(), stop, headers or {}, held)


def make_text(*pieces: str | Pause, phase: str = "") -> TextBlock:
    return TextBlock(pieces, phase)


def make_thinking(*pieces: str | Pause) -> ThinkingBlock:
    return ThinkingBlock(pieces)


def call(tool: str, written: str | None = None, /, **arguments: Any) -> CallBlock:
    """Build a tool call without an id; `written` is the input of a tool without a schema."""
    return CallBlock(tool, arguments if written is None else written)


def make_raw(**fields: Any) -> RawBlock:
    """Build a block in the format of the API."""
    return RawBlock(fields)


def join_text(part: TextBlock | ThinkingBlock) -> str:
    """Join the text of a block."""
    return "".join(piece for piece in part.pieces if isinstance(piece, str))


def encode_input(part: CallBlock) -> str:
    """Encode the input of a call as the model writes it."""
    return part.input if isinstance(part.input, str) else json.dumps(part.input)


def split_in_two(written: str) -> tuple[str, str]:
    """Split a text into two pieces."""
    middle = len(written) // 2
    return written[:middle], written[middle:]


def iter_pauses(step: ModelAnswer) -> Iterator[Pause]:
    """Yield the pauses of an answer, also those inside its blocks."""
    for part in step.parts:
        inside = part.pieces if isinstance(part, TextBlock | ThinkingBlock) else (part,)
        yield from (piece for piece in inside if isinstance(piece, Pause))


def iter_blocks(step: ModelAnswer) -> Iterator[AnswerBlock]:
    """Yield the blocks of an answer, without the pauses between them."""
    yield from (part for part in step.parts if not isinstance(part, Pause))


def number_parts(step: ModelAnswer) -> Iterator[tuple[int, AnswerBlock | Pause]]:
    """Yield the parts of an answer; a pause has the number of the block that follows."""
    number = 0
    for part in step.parts:
        yield number, part
        number += not isinstance(part, Pause)
