"""Builds the documents of agents, items, runs, gates, costs and approvals.

A document has the facts of the store, together with the facts that only the daemon has.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from steadyrun.errors import NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval
from steadyrun.model.budget import find_window_start
from steadyrun.model.gate import (
    Gate,
    can_dispatch,
    compute_gate_state,
    find_awaited_gate,
    find_opening_time,
)
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.model.usage import CostKind, UsageSum
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import (
    AgentDocument,
    AgentState,
    ApprovalDocument,
    CostSum,
    GateDocument,
    ItemDocument,
    RunDocument,
    Waiting,
)
from steadyrun.operations.lookup import explain_question, find_budget_question
from steadyrun.store import AgentOverview, Lane, Store

_SUMMARY_CHARS = 80


async def build_agent_documents(
    context: OperationContext, agents: Iterable[Agent] | None = None
) -> tuple[AgentDocument, ...]:
    """Build the documents of these agents, or of all. The number of queries does not depend on the
    number of agents."""
    gates, overviews = (
        await context.store.gates(),
        await context.store.agent_overviews(_compute_midnight(context)),
    )
    chosen = None if agents is None else {agent.id for agent in agents}
    return tuple(
        [
            await _build_agent_document(context, overview, gates)
            for overview in overviews
            if chosen is None or overview.agent.id in chosen
        ]
    )


async def build_agent_document(context: OperationContext, agent: Agent) -> AgentDocument:
    for overview in await context.store.agent_overviews(_compute_midnight(context), agent=agent.id):
        return await _build_agent_document(context, overview, await context.store.gates())
    raise NotFound("agent", agent.name)


async def _build_agent_document(
    context: OperationContext, overview: AgentOverview, gates: Sequence[Gate]
) -> AgentDocument:
    agent, lane, session, item = overview.agent, overview.lane, overview.session, overview.item
    now = context.clock.now()
    gate = find_awaited_gate(gates, agent.providers, now)
    state = _compute_state(context, lane, is_gated=gate is not None)
    return AgentDocument(
        **_copy_fields(agent, AgentDocument),
        **_copy_fields(agent.policy, AgentDocument),
        fallback=agent.providers[1:],
        tools=agent.policy.allowed_tools,
        state=state,
        until=find_opening_time(gate, now) if gate and state == "gated" else None,
        reason=gate.reason
        if gate and state == "gated"
        else await _find_pause_reason(context, lane),
        process=context.daemon.find_process_state(agent.id) if context.daemon else None,
        item=item.id if item else None,
        run=overview.run,
        now=_summarize_text(context.scrubber.clean(item.text)) if item else None,
        queued=lane.queued,
        resume_token=session.current.token if session and session.current else None,
        cost_today=build_cost_sum(overview.usage),
    )


def _compute_midnight(context: OperationContext) -> datetime:
    begin = find_window_start("day", context.clock.now(), context.budgets.zone)
    assert begin
    return begin


def _compute_state(context: OperationContext, lane: Lane, *, is_gated: bool) -> AgentState:
    if lane.is_paused:
        return "paused"
    if lane.status == "held":
        is_waiting = context.daemon is not None and context.daemon.is_waiting(lane.agent)
        return "waiting" if is_waiting else "running"
    return "gated" if is_gated else "idle"


async def _find_pause_reason(context: OperationContext, lane: Lane) -> str | None:
    """Find the reason of a pause, if a spent budget is the reason."""
    asked = await find_budget_question(context.store, lane.agent) if lane.is_paused else None
    return explain_question(asked) if asked else None


def _summarize_text(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SUMMARY_CHARS else f"{line[: _SUMMARY_CHARS - 1]}…"


async def build_item_documents(
    context: OperationContext, items: Sequence[Item]
) -> tuple[ItemDocument, ...]:
    gates = await context.store.gates()
    agents = {agent: await context.store.agent(agent) for agent in {item.agent for item in items}}
    return tuple(
        [await _build_item_document(context, item, agents[item.agent], gates) for item in items]
    )


async def build_item_document(context: OperationContext, item: Item) -> ItemDocument:
    [document] = await build_item_documents(context, [item])
    return document


async def _build_item_document(
    context: OperationContext, item: Item, agent: Agent, gates: Sequence[Gate]
) -> ItemDocument:
    waiting: Waiting | None = None
    now = context.clock.now()
    gate = find_awaited_gate(gates, agent.providers, now)
    if item.status == "queued":
        waiting = await _find_waiting(context, item, is_gated=gate is not None)
    return ItemDocument(
        **_copy_fields(item, ItemDocument, {"agent"}),
        agent=agent.name,
        waiting=waiting,
        until=find_opening_time(gate, now) if gate and waiting == "gate" else None,
        reason=gate.reason if gate and waiting == "gate" else None,
        retry_of=item.payload.retry_of,
        files=tuple(file.name for file in item.payload.files),
        text_pruned=item.payload.text_pruned,
    )


async def _find_waiting(context: OperationContext, item: Item, *, is_gated: bool) -> Waiting:
    lane = await context.store.lane(item.agent)
    if lane.is_paused:
        return "budget" if await _find_pause_reason(context, lane) else "paused"
    if is_gated:
        return "gate"
    if context.daemon is None:
        return "daemon"
    if lane.status == "held" or await _is_behind(context.store, item, lane):
        return "turn"
    return "slot"


async def _is_behind(store: Store, item: Item, lane: Lane) -> bool:
    """Return whether another item of the lane comes first."""
    if lane.queued <= 1:
        return False
    older = await store.items(item.agent, before=item.id, limit=1)
    return bool(older)


async def build_approval_documents(
    store: Store, found: Sequence[Approval]
) -> tuple[ApprovalDocument, ...]:
    names = {agent: (await store.agent(agent)).name for agent in {each.agent for each in found}}
    return tuple(_build_approval_document(each, names[each.agent]) for each in found)


def _build_approval_document(approval: Approval, agent: str) -> ApprovalDocument:
    answer = approval.answer
    return ApprovalDocument(
        **_copy_fields(approval, ApprovalDocument, {"agent"}),
        agent=agent,
        verdict=answer.verdict if answer else None,
        by=answer.by if answer else None,
        reason=answer.reason or None if answer else None,
        always=answer.always if answer else None,
        answered_at=answer.at if answer else None,
        provider=answer.provider if answer else None,
        extended=answer.extended if answer else (),
    )


def build_run_document(run: Run, agent_name: str) -> RunDocument:
    same = _copy_fields(run, RunDocument, {"agent"})
    return RunDocument(run=run.id, agent=agent_name, **same)


def _copy_fields(
    record: Struct, document: type[Struct], but: Collection[str] = ()
) -> dict[str, Any]:
    """Return the fields of a record that its document has under the same name, `but` for some."""
    names = [name for name in document.__struct_fields__ if name not in but]
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


def build_gate_document(gate: Gate, now: datetime, *, is_present: bool) -> GateDocument:
    is_open = can_dispatch(gate, now)
    return GateDocument(
        gate.provider,
        gate.account,
        compute_gate_state(gate, now),
        find_opening_time(gate, now),
        gate.level,
        is_open,
        None if is_open else gate.reason,
        gate.probe,
        gate.run,
        gate.hit_at,
        is_present,
    )


def build_cost_sum(usage: UsageSum) -> CostSum:
    """Add up the costs. Runs with an unknown cost are counted, not taken for free."""
    if usage.runs and usage.unknown_cost_runs == usage.runs:
        return CostSum(None, "unknown", usage.unknown_cost_runs)
    kind: CostKind = "estimated" if usage.estimated_usd else "known"
    return CostSum(usage.known_usd + usage.estimated_usd, kind, usage.unknown_cost_runs)
