"""Defines the contract of a driver: how the runtime starts, drives and stops a process."""

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
    """The output up to `offset` of the journal of a process.

    `memory` is the state to save at the end of a turn, `sent` the number of the last frame sent by
    then. The start or the end of a turn is in a batch with nothing but the output of its own frame.
    With `has_more`, the journal already has the next batch, and this one may wait for it.
    """

    output: list[DriverOutput]
    offset: int
    sent: int
    memory: bytes | None = None
    has_more: bool = False


class LaunchRecord(Struct, frozen=True):
    """What the files of a process say: the request of its launch, whether it was launched for the
    present generation of the store and not set aside, and the last turn that it was sent."""

    request: LaunchRequest
    is_of_store: bool = True
    last_turn: str | None = None


Sink = Callable[[JournalBatch], Awaitable[None]]


class Driver(Protocol):
    """Drives one process. The methods may be called while `follow` runs."""

    @property
    def abilities(self) -> frozenset[Ability]:
        """The abilities of this process: one that was started for a single turn has fewer."""

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
        """When the process last wrote something, by the monotonic clock."""

    @property
    def input_at(self) -> float:
        """When something was last written to the process, by the monotonic clock."""

    async def follow(self) -> None:
        """Pass the output to the sink until the process has ended and everything was read."""

    def has_sent(self, turn: Turn) -> bool:
        """Whether this turn was sent to the process, by this driver or an earlier one."""

    async def begin(self, turn: Turn, *, is_wanted: Callable[[], bool] = ...) -> bool:
        """Open the conversation, wait until the CLI is ready, and send the turn unless it was
        stopped by then. A turn is sent once: return False if it was sent before.
        """

    async def steer(self, offer: Offer) -> Refused | None:
        """Offer a message to the open turn; events report the result."""

    async def recall(self, offer: str) -> bool:
        """Recall an offer; False if the CLI cannot. An event reports the result."""

    async def interrupt(self) -> bool:
        """Interrupt the open turn; False if only a stop of the process can end it."""

    async def decide(self, approval: str, verdict: Verdict) -> None: ...

    async def close(self) -> None:
        """Close the input: the process ends by itself."""

    async def stop(self, reason: str) -> None:
        """End the process and its descendants; `follow` returns when they have ended."""


class Remains(Protocol):
    """The files of processes, which stay after their end."""

    async def list_written(self) -> dict[ProcessId, datetime]:
        """The processes whose files still exist, and when those were last written."""

    async def list_unmarked(self) -> list[ProcessId]:
        """The processes that have files and are not set aside."""

    async def is_stray(self, process: ProcessId) -> bool:
        """Whether a process that the store does not have is running, or was launched for another
        generation of the store."""

    async def mark_aside(self, process: ProcessId, why: str) -> None:
        """Mark a process: its files are kept, and no holder reads them. `why` is a code."""

    async def delete(self, process: ProcessId) -> bool:
        """Delete the files of a process that has ended; return False if it is running."""


class Launcher(Protocol):
    """Starts processes, and takes over those that are running or have unread output."""

    @property
    def files(self) -> Remains: ...

    def find_abilities(self, provider: str, *, one_shot: bool = False) -> frozenset[Ability]:
        """The abilities of a provider, or of one that is started for a single turn; `NotFound` if
        the provider does not exist."""

    def enforce(
        self, provider: str, rights: Rights, *, one_shot: bool = False
    ) -> EnforcedRights | Refused:
        """See `Dialect.enforce`."""

    def find_wall_seconds(self, provider: str) -> float | None: ...

    def encode_setup(self, provider: str) -> bytes:
        """All settings that affect how the provider is launched, in a form that can be compared. It
        contains secrets."""

    def find_model(self, provider: str) -> str | None:
        """The model of the configuration."""

    def name_directory(self, process: ProcessId) -> str:
        """The directory of the keeper of a process: `Process.keeper`."""

    async def launch(
        self, process: Process, request: LaunchRequest, *, env: Mapping[str, str]
    ) -> None:
        """Start a process, or raise `LaunchFailed`. It runs until it is stopped. `env` is added to
        its environment."""

    def drive(
        self, process: Process, *, holder: HolderId, fence: int, sink: Sink
    ) -> AbstractAsyncContextManager[Driver]:
        """Claim the process and drive it. The end of the block releases it and does not end it."""

    async def read_launches(self, processes: Sequence[Process]) -> dict[ProcessId, LaunchRecord]:
        """How the processes were launched; without those that never were."""

    async def end(self, process: Process, *, holder: HolderId, fence: int) -> None:
        """End a process that cannot be driven, and its descendants. Its output is discarded."""

    async def kill(self, process: Process) -> None:
        """Kill the keeper of a process that has to end and whose keeper does not answer. The rest
        of the process is ended when it is driven again."""

    async def end_any(self, process: ProcessId) -> None:
        """End a process of which nothing but its id is known, whichever holder has claimed it."""
