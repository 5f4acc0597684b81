"""Holds the state of one agent's lane in this process, shared by everything that works in it.

AgentWorker makes an `AgentLane` and hands it to its recorder, offers, process slot and run control.
They read it; only AgentWorker and the effects that it carries out change it.
"""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from steadyrun.lib.signal import Signal
from steadyrun.model.agent import Agent
from steadyrun.model.ids import RunId
from steadyrun.model.item import Claim
from steadyrun.runtime.agent.lease import LaneLease
from steadyrun.runtime.agent.outage import StoreOutage
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.events.bus import EventPublisher
from steadyrun.runtime.run.active_run import ActiveRun, StopRequest
from steadyrun.runtime.run.budget import RunBudget
from steadyrun.runtime.run.retry import RetryDecision
from steadyrun.runtime.run.timeouts import RunTimer


class RunAttached(Struct, frozen=True):
    """The lane has a run or a process again: requests that could not be handled can be now."""


class ProcessLaunched(Struct, frozen=True):
    """The run has a new process: from now on another holder can continue it."""


class WaitChanged(Struct, frozen=True):
    """The run waits for the answer of a person, or does not any more."""

    for_person: bool


class TurnStarted(Struct, frozen=True):
    """The process has begun a turn without a request. If the lane was not held before, `work` is
    to be called."""

    was_held: bool


class RateLimited(Struct, frozen=True):
    """The provider has refused a run: the state of its gate has changed."""


class LaneLeft(Struct, frozen=True):
    """The lane does not belong to this worker any more."""


class LaneFailed(Struct, frozen=True):
    """The idle process or its lane cannot be closed; `give_up` is to be called."""

    error: Exception


WorkerChange = (
    RunAttached | ProcessLaunched | WaitChanged | TurnStarted | RateLimited | LaneLeft | LaneFailed
)
OnChange = Callable[[WorkerChange], None]


class Conversation:
    """Whether the conversation to resume exists, and whether a new one may take its place."""

    __slots__ = ("is_missing", "may_restart")

    def __init__(self) -> None:
        self.is_missing = self.may_restart = False


class AgentLane:
    """One agent's lane in this process: its lease, its run, and what is shared."""

    def __init__(
        self, deps: Deps, agent: Agent, on_change: OnChange, *, waits_for_store: bool
    ) -> None:
        """`waits_for_store`: to wait for a store that cannot be written."""
        self.deps, self.agent = deps, agent
        self.report = on_change
        self.lease = LaneLease()
        self.feed = EventPublisher(deps.scrubber, deps.bus)
        self.outage = StoreOutage(
            agent.name, self.feed, deps.clock, waits_for_store=waits_for_store
        )
        self.run: ActiveRun | None = None
        # The request to end the whole lane: every later run starts with it.
        self.stop: StopRequest | None = None
        # How the item is run, if not for the first time.
        self.retry: RetryDecision | None = None
        self.conversation = Conversation()
        # Held while a run is started or settled: the two must not happen at once.
        self.turn_lock = asyncio.Lock()
        self.attached = Signal()

    def make_run(self, claim: Claim, run: RunId, *, is_adopted: bool = False) -> ActiveRun:
        deps, agent = self.deps, self.agent
        timer = RunTimer(deps.timeouts, deps.clock, is_adopted=is_adopted)
        budget = RunBudget(deps.store, agent, run, deps.budgets)
        made = ActiveRun(run, claim, agent, timer, budget)
        made.stop = self.stop
        return made

    def attach(self, run: ActiveRun) -> None:
        """This run is the current one."""
        self.lease.set(run.claim)
        self.lease.is_held, self.run = True, run
        self.outage.run = run.id
        self.attached.notify()
        self.report(RunAttached())

    def release_run(self) -> None:
        """The run is settled; the lane stays with its process."""
        self.lease.is_held, self.run = False, None
        self.outage.run = None
        self.attached = Signal()

    def detach(self) -> None:
        """The lane does not belong to this holder any more: close its publisher and report that."""
        self.feed.close()
        self.report(LaneLeft())

    def report_wait(self) -> None:
        """Report whether the run waits for a person; that may have changed."""
        if self.run:
            self.report(WaitChanged(bool(self.run.timer.approvals)))
