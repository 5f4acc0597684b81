"""Holds the state of one run in progress and decides how it ended. No I/O but the budget's reads.

An `ActiveRun` has three parts: `timer` (timeouts), `budget` (what was used and paid) and `stop`
(the request to end it). `agent/run_control.py` sends its turn and stops it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from steadyrun.dialect import TurnEnded
from steadyrun.lib.clock import Clock
from steadyrun.model.agent import Agent
from steadyrun.model.event import BudgetReached, Emitted, ErrorFact, Event, Foreign
from steadyrun.model.ids import RunId
from steadyrun.model.item import Claim, build_cancel_fact
from steadyrun.model.run import STOPPED, Finished, Metadata, Orphaned, Run, StopReason, Touched
from steadyrun.model.usage import Cost, Usage
from steadyrun.runtime.run.budget import RunBudget
from steadyrun.runtime.run.timeouts import RunTimer

# The metadata keys of how long a run may take, and of why it is being stopped.
WALL, STOP = "wall_seconds", "stopping"
# The error of a run that a shutdown has stopped and that may not be repeated.
_SHUT_DOWN = ErrorFact(
    "shutdown",
    "the daemon was shut down during the run, and on_lost is fail",
    "Check what was done, then send it again: steadyrun retry",
    retryable=True,
)


class StopRequest(Struct, frozen=True):
    """The request to end a run: its reason, and its text for the record."""

    reason: StopReason
    why: str | None

    def to_metadata(self) -> Metadata:
        """The form in which the run's record keeps the request for the next holder."""
        return {STOP: {"reason": self.reason, "why": self.why}}


def read_stop_request(run: Run) -> StopRequest | None:
    """The request that an earlier holder has written into the metadata of a run."""
    match run.metadata.get(STOP):
        case {"reason": str(reason), "why": why} if reason in STOPPED:
            return StopRequest(reason, why if isinstance(why, str) else None)
        case _:
            return None


class ActiveRun:
    """One run, from its start or from where an earlier holder has left it, to its end.

    AgentWorker makes one for each run. `is_over` is set when the end is in the record, or when
    `cut` is set: how the run ends without a report of its process.
    """

    def __init__(
        self, run: RunId, claim: Claim, agent: Agent, timer: RunTimer, budget: RunBudget
    ) -> None:
        self.id = run
        # The claim of the item that is run; it never changes.
        self.claim = claim
        self.timer, self.budget = timer, budget
        self.stop: StopRequest | None = None
        # The stop request of the run before, in the same process: it may have hit this run.
        self.earlier_stop: StopRequest | None = None
        self.is_over = False
        # Whether the turn was sent, by this holder or an earlier one; None if not checked yet.
        self.was_sent: bool | None = None
        # The provider has begun the turn by itself: there is nothing to send.
        self.is_begun = False
        # How the run ends if its process does not report an end.
        self.cut: Finished | Orphaned | None = None
        # The gate of the provider waits for the answer to this run.
        self.is_probe = False
        self._agent = agent

    def load(self, run: Run, clock: Clock, *, credit: timedelta | None = None) -> None:
        """Take over the state of the record. `credit` is given for a run that another holder has
        started: this part of the time since then does not count. For a run of this holder the
        monotonic clock is used, because the time of day may be changed."""
        self.is_over = run.is_terminal
        self.budget.load(run)
        self.stop = self.stop or read_stop_request(run)
        wall = run.metadata.get(WALL)
        self.timer.set_wall(wall if isinstance(wall, int | float) else None)
        if credit is not None:
            self.timer.set_passed((clock.now() - run.created_at - credit).total_seconds())

    def load_cancel_request(self) -> None:
        """Take over the request of a user that is older than this holder's lease."""
        item = self.claim.item
        if item.cancel_requested:
            self.stop = StopRequest("user_stop", item.cancel_reason)

    def load_events(self, seen: Sequence[Emitted]) -> None:
        """Take over the recorded questions to a person, and the reached limits."""
        self.timer.load_questions(seen)
        for each in seen:
            self.note(each.event)

    def note(self, event: Event | Foreign) -> None:
        """Apply an event to the time or the budget of the run."""
        if isinstance(event, BudgetReached):
            self.budget.reached.append(event)
        self.timer.note(event)

    def end_by(self, change: Finished | Orphaned) -> None:
        """The run has ended, and its process has not reported that."""
        self.cut, self.is_over = change, True

    def conclude(
        self, ended: TurnEnded, token: str | None, now: datetime, *, was_sent: bool = False
    ) -> Finished:
        """How the run ended. A turn that was stopped and did not complete ended because it was
        stopped. A shutdown puts the run off, unless its turn `was_sent` and may not be repeated:
        then it has failed."""
        status, reason, error = ended.status, ended.stop_reason, ended.error
        # An earlier holder may have stopped the run for its budget.
        stopped = self.stop.reason if self.stop else "budget" if self.budget.overspent else None
        if stopped and status != "completed":
            status, reason = STOPPED[stopped], stopped
            error = self._explain_stop(stopped) or error
            if stopped == "shutdown" and was_sent and self._may_not_repeat:
                status, error = "failed", _SHUT_DOWN
        elif status == "cancelled":
            # A request to end the turn before may have come too late, and hit this one.
            reason = reason or (self.earlier_stop.reason if self.earlier_stop else None)
        usage, cost = self.budget.compute_total(ended)
        return Finished(
            now,
            status,
            reason,
            text=ended.text,
            usage=usage,
            cost=cost,
            resume_token=token,
            exit_code=ended.exit_code,
            error=error,
            diagnostic=ended.diagnostic,
        )

    @property
    def _may_not_repeat(self) -> bool:
        item = self.claim.item
        return item.on_lost == "fail" and item.kind not in {"self", "call"}

    def conclude_early(self, ended: TurnEnded, now: datetime) -> Touched:
        """A turn that the provider has begun by itself ended before the run's own turn: the run
        pays for both."""
        usage, cost = self.budget.compute_total(ended)
        self.budget.set_spent(usage or Usage(), cost or Cost())
        return Touched(now, usage, cost)

    def _explain_stop(self, stopped: StopReason) -> ErrorFact | None:
        why = self.stop.why if self.stop else None
        if stopped in {"user_stop", "shutdown"}:
            return build_cancel_fact(why)
        if stopped != "budget":
            is_retryable = stopped != "policy"
            return ErrorFact(stopped, why, retryable=is_retryable) if why else None
        why = why or self.budget.overspent or "its budget is spent"
        is_direct = self._agent.is_direct
        hint = "Allow more: --max-cost" if is_direct else "Its owner is asked: steadyrun approvals"
        return ErrorFact("max_cost", why, hint)
