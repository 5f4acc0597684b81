"""Decides at the end of a run whether its item is run again, with what the store knows.

`LastingRetries` is for lasting agents, `NoRetries` for direct runs, whose caller decides.
"""

from functools import partial
from typing import Protocol

from steadyrun.model.agent import choose_provider
from steadyrun.model.gate import find_unavailable_providers
from steadyrun.model.run import Run
from steadyrun.runtime.agent.lane import Lane, RateLimited
from steadyrun.runtime.log import log_closed_gate, log_event
from steadyrun.runtime.run.retry import RetryDecision, decide_retry, is_refused, with_corruption


class RetryPolicy(Protocol):
    """What follows the end of a run. `is_patient`: to wait for a store that cannot be written."""

    @property
    def is_patient(self) -> bool: ...

    async def decide(self, lane: Lane, run: Run, *, was_sent: bool) -> RetryDecision | None:
        """How the item is run once more; None if it is settled. `was_sent`: the turn of the run may
        have been sent."""


class LastingRetries:
    """The retries of lasting agents; see the table in `run/retry.py`."""

    is_patient = True

    async def decide(self, lane: Lane, run: Run, *, was_sent: bool) -> RetryDecision | None:
        log_event("run.ended", agent=lane.agent.name, run=run.id, status=run.status)
        if run.status == "rate_limited":
            await self._handle_limit(lane, run)
        assert lane.run
        item = await lane.deps.store.item(lane.run.claim.item.id)
        found = decide_retry(await self._with_predecessor(lane, run), item, was_sent=was_sent)
        if found:
            log_event("run.retried", agent=lane.agent.name, run=run.id, why=found.why)
        return found

    async def _handle_limit(self, lane: Lane, run: Run) -> None:
        """The gate is closed already. If no other provider of the chain is open, an agent that does
        not wait by itself is paused."""
        store, clock = lane.deps.store, lane.deps.clock
        lane.report(RateLimited())
        await log_closed_gate(store, clock, run.provider)
        if lane.agent.on_limited == "wait":
            return
        closed, _ = find_unavailable_providers(await store.gates(), clock.now())
        if choose_provider(lane.agent.providers, closed) is None:
            await lane.outage.write(partial(store.pause, lane.agent.id), "settle")

    async def _with_predecessor(self, lane: Lane, run: Run) -> Run:
        """The run, with what the run before says about its end."""
        if not is_refused(run):
            return run
        before = await lane.deps.store.runs(run.agent, before=run.id, limit=1)
        return with_corruption(run, before[0] if before else None)


class NoRetries:
    """A direct run is settled as it ended."""

    def __init__(self, *, is_patient: bool) -> None:
        self._is_patient = is_patient

    @property
    def is_patient(self) -> bool:
        return self._is_patient

    async def decide(self, lane: Lane, run: Run, *, was_sent: bool) -> RetryDecision | None:
        if run.status == "rate_limited":
            await log_closed_gate(lane.deps.store, lane.deps.clock, run.provider)
        return None
