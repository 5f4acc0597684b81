"""Finds agents, items, runs and approvals by name, id or a part of the id."""

from steadyrun.errors import InvalidUsage, NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval
from steadyrun.model.ids import AgentId, ApprovalId, ItemId, RunId
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.operations.context import OperationContext
from steadyrun.store import Store


async def find_agent(context: OperationContext, name: str) -> Agent:
    """Find a lasting agent by its name or id."""
    try:
        agent = await context.store.agent(name)
    except NotFound:
        agent = None
    if agent is None or agent.is_direct or agent.removed_at is not None:
        raise NotFound("agent", name, hint="`steadyrun agents` lists them.")
    return agent


async def find_item(store: Store, text: str) -> Item:
    """Find the one item whose id begins with `text`."""
    # `~` sorts after every character of an id, so all ids with this prefix come before it.
    found = await store.items(include_settled=True, before=ItemId(f"{text}~"), limit=2)
    matching = [item for item in found if text and item.id.startswith(text)]
    if not matching:
        raise NotFound("item", text, hint="`steadyrun inbox --all` lists them.")
    if len(matching) > 1:
        hint = "Type more of the id: `steadyrun inbox --all`."
        raise InvalidUsage(f"{text!r} matches several items", hint=hint)
    return matching[0]


async def find_run(store: Store, text: str) -> Run:
    """Find the one run whose id begins with `text`."""
    found = await store.runs(before=RunId(f"{text}~"), limit=2)
    matching = [run for run in found if text and run.id.startswith(text)]
    if not matching:
        raise NotFound("run", text, hint="`steadyrun runs` lists them.")
    if len(matching) > 1:
        hint = "Type more of the id: `steadyrun runs`."
        raise InvalidUsage(f"{text!r} matches several runs", hint=hint)
    return matching[0]


async def find_approval(store: Store, text: str) -> Approval:
    """Find the one approval whose id begins or ends with `text`."""
    listing = "`steadyrun approvals` lists them."
    try:
        return await store.approval(ApprovalId(text))
    except NotFound:
        found = []
    if text:
        found = await store.approvals(matching=text, include_settled=True, limit=2)
    if not found:
        raise NotFound("approval", text, hint=listing)
    if len(found) > 1:
        hint = f"Type more of the id: {listing}"
        raise InvalidUsage(f"{text!r} matches several approvals", hint=hint)
    return found[0]


async def find_budget_question(store: Store, agent: AgentId) -> Approval | None:
    """Find the open question about a spent budget of the agent."""
    found = await store.approvals(agent)
    return next((each for each in found if each.about == "budget"), None)


def explain_question(question: Approval) -> str:
    """Return the reason of a question about a budget."""
    return str(question.tool_input["why"])
