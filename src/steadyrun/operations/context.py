"""What may an operation use? The store, the clock, and the daemon if it runs in one."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from steadyrun.dialect import Ability, EnforcedRights, Refused
from steadyrun.lib.clock import Clock
from steadyrun.model.budget import BudgetRules
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.ids import AgentId, Ids, RunId
from steadyrun.model.item import Message
from steadyrun.model.policy import Rights
from steadyrun.operations.documents import DaemonDocument, PriceSource, StoppedDocument
from steadyrun.store import Accepted, Store

# What the process of an agent does; one with background tasks is not closed.
ProcessState = Literal["idle", "busy", "background"]


class DaemonView(Protocol):
    """What only the process knows that drives the agents."""

    def state(self) -> DaemonDocument: ...

    async def accept(self, message: Message) -> Accepted:
        """Take a message in, and begin it at once where that is possible."""

    def process_state(self, agent: AgentId) -> ProcessState | None:
        """None: the agent has no live process."""

    def is_waiting(self, agent: AgentId) -> bool:
        """Whether the agent's run waits for a human."""

    async def release(self, agent: AgentId) -> None:
        """End the agent's process if it only waits."""

    async def stop(self, drain_seconds: float | None, *, keep: bool) -> StoppedDocument:
        """Begin nothing more, wait for what runs (None: as long as is usual), stop what is left or,
        with `keep`, leave it to its keepers. Returns when that is done; the daemon ends after. It
        goes on also when whoever asked has gone away, and this call is cancelled."""

    def follow(
        self, *, agent: AgentId | None, run: RunId | None, after: int
    ) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
        """Every event after the cursor, of an agent, of a run or of all: stored ones first, then
        each as it comes, none twice. Whoever asks too slowly loses live events only."""


@dataclass(frozen=True, slots=True)
class OperationContext:
    """What every operation is given. `daemon` is None outside of one."""

    store: Store
    clock: Clock
    ids: Ids
    home: Path
    # What a provider can do, as it is configured; None where there is none of that name.
    abilities: Callable[[str], frozenset[Ability] | None]
    # Whether one that is there keeps to rights.
    enforce: Callable[[str, Rights], EnforcedRights | Refused]
    daemon: DaemonView | None = None
    budgets: BudgetRules = field(default_factory=BudgetRules)
    # Where estimates come from; None: nobody has said.
    prices: Callable[[], PriceSource] | None = None

    async def accept(self, message: Message) -> Accepted:
        return await (self.daemon or self.store).accept(message)
