"""Decides at the end of a run whether its item is run again, with what the store contains."""

from functools import partial

from steadyrun.model.agent import choose_provider
from steadyrun.model.gate import find_closed_gate, find_opening_time, find_unavailable_providers
from steadyrun.model.run import LAUNCH_FAILED, Run
from steadyrun.runtime.agent.lane import AgentLane, RateLimited
from steadyrun.runtime.log import log_event
from steadyrun.runtime.run.retry import RetryDecision, decide_retry, is_refused, with_corruption


async def find_retry(lane: AgentLane, run: Run, *, was_sent: bool) -> RetryDecision | None:
    """How the item is run once more; None if it is settled. `was_sent`: the turn of the run may
    have been sent. A direct run is settled as it ended: its caller decides."""
    if not lane.agent.is_direct:
        log_event("run.ended", agent=lane.agent.name, run=run.id, status=run.status)
    if run.status == "rate_limited":
        await _handle_limit(lane, run)
    if run.stop_reason == LAUNCH_FAILED:
        _report_failed_launch(lane, run)
    if lane.agent.is_direct:
        return None
    assert lane.run
    item = await lane.deps.store.item(lane.run.claim.item.id)
    found = decide_retry(await _with_predecessor(lane, run), item, was_sent=was_sent)
    if found:
        log_event("run.retried", agent=lane.agent.name, run=run.id, why=found.why)
    return found


async def _handle_limit(lane: AgentLane, run: Run) -> None:
    """The gate is closed already. If no other provider of the chain is open, an agent that does not
    wait by itself is paused."""
    lane.report(RateLimited())
    store, now = lane.deps.store, lane.deps.clock.now()
    gates = await store.gates()
    if gate := find_closed_gate(gates, run.provider, now):
        until = find_opening_time(gate, now)
        log_event("gate.closed", provider=run.provider, until=until.isoformat() if until else None)
    if lane.agent.on_limited == "wait":
        return
    closed, _ = find_unavailable_providers(gates, now)
    if choose_provider(lane.agent.providers, closed) is None:
        await lane.outage.write(partial(store.set_paused, lane.agent.id, is_paused=True), "settle")


def _report_failed_launch(lane: AgentLane, run: Run) -> None:
    """The gate is suspect or closed already, and the item will be queued again."""
    lane.report(RateLimited())
    code = run.error.code if run.error else None
    log_event("launch.failed", agent=lane.agent.name, provider=run.provider, run=run.id, code=code)


async def _with_predecessor(lane: AgentLane, run: Run) -> Run:
    """The run, with what the run before shows about its end."""
    if not is_refused(run):
        return run
    before = await lane.deps.store.runs(run.agent, before=run.id, limit=1)
    return with_corruption(run, before[0] if before else None)
