"""Finds the runs that a conversation has missed because another provider did them."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from steadyrun.model.agent import Agent
from steadyrun.model.event import ApprovalRequested, ApprovalResolved, FollowupAbsorbed
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.runtime.prompt.briefing import Handover, MissedRun, explain_change
from steadyrun.store import Store

# The largest number of runs, and of events of each run. Approvals are searched further back: a
# denial counts, however many events followed.
_RUNS = 20
_EVENTS = 200
_LOOKED_AT = 1000
_LASTING = (FollowupAbsorbed, ApprovalRequested, ApprovalResolved)


async def load_handover(
    store: Store, agent: Agent, item: Item, run: RunId, now: datetime, *, resumes: bool
) -> tuple[Handover | None, list[str]]:
    """Load what the conversation of the agent's present provider has missed, if it has, and notes
    for the record. If the provider `resumes` its conversation, its own runs are not missed."""
    earlier = await store.runs(agent.id, before=run, limit=_RUNS)
    before = [each for each in earlier if each.started_at is not None]
    is_alone = len(agent.providers) == 1
    chain = agent.providers if is_alone else (await store.agent(agent.id)).providers
    missed = _select_missed(before, agent.provider, resumes=resumes)
    others = sorted({each.provider for each in missed} - {agent.provider})
    why, notes = f"{', '.join(others)} worked in this time", list[str]()
    if agent.provider != chain[0]:
        why = explain_change(chain, await store.gates(), now)
        notes.append(f"{agent.provider} is used: {why}")
    elif before and before[0].provider != agent.provider:
        notes.append(f"back with {agent.provider}")
    reasons = await _load_reasons(store, agent.id) if missed else {}
    runs = tuple([await _load_missed_run(store, each, reasons) for each in reversed(missed)])
    handover = Handover(f"{why}; you continue.", item.id, runs) if runs else None
    return handover, notes


def _select_missed(before: Sequence[Run], provider: str, *, resumes: bool) -> list[Run]:
    """Select the runs that are not in the conversation, if another provider did any of them."""
    missed = []
    for run in before:
        if resumes and run.provider == provider:
            if run.status == "completed":
                break
            continue
        missed.append(run)
    return missed if any(run.provider != provider for run in missed) else []


async def _load_missed_run(
    store: Store, run: Run, reasons: Mapping[RunId, Mapping[str, str]]
) -> MissedRun:
    item = await store.item(run.item) if run.item else None
    seen = [each.event for each in await store.events(run=run.id, limit=_LOOKED_AT, newest=True)]
    lasting = [event for event in seen[:-_EVENTS] if isinstance(event, _LASTING)]
    return MissedRun(item, run, (*lasting, *seen[-_EVENTS:]), reasons.get(run.id, {}))


async def _load_reasons(store: Store, agent: AgentId) -> dict[RunId, dict[str, str]]:
    """Load the reasons given with answers, for each run by the name of its approval."""
    found: dict[RunId, dict[str, str]] = {}
    for each in await store.approvals(agent, include_settled=True):
        if each.answer and each.answer.reason:
            found.setdefault(each.run, {})[each.name] = each.answer.reason
    return found
