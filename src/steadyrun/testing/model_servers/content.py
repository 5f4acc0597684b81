"""What can a model say in one answer? Blocks, what they cost, and pauses between their pieces."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from steadyrun.testing.model_servers.faults import Break, Cut, Pause, StreamGate


@dataclass(frozen=True)
class AnswerTokens:
    """The usage that an answer reports. What the cache read or wrote is not part of the input."""

    input: int = 10
    output: int = 5
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    """The part of the output that was thought; not every wire tells it."""

    @property
    def whole_input(self) -> int:
        return self.input + self.cache_read + self.cache_write


@dataclass(frozen=True)
class TextBlock:
    """A text block; each of its pieces is one delta. OpenAI's may tell its phase."""

    pieces: tuple[str | Pause, ...]
    phase: str = ""


@dataclass(frozen=True)
class ThinkingBlock:
    """A thinking block, on OpenAI's wires a summary of one; a signature is made up."""

    pieces: tuple[str | Pause, ...]


@dataclass(frozen=True)
class CallBlock:
    """A tool call. An empty id is filled in from the numbers of the request and the block.

    Input that is a string is for a tool without a schema. A namespace is the Responses wire's.
    """

    name: str
    input: Mapping[str, Any] | str
    id: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class RawBlock:
    """A block in the wire's own words."""

    fields: Mapping[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | CallBlock | RawBlock


@dataclass(frozen=True)
class ModelAnswer:
    """What the model says to one request. The stop reason follows from the blocks if not given."""

    parts: tuple[AnswerBlock | Pause, ...]
    tokens: AnswerTokens = AnswerTokens()
    stop: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    held: StreamGate | None = None


def answer(
    *parts: str | AnswerBlock | Pause,
    tokens: AnswerTokens | None = None,
    stop: str = "",
    headers: Mapping[str, str] | None = None,
    held: StreamGate | None = None,
) -> ModelAnswer:
    """An answer of blocks; a plain string is a text block. `held` stands before the headers."""
    blocks = tuple(text(part) if isinstance(part, str) else part for part in parts)
    return ModelAnswer(blocks, tokens or AnswerTokens(), stop, headers or {}, held)


def text(*pieces: str | Pause, phase: str = "") -> TextBlock:
    return TextBlock(pieces, phase)


def thinking(*pieces: str | Pause) -> ThinkingBlock:
    return ThinkingBlock(pieces)


def call(tool: str, written: str | None = None, /, **arguments: Any) -> CallBlock:
    """A tool call under an id of the server's choice; `written` is for a tool without a schema."""
    return CallBlock(tool, arguments if written is None else written)


def raw(**fields: Any) -> RawBlock:
    """A block as it goes over the wire."""
    return RawBlock(fields)


def join_text(part: TextBlock | ThinkingBlock) -> str:
    """All that a block says."""
    return "".join(piece for piece in part.pieces if isinstance(piece, str))


def encode_input(part: CallBlock) -> str:
    """A call's input as the model writes it."""
    return part.input if isinstance(part.input, str) else json.dumps(part.input)


def split_in_two(written: str) -> tuple[str, str]:
    """Something written, in two pieces."""
    middle = len(written) // 2
    return written[:middle], written[middle:]


def iter_pauses(step: ModelAnswer) -> Iterator[Pause]:
    """The pauses of an answer, those inside its blocks too."""
    for part in step.parts:
        inside = part.pieces if isinstance(part, TextBlock | ThinkingBlock) else (part,)
        yield from (piece for piece in inside if isinstance(piece, StreamGate | Cut | Break))


def iter_blocks(step: ModelAnswer) -> Iterator[AnswerBlock]:
    """The blocks of an answer, without the pauses between them."""
    yield from (part for part in step.parts if not isinstance(part, StreamGate | Cut | Break))


def number_parts(step: ModelAnswer) -> Iterator[tuple[int, AnswerBlock | Pause]]:
    """The parts of an answer, each with the number of the block that it is or stands before."""
    number = 0
    for part in step.parts:
        yield number, part
        number += not isinstance(part, StreamGate | Cut | Break)
