"""What has the conversation with a provider missed? Read from the record, where others worked."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from steadyrun.model.agent import Agent
from steadyrun.model.event import ApprovalRequested, ApprovalResolved, FollowupAbsorbed
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.runtime.prompt.briefing import Handover, MissedRun, reason_to_change
from steadyrun.store import Store

# How many runs are told of, and how many events of each, at most. What was asked and not allowed is
# looked for further back: it counts however much came after it.
_RUNS = 20
_EVENTS = 200
_LOOKED_AT = 1000
_LASTING = (FollowupAbsorbed, ApprovalRequested, ApprovalResolved)


class ProviderChange(Struct, frozen=True):
    """What is to be told where the provider is another one than before: to the conversation, if it
    has missed anything, and to whoever reads the record."""

    handover: Handover | None
    notes: tuple[str, ...]


async def load_handover(
    store: Store, agent: Agent, item: Item, run: RunId, now: datetime, *, resumes: bool
) -> ProviderChange:
    """`agent` as it works now. What it did with its present provider is known there if that
    `resumes` its conversation."""
    before = [each for each in await store.runs(agent.id, before=run, limit=_RUNS) if _began(each)]
    is_alone = len(agent.providers) == 1
    chain = agent.providers if is_alone else (await store.agent(agent.id)).providers
    missed = _missed(before, agent.provider, resumes=resumes)
    others = sorted({each.provider for each in missed} - {agent.provider})
    why, notes = f"{', '.join(others)} worked in your place", list[str]()
    if agent.provider != chain[0]:
        why = reason_to_change(chain, await store.gates(), now)
        notes.append(f"{agent.provider} does this: {why}")
    elif before and before[0].provider != agent.provider:
        notes.append(f"back with {agent.provider}")
    reasons = await _reasons(store, agent.id) if missed else {}
    told = tuple([await _told(store, each, reasons) for each in reversed(missed)])
    handover = Handover(f"{why}; you go on.", item.id, told) if told else None
    return ProviderChange(handover, tuple(notes))


def _missed(before: Sequence[Run], provider: str, *, resumes: bool) -> list[Run]:
    """Those that the conversation has not heard of, if any of them was somebody else's."""
    missed = []
    for run in before:
        if resumes and run.provider == provider:
            if run.status == "completed":
                break
            continue
        missed.append(run)
    return missed if any(run.provider != provider for run in missed) else []


def _began(run: Run) -> bool:
    return run.started_at is not None


async def _told(store: Store, run: Run, reasons: Mapping[RunId, Mapping[str, str]]) -> MissedRun:
    item = await store.item(run.item) if run.item else None
    seen = [each.event for each in await store.last_events(run=run.id, limit=_LOOKED_AT)]
    lasting = [event for event in seen[:-_EVENTS] if isinstance(event, _LASTING)]
    return MissedRun(item, run, (*lasting, *seen[-_EVENTS:]), reasons.get(run.id, {}))


async def _reasons(store: Store, agent: AgentId) -> dict[RunId, dict[str, str]]:
    """What was said with answers, for each run by the name of its question."""
    found: dict[RunId, dict[str, str]] = {}
    for each in await store.approvals(agent, include_settled=True):
        if each.answer and each.answer.reason:
            found.setdefault(each.run, {})[each.name] = each.answer.reason
    return found
