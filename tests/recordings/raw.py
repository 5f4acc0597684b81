"""Defines what the readers of raw frames find in a recording, for any CLI.

The readers are a second opinion on our Dialects: they import no code of ours and take over nothing
from how a Dialect works.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Outcome = Literal["completed", "failed", "cancelled", "rate_limited"]
Json = dict[str, Any]


class Tokens(NamedTuple):
    """Read, written, and both for the cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def minus(self, other: "Tokens") -> "Tokens":
        return Tokens(*(mine - its for mine, its in zip(self, other, strict=True)))

    def plus(self, other: "Tokens") -> "Tokens":
        return Tokens(*(mine + its for mine, its in zip(self, other, strict=True)))


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


class Compaction(NamedTuple):
    """The conversation was made shorter."""

    trigger: str
    tokens_before: int | None
    tokens_after: int | None


@dataclass
class Line:
    """A message that was written to the CLI. `turn` counts from 0."""

    text: str
    # The name that it was given.
    name: str | None
    # The turn that was open when it was written; None if there was none.
    while_open: int | None
    # Where it came back: in which turn, or before which one.
    echoed_in: int | None = None
    echoed_before: int | None = None
    # It was refused, withdrawn, or never taken.
    is_returned: bool = False
    # It was meant for a turn that is open, although there was none.
    is_offer: bool = False

    @property
    def is_followup(self) -> bool:
        return self.while_open is not None or self.is_offer


@dataclass
class Turn:
    """What was printed up to one end, or up to the end of the process without one."""

    outcome: Outcome = "failed"
    # None where there is none, and where nothing says which of the texts was the answer.
    text: str | None = None
    # What the CLI says of a failure; never part of the answer.
    complaint: str | None = None
    # The kind of the failure, where the frames have a structure that tells it.
    code: str | None = None
    texts: list[str] = field(default_factory=list)
    text_deltas: str = ""
    thinking_deltas: str = ""
    thoughts: list[str] = field(default_factory=list)
    opened: list[Use] = field(default_factory=list)
    closed: list[Result] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    # Why it tried again, as `code`.
    retry_codes: list[str] = field(default_factory=list)
    # None: it was not said, or nothing was counted although a model was at work.
    usd: float | None = None
    tokens: Tokens | None = None
    is_cut_short: bool = False
    resets_at: int | None = None
    # No message was sent to start this turn.
    is_self: bool = False


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
    compactions: list[Compaction] = field(default_factory=list)
    has_session: bool = False

    @property
    def followups(self) -> list[Line]:
        return [line for line in self.lines if line.is_followup]


def frames(path: Path) -> Iterator[tuple[str, Json]]:
    """Where each frame went, and what it was."""
    for record in map(json.loads, path.read_text("utf-8").splitlines()):
        if isinstance(record["msg"], dict):
            yield record["dir"], record["msg"]


def add_change(values: list[str], value: str) -> None:
    """Add what is not the last one already."""
    if values[-1:] != [value]:
        values.append(value)
