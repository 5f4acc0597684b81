"""What can a model say in one answer? Blocks, what they cost, and pauses between their pieces."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from steadyrun.testing.model_servers.faults import Break, Cut, Gate, Pause


@dataclass(frozen=True)
class Tokens:
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
class Text:
    """A text block; each of its pieces is one delta. OpenAI's may tell its phase."""

    pieces: tuple[str | Pause, ...]
    phase: str = ""


@dataclass(frozen=True)
class Thinking:
    """A thinking block, on OpenAI's wires a summary of one; a signature is made up."""

    pieces: tuple[str | Pause, ...]


@dataclass(frozen=True)
class Call:
    """A tool call. An empty id is filled in from the numbers of the request and the block.

    Input that is a string is for a tool without a schema. A namespace is the Responses wire's.
    """

    name: str
    input: Mapping[str, Any] | str
    id: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class Raw:
    """A block in the wire's own words."""

    fields: Mapping[str, Any]


Block = Text | Thinking | Call | Raw


@dataclass(frozen=True)
class Answer:
    """What the model says to one request. The stop reason follows from the blocks if not given."""

    parts: tuple[Block | Pause, ...]
    tokens: Tokens = Tokens()
    stop: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    held: Gate | None = None


def answer(
    *parts: str | Block | Pause,
    tokens: Tokens | None = None,
    stop: str = "",
    headers: Mapping[str, str] | None = None,
    held: Gate | None = None,
) -> Answer:
    """An answer of blocks; a plain string is a text block. `held` stands before the headers."""
    blocks = tuple(text(part) if isinstance(part, str) else part for part in parts)
    return Answer(blocks, tokens or Tokens(), stop, headers or {}, held)


def text(*pieces: str | Pause, phase: str = "") -> Text:
    return Text(pieces, phase)


def thinking(*pieces: str | Pause) -> Thinking:
    return Thinking(pieces)


def call(tool: str, written: str | None = None, /, **arguments: Any) -> Call:
    """A tool call under an id of the server's choice; `written` is for a tool without a schema."""
    return Call(tool, arguments if written is None else written)


def raw(**fields: Any) -> Raw:
    """A block as it goes over the wire."""
    return Raw(fields)


def words_of(part: Text | Thinking) -> str:
    """All that a block says."""
    return "".join(piece for piece in part.pieces if isinstance(piece, str))


def written_input(part: Call) -> str:
    """A call's input as the model writes it."""
    return part.input if isinstance(part.input, str) else json.dumps(part.input)


def halves(written: str) -> tuple[str, str]:
    """Something written, in two pieces."""
    middle = len(written) // 2
    return written[:middle], written[middle:]


def pauses_in(step: Answer) -> Iterator[Pause]:
    """The pauses of an answer, those inside its blocks too."""
    for part in step.parts:
        inside = part.pieces if isinstance(part, Text | Thinking) else (part,)
        yield from (piece for piece in inside if isinstance(piece, Gate | Cut | Break))


def blocks_in(step: Answer) -> Iterator[Block]:
    """The blocks of an answer, without the pauses between them."""
    yield from (part for part in step.parts if not isinstance(part, Gate | Cut | Break))


def numbered(step: Answer) -> Iterator[tuple[int, Block | Pause]]:
    """The parts of an answer, each with the number of the block that it is or stands before."""
    number = 0
    for part in step.parts:
        yield number, part
        number += not isinstance(part, Gate | Cut | Break)
