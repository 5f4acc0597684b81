"""Defines what a provider supplies so that its promises can be checked."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from steadyrun.dialect import Ability, Refused, Verdict
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.ids import ItemId, RunId
from steadyrun.model.run import Run
from steadyrun.model.secret import Secret
from steadyrun.store import Store

# A run that `waits` ends when this file is in the working directory.
GO = "go"
LONG_BYTES = 10 << 20
FLOOD_BYTES = 2 << 20

Situation = Literal[
    "answers",                 # completes; `expected` is the answer, or a part of it
    "learns", "recalls",       # gets a fact; prints it, `expected`, in the resumed conversation
    "is_long",                 # the prompt has `LONG_BYTES` or more
    "waits",                   # prints something, and completes when the file `GO` exists
    "hangs",                   # prints something, and ends only when it is interrupted
    "is_deaf",                 # the same, and it ignores interrupts
    "crashes",                 # prints something, then its process exits during the turn
    "leaves_process",          # completes, and leaves a process in a session of its own
    "leaves_tool",             # completes while a tool is still running
    "asks",                    # requests approval of a tool, and completes with any answer
    "is_novel", "is_no_json", "is_no_text",  # prints `expected`: unknown, not JSON, or not UTF-8
    "floods_stderr",           # prints `FLOOD_BYTES` or more on stderr, and completes
    "tells_secret",            # prints the harness's secret, which is in its environment
    "tells_secret_in_pieces",  # the same, in pieces
]  # fmt: skip


class Prompt(Struct, frozen=True):
    """The prompt that causes a situation, and the output that is expected then."""

    text: str
    expected: str | bytes = ""


class OfferedMessage(Protocol):
    """A message that was offered to a run."""

    @property
    def item(self) -> ItemId: ...


class RunLike(Protocol):
    """A handle to one run, as `steadyrun.library` gives it."""

    id: RunId

    def events(self) -> AsyncGenerator[StoredEvent | LiveEvent, None]: ...

    async def steer(self, text: str) -> OfferedMessage | Refused: ...

    async def decide(self, approval: str, verdict: Verdict) -> None: ...

    async def cancel(self, reason: str | None = None) -> Run: ...

    async def result(self) -> Run: ...


class Library(Protocol):
    """A program that uses the home, with one provider and the harness's working directory."""

    async def start(self, prompt: str, **options: Any) -> RunLike: ...

    async def run(self, run: str) -> RunLike: ...


class ProviderHarness(Protocol):
    """One provider and one empty home, on which a check may open several programs.

    `secret` is in the environment of the provider's process, by the configuration.
    """

    provider: str
    abilities: frozenset[Ability]
    home: Path
    cwd: Path
    secret: Secret
    # Whether the home is on a disk of its own that may be filled.
    has_small_disk: bool

    def find_prompt(self, situation: Situation) -> Prompt | None:
        """Return the prompt of a situation; None if the provider does not support it."""

    def open_library(
        self, *, command: tuple[str, ...] | None = None
    ) -> AbstractAsyncContextManager[Library]:
        """Open the home as a program does; `command` replaces the CLI."""

    def open_store(self) -> AbstractAsyncContextManager[Store]:
        """Open the store of the home."""

    def fill_disk(self) -> None:
        """Fill the disk of the home. Called only with `has_small_disk`."""


PromiseCheck = Callable[[ProviderHarness], Awaitable[None]]
SkipReason = Callable[[ProviderHarness], str | None]


@dataclass(frozen=True)
class ProviderPromise:
    """One check, with the situations and abilities that a provider needs for it."""

    check: PromiseCheck
    situations: tuple[Situation, ...] = ()
    abilities: tuple[Ability, ...] = ()
    unless: SkipReason | None = None

    @property
    def name(self) -> str:
        return self.check.__name__

    def find_skip_reason(self, harness: ProviderHarness) -> str | None:
        """Return why it does not apply to this provider; None if it applies."""
        lacking = [each for each in self.abilities if each not in harness.abilities]
        never = [each for each in self.situations if harness.find_prompt(each) is None]
        reasons = [f"it has no {each}" for each in lacking] + [
            f"no prompt {each}" for each in never
        ]
        more = self.unless(harness) if self.unless else None
        return ", ".join([*reasons, more] if more else reasons) or None


def make_promise(
    *situations: Situation, abilities: tuple[Ability, ...] = (), unless: SkipReason | None = None
) -> Callable[[PromiseCheck], ProviderPromise]:
    """Make a promise from a check, for providers with these situations and abilities."""

    def wrap(check: PromiseCheck) -> ProviderPromise:
        return ProviderPromise(check, situations, abilities, unless)

    return wrap
