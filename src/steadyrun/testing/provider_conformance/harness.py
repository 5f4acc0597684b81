"""What does a provider bring along so that its promises can be checked?"""

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

# Until this file is in the working directory, a run that `waits` does not end.
GO = "go"
LONG_BYTES = 10 << 20
FLOOD_BYTES = 2 << 20

Situation = Literal[
    "answers",                 # ends well; `said` is the answer, or a part of it
    "learns", "recalls",       # is told something; says it, `said`, when it goes on from there
    "is_long",                 # the prompt has `LONG_BYTES` or more
    "waits",                   # says something, and ends well once there is the file `GO`
    "hangs",                   # says something, and never ends; it may be asked to
    "is_deaf",                 # the same, and asking does not help
    "crashes",                 # says something, then its process ends in mid-turn
    "leaves_process",          # ends well, and leaves a process behind in a session of its own
    "leaves_tool",             # ends well, and a tool is still running
    "asks",                    # asks whether it may use a tool, and goes on either way
    "is_novel", "is_no_json", "is_no_text",  # prints `said`, a frame that nobody can know or read
    "floods_stderr",           # prints `FLOOD_BYTES` or more on stderr, and ends well
    "tells_secret",            # says the harness's secret, which is in its environment
    "tells_secret_in_pieces",  # the same, piece by piece
]  # fmt: skip


class Prompt(Struct, frozen=True):
    """What to ask for to get into a situation, and what is to be heard then."""

    text: str
    expected: str | bytes = ""


class OfferedMessage(Protocol):
    """A message that was offered to a turn."""

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
    """A program's view of the home, for one provider and in the harness's working directory."""

    async def start(self, prompt: str, **options: Any) -> RunLike: ...

    async def run(self, run: str) -> RunLike: ...


class ProviderHarness(Protocol):
    """One provider, one empty home, and as many programs on it as a check opens.

    `secret` is in the environment of the provider's process, and the configuration says so.
    """

    provider: str
    abilities: frozenset[Ability]
    home: Path
    cwd: Path
    secret: Secret
    # Whether the home is on a disk of its own that may be filled.
    has_small_disk: bool

    def prompt(self, situation: Situation) -> Prompt | None:
        """How to get there; None if this provider never does."""

    def library(
        self, *, command: tuple[str, ...] | None = None
    ) -> AbstractAsyncContextManager[Library]:
        """Open the home as a program does; `command` is another program in the CLI's place."""

    def store(self) -> AbstractAsyncContextManager[Store]:
        """Open the record of the home."""

    def fill_disk(self) -> None:
        """Take nearly all room on the home's disk. Only asked for where `has_small_disk`."""


PromiseCheck = Callable[[ProviderHarness], Awaitable[None]]
SkipReason = Callable[[ProviderHarness], str | None]


@dataclass(frozen=True)
class ProviderPromise:
    """One check, and what a provider must be able to do so that it means anything."""

    check: PromiseCheck
    situations: tuple[Situation, ...] = ()
    abilities: tuple[Ability, ...] = ()
    unless: SkipReason | None = None

    @property
    def name(self) -> str:
        return self.check.__name__

    def why_not(self, harness: ProviderHarness) -> str | None:
        """Why it does not apply to this provider, if so."""
        lacking = [each for each in self.abilities if each not in harness.abilities]
        never = [each for each in self.situations if harness.prompt(each) is None]
        reasons = [f"it has no {each}" for each in lacking] + [
            f"no prompt {each}" for each in never
        ]
        more = self.unless(harness) if self.unless else None
        return ", ".join([*reasons, more] if more else reasons) or None


def promise(
    *situations: Situation, abilities: tuple[Ability, ...] = (), unless: SkipReason | None = None
) -> Callable[[PromiseCheck], ProviderPromise]:
    """Make a promise of a check, for providers that know these situations and abilities."""

    def wrap(check: PromiseCheck) -> ProviderPromise:
        return ProviderPromise(check, situations, abilities, unless)

    return wrap
