"""What can a model say in one answer? Blocks, what they cost, and pauses between their pieces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steadyrun.testing.simulated.faults import Gate, Pause


@dataclass(frozen=True)
class Tokens:
    """The usage that an answer reports."""

    input: int = 10
    output: int = 5
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True)
class Text:
    """A text block; each of its pieces is one delta."""

    pieces: tuple[str | Pause, ...]


@dataclass(frozen=True)
class Thinking:
    """A thinking block with a made-up signature."""

    pieces: tuple[str | Pause, ...]


@dataclass(frozen=True)
class Call:
    """A tool_use block. An empty id is filled in: `toolu_sim_<request>_<block>`."""

    name: str
    input: Mapping[str, Any]
    id: str = ""


Block = Text | Thinking | Call


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


def text(*pieces: str | Pause) -> Text:
    return Text(pieces)


def thinking(*pieces: str | Pause) -> Thinking:
    return Thinking(pieces)


def call(tool: str, /, **arguments: Any) -> Call:
    """A tool call under an id of the server's choice."""
    return Call(tool, arguments)
