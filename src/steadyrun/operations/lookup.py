"""How do agents and items stand now? The record, seen together with what the daemon knows."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from steadyrun.errors import InvalidUsage, NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval
from steadyrun.model.budget import begin_of
from steadyrun.model.gate import Gate, awaited_gate, opens_at
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import (
    AgentDocument,
    AgentState,
    ItemDocument,
    Waiting,
    build_cost_sum,
)
from steadyrun.store import AgentOverview, Lane, Store

_GIST_CHARS = 80


async def find_agent(desk: OperationContext, name: str) -> Agent:
    """A lasting agent by its name or id."""
    try:
        agent = await desk.store.agent(name)
    except NotFound:
        agent = None
    if agent is None or agent.is_direct or agent.removed_at is not None:
        raise NotFound("agent", name, hint="`steadyrun agents` lists them.")
    return agent


async def find_item(store: Store, text: str) -> Item:
    """The one item whose id begins with `text`."""
    # Ids have no character as high as this one: what begins with the text sorts before.
    found = await store.items(include_settled=True, before=ItemId(f"{text}~"), limit=2)
    fitting = [item for item in found if text and item.id.startswith(text)]
    if not fitting:
        raise NotFound("item", text, hint="`steadyrun inbox --all` lists them.")
    if len(fitting) > 1:
        hint = "Type more of the id: `steadyrun inbox --all`."
        raise InvalidUsage(f"{text!r} fits several items", hint=hint)
    return fitting[0]


async def find_run(store: Store, text: str) -> Run:
    """The one run whose id begins with `text`."""
    found = await store.runs_like(text) if text else []
    if not found:
        raise NotFound("run", text, hint="`steadyrun runs` lists them.")
    if len(found) > 1:
        raise InvalidUsage(
            f"{text!r} fits several runs", hint="Type more of the id: `steadyrun runs`."
        )
    return found[0]


async def build_agent_documents(
    desk: OperationContext, agents: Iterable[Agent] | None = None
) -> tuple[AgentDocument, ...]:
    """Of these agents, or of all; a few questions for all of them together."""
    gates, looks = (
        await desk.store.gates(),
        await desk.store.agent_overviews(_compute_midnight(desk)),
    )
    chosen = None if agents is None else {agent.id for agent in agents}
    return tuple(
        [
            await _build_agent_document(desk, look, gates)
            for look in looks
            if chosen is None or look.agent.id in chosen
        ]
    )


async def build_agent_document(desk: OperationContext, agent: Agent) -> AgentDocument:
    for look in await desk.store.agent_overviews(_compute_midnight(desk), agent=agent.id):
        return await _build_agent_document(desk, look, await desk.store.gates())
    raise NotFound("agent", agent.name)


def _compute_midnight(desk: OperationContext) -> datetime:
    begin = begin_of("day", desk.clock.now(), desk.budgets.zone)
    assert begin
    return begin


async def _build_agent_document(
    desk: OperationContext, look: AgentOverview, gates: Sequence[Gate]
) -> AgentDocument:
    agent, lane, session, item = look.agent, look.lane, look.session, look.item
    now = desk.clock.now()
    gate = awaited_gate(gates, agent.providers, now)
    state = _compute_state(desk, lane, is_gated=gate is not None)
    return AgentDocument(
        id=agent.id,
        name=agent.name,
        provider=agent.provider,
        fallback=agent.providers[1:],
        home=agent.home,
        role=agent.role,
        model=agent.model,
        mode=agent.policy.mode,
        tier=agent.policy.tier,
        tools=agent.policy.allowed_tools,
        deny=agent.policy.deny,
        followup=agent.followup,
        on_lost=agent.on_lost,
        on_limited=agent.on_limited,
        approvers=agent.approvers,
        origin=agent.origin,
        state=state,
        until=opens_at(gate, now) if gate and state == "gated" else None,
        reason=await _find_pause_reason(desk, lane),
        budget=agent.policy.budget,
        process=desk.daemon.process_state(agent.id) if desk.daemon else None,
        item=item.id if item else None,
        run=look.run,
        now=_summarize_text(item.text) if item else None,
        queued=lane.queued,
        resume_token=session.current.token if session and session.current else None,
        cost_today=build_cost_sum(look.usage),
    )


async def build_item_documents(
    desk: OperationContext, items: Sequence[Item]
) -> tuple[ItemDocument, ...]:
    gates = await desk.store.gates()
    agents = {agent: await desk.store.agent(agent) for agent in {item.agent for item in items}}
    return tuple(
        [await _build_item_document(desk, item, agents[item.agent], gates) for item in items]
    )


async def build_item_document(desk: OperationContext, item: Item) -> ItemDocument:
    [document] = await build_item_documents(desk, [item])
    return document


def _compute_state(desk: OperationContext, lane: Lane, *, is_gated: bool) -> AgentState:
    if lane.is_paused:
        return "paused"
    if lane.status == "held":
        is_waiting = desk.daemon is not None and desk.daemon.is_waiting(lane.agent)
        return "waiting" if is_waiting else "running"
    return "gated" if is_gated else "idle"


async def _find_pause_reason(desk: OperationContext, lane: Lane) -> str | None:
    """Why it is paused, if it is not because somebody wanted it."""
    asked = await find_budget_question(desk.store, lane.agent) if lane.is_paused else None
    return explain_question(asked) if asked else None


async def find_budget_question(store: Store, agent: AgentId) -> Approval | None:
    """What is open about the budget of an agent."""
    found = await store.approvals(agent)
    return next((each for each in found if each.about == "budget"), None)


def explain_question(question: Approval) -> str:
    return str(question.tool_input["why"])


def _summarize_text(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _GIST_CHARS else f"{line[: _GIST_CHARS - 1]}…"


async def _build_item_document(
    desk: OperationContext, item: Item, agent: Agent, gates: Sequence[Gate]
) -> ItemDocument:
    waiting: Waiting | None = None
    now = desk.clock.now()
    gate = awaited_gate(gates, agent.providers, now)
    if item.status == "queued":
        waiting = await _find_waiting(desk, item, is_gated=gate is not None)
    return ItemDocument(
        id=item.id,
        agent=agent.name,
        status=item.status,
        delivery=item.delivery,
        run=item.run,
        text=item.text,
        reply=item.reply,
        kind=item.kind,
        followup=item.followup,
        attempt=item.attempt,
        waiting=waiting,
        until=opens_at(gate, now) if gate and waiting == "gate" else None,
        error=item.error,
        retry_of=item.payload.retry_of,
        files=tuple(file.name for file in item.payload.files),
        created_at=item.created_at,
        started_at=item.started_at,
        settled_at=item.settled_at,
    )


async def _find_waiting(desk: OperationContext, item: Item, *, is_gated: bool) -> Waiting:
    lane = await desk.store.lane(item.agent)
    if lane.is_paused:
        return "budget" if await _find_pause_reason(desk, lane) else "paused"
    if is_gated:
        return "gate"
    if desk.daemon is None:
        return "daemon"
    if lane.status == "held" or await _is_behind(desk.store, item, lane):
        return "turn"
    return "slot"


async def _is_behind(store: Store, item: Item, lane: Lane) -> bool:
    """Whether another item of the lane comes first."""
    if lane.queued <= 1:
        return False
    older = await store.items(item.agent, before=item.id, limit=1)
    return bool(older)
