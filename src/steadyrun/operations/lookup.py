"""Finds agents, items, runs and approvals by name, id or a part of the id."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

from steadyrun.errors import InvalidUsage, NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval
from steadyrun.model.ids import AgentId, ApprovalId, ItemId, RunId
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.operations.context import OperationContext
from steadyrun.store import Store

Found = TypeVar("Found")


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
    return _require_one(matching, "item", text, hint="`steadyrun inbox --all` lists them.")


async def find_run(store: Store, text: str) -> Run:
    """Find the one run whose id begins with `text`."""
    found = await store.runs(before=RunId(f"{text}~"), limit=2)
    matching = [run for run in found if text and run.id.startswith(text)]
    return _require_one(matching, "run", text, hint="`steadyrun runs` lists them.")


async def find_approval(store: Store, text: str) -> Approval:
    """Find the one approval whose id begins or ends with `text`, or `RUN:NAME` with the name in the
    events of the run. An open approval comes before settled ones: CLIs use a name such as `1` in
    every process again."""
    with suppress(NotFound):
        return await store.approval(ApprovalId(text))
    run, _, name = text.partition(":")
    if run.startswith("run_") and name:
        return await _find_approval_of_run(store, RunId(run), name)
    unsettled = await store.approvals(matching=text) if text else []
    matching = [each for each in unsettled if each.status == "open"]
    if text and not matching:
        matching = await store.approvals(matching=text, include_settled=True, limit=2)
    return _require_one(matching, "approval", text, hint="`steadyrun approvals` lists them.")


async def _find_approval_of_run(store: Store, run: RunId, name: str) -> Approval:
    agent = (await store.run(run)).agent
    found = await store.approvals(agent, matching=f":{name}", include_settled=True)
    matching = [each for each in found if each.run == run and each.name == name]
    return _require_one(
        matching, "approval", f"{run}:{name}", hint="`steadyrun approvals` lists them."
    )


def _require_one(found: Sequence[Found], kind: str, text: str, *, hint: str) -> Found:
    if not found:
        raise NotFound(kind, text, hint=hint)
    if len(found) > 1:
        hint = f"Type more of the id: {hint}"
        raise InvalidUsage(f"{text!r} matches several {kind}s", hint=hint)
    return found[0]


async def find_budget_question(store: Store, agent: AgentId) -> Approval | None:
    """Find the open question about a spent budget of the agent."""
    found = await store.approvals(agent)
    return next((each for each in found if each.about == "budget"), None)


def explain_question(question: Approval) -> str:
    """Return the reason of a question about a budget."""
    return str(question.tool_input["why"])
