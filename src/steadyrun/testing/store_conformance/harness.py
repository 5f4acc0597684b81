"""Defines what an engine provides so that its promises can be checked."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from steadyrun.lib.notifier import Notifier
from steadyrun.model.gate import Accounts
from steadyrun.model.ids import AgentId, Ids
from steadyrun.model.item import Claim
from steadyrun.model.secret import Secret
from steadyrun.store import MaintainedStore
from steadyrun.testing.clock import FakeClock


class StoreHarness(Protocol):
    """One empty record, shared by as many processes as a check opens.

    Every store is opened with `clock` and with a Scrubber of `secret`; `ids` makes the ids that
    the check itself needs. `accounts` are those that this process is configured with.
    """

    clock: FakeClock
    ids: Ids
    secret: Secret

    async def open(
        self, hints: Notifier | None = None, *, accounts: Accounts | None = None
    ) -> MaintainedStore:
        """Open the record as another process does. The harness closes all stores at the end."""

    async def claim_and_exit(self, agent: AgentId | None = None) -> Claim:
        """Let a holder in another process join, claim one lane and end without `leave`."""

    def pause_writes(self) -> AbstractAsyncContextManager[None]:
        """Make every write wait until the block is left, so that writes begun inside overlap."""


Promise = Callable[[StoreHarness], Awaitable[None]]
