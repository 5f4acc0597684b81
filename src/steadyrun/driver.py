"""The contract of a driver: how the runtime starts, drives and stops a provider process."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from steadyrun.dialect import (
    Ability,
    EnforcedRights,
    LaunchRequest,
    Offer,
    Refused,
    Turn,
    TurnBegan,
    TurnEnded,
    Verdict,
)
from steadyrun.model.event import Emitted
from steadyrun.model.ids import HolderId, ProcessId
from steadyrun.model.policy import Rights
from steadyrun.model.process import Process

DriverOutput = Emitted | TurnBegan | TurnEnded


class JournalBatch(Struct, frozen=True):
    """What was heard up to `offset` of a process's journal.

    `memory` is what to save at a turn's end, `sent` the number of the last frame sent by then. A
    turn's beginning or end comes with nothing but what its own frame says. `has_more` is true when
    the next stretch is in the journal already: there is no hurry then to pass this one on.
    """

    output: list[DriverOutput]
    offset: int
    sent: int
    memory: bytes | None = None
    has_more: bool = False


Sink = Callable[[JournalBatch], Awaitable[None]]


class Driver(Protocol):
    """Drives one process. The verbs may be called while `follow` runs."""

    @property
    def abilities(self) -> frozenset[Ability]:
        """What this process can do: one that was started for a single turn can do less."""

    @property
    def is_open(self) -> bool:
        """Whether a turn is open."""

    @property
    def has_open_tools(self) -> bool: ...

    @property
    def has_background(self) -> bool:
        """See `Dialect.has_background`."""

    @property
    def input(self) -> str | None:
        """What the open turn took; see `TurnBegan`."""

    @property
    def output_at(self) -> float:
        """When, by the monotonic clock, the process last said anything."""

    @property
    def input_at(self) -> float:
        """When anything was last said to it."""

    async def follow(self) -> None:
        """Pass on what the process says until it is gone and everything has been read."""

    def has_sent(self, turn: Turn) -> bool:
        """Whether this turn was told to the process, by this driver or an earlier one."""

    async def begin(self, turn: Turn, *, is_wanted: Callable[[], bool] = ...) -> bool:
        """Shake hands, wait until it is ready, tell the turn if it is still wanted. Twice told is
        once: False if it had been told before."""

    async def steer(self, offer: Offer) -> Refused | None:
        """Offer a message to the open turn; events tell what becomes of it."""

    async def recall(self, offer: str) -> bool:
        """Take an offer back; False if the CLI cannot. An event tells whether it did."""

    async def interrupt(self) -> bool:
        """Ask for the end of the open turn; False when only stopping the process will do."""

    async def decide(self, approval: str, verdict: Verdict) -> None: ...

    async def close(self) -> None:
        """Say that nothing more will be said: the process ends by itself."""

    async def stop(self, reason: str) -> None:
        """End the process and all it started; `follow` returns when they are gone."""


class Launcher(Protocol):
    """Starts processes, and takes over those that live or have left something to read."""

    def find_abilities(self, provider: str, *, one_shot: bool = False) -> frozenset[Ability]:
        """What a provider can do, if need be started for a single turn; `NotFound` if there is none
        of that name."""

    def enforce(
        self, provider: str, rights: Rights, *, one_shot: bool = False
    ) -> EnforcedRights | Refused:
        """See `Dialect.enforce`."""

    def find_wall_seconds(self, provider: str) -> float | None: ...

    def encode_setup(self, provider: str) -> bytes:
        """All that its configuration says of how it is launched, in a form that can be compared. It
        has secrets in it."""

    def find_model(self, provider: str) -> str | None:
        """The model to use where nobody says otherwise."""

    def name_directory(self, process: ProcessId) -> str:
        """Where a process will have its keeper: `Process.keeper`."""

    async def launch(
        self, process: Process, request: LaunchRequest, *, env: Mapping[str, str]
    ) -> None:
        """Start a process, or raise `LaunchFailed`; it then lives until it is stopped. `env` is
        added to its environment."""

    def drive(
        self, process: Process, *, holder: HolderId, fence: int, sink: Sink
    ) -> AbstractAsyncContextManager[Driver]:
        """Claim the process and drive it; leaving the block lets go of it, not end it."""

    async def read_requests(self, processes: Sequence[Process]) -> dict[ProcessId, LaunchRequest]:
        """What each of them was launched with; one that never was is left out."""

    async def end(self, process: Process, *, holder: HolderId, fence: int) -> None:
        """End a process that nobody can drive, and all it has started: what it says is lost."""

    async def list_remains(self) -> dict[ProcessId, datetime]:
        """The processes that have left files here, and when those were last written to."""

    async def delete_remains(self, process: ProcessId) -> bool:
        """Delete what a process has left, and whether that was done: one that lives keeps it."""
