"""The objects that an operation may use: the store, the clock, and the daemon if there is one."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from steadyrun.dialect import Ability, EnforcedRights, Refused
from steadyrun.lib.clock import Clock
from steadyrun.model.agent import Agent
from steadyrun.model.budget import BudgetRules
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.ids import AgentId, Ids, RunId
from steadyrun.model.item import Message
from steadyrun.model.policy import Rights
from steadyrun.model.secret import Scrubber
from steadyrun.operations.documents import DaemonDocument, PriceSource, StoppedDocument
from steadyrun.store import Accepted, MaintainedStore

# The state of the process of an agent. A process with background tasks is not closed.
ProcessState = Literal["idle", "busy", "background"]


class DaemonView(Protocol):
    """The part of the running daemon that operations use."""

    def describe(self) -> DaemonDocument:
        """Return the version, the load and the state of the daemon."""

    async def accept(self, message: Message) -> Accepted:
        """Store a message, and start its run at once if that is possible."""

    def find_process_state(self, agent: AgentId) -> ProcessState | None:
        """Return the state of the process; None if the agent has no process."""

    def is_waiting(self, agent: AgentId) -> bool:
        """Return whether the run of the agent waits for an answer of a user."""

    async def release(self, agent: AgentId) -> None:
        """Close the process of the agent if it is idle."""

    async def stop(self, drain_seconds: float | None, *, keep: bool) -> StoppedDocument:
        """Start no new runs, wait for current ones (None: the configured time), then stop them or,
        with `keep`, leave them to their keepers. The daemon ends after this returns. If the caller
        disconnects and this call is cancelled, the daemon still stops."""

    def follow(
        self, *, agent: Agent | None, run: RunId | None, after: int
    ) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
        """Yield every event after the cursor, of an agent, of a run or of all: first the stored
        ones, then new ones, none twice. A slow reader misses live events only."""


@dataclass(frozen=True, slots=True)
class OperationContext:
    """The first argument of every operation. `daemon` is None outside of the daemon."""

    store: MaintainedStore
    clock: Clock
    ids: Ids
    home: Path
    # The abilities of a provider as it is configured; None if there is no such provider.
    abilities: Callable[[str], frozenset[Ability] | None]
    # Whether a provider can enforce the rights.
    enforce: Callable[[str, Rights], EnforcedRights | Refused]
    daemon: DaemonView | None = None
    budgets: BudgetRules = field(default_factory=BudgetRules)
    # The source of price estimates; None if it is not configured.
    prices: Callable[[], PriceSource] | None = None
    # The user who calls, by what the kernel says (`caller.name_user`). None: a program of the
    # home's owner that names the author of an answer itself.
    caller: str | None = None
    scrubber: Scrubber = field(default_factory=Scrubber)

    async def accept(self, message: Message) -> Accepted:
        return await (self.daemon or self.store).accept(message)
