"""What are persons asked, and what do they say? Whoever answers first has decided."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import ChangeRefused, Conflict, InvalidUsage, NotAllowed, NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Answer, Approval
from steadyrun.model.ids import ApprovalId
from steadyrun.operations.agents import switch_provider
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import ApprovalDocument, ApprovalsDocument
from steadyrun.operations.fields import arg, hidden
from steadyrun.operations.lookup import find_agent
from steadyrun.runtime.run.budget import extend
from steadyrun.store import Store

_LIST = "`steadyrun approvals` lists them."

ApprovalIdArg = Annotated[
    str, arg("a question's id, or how it begins or ends: `steadyrun approvals`", metavar="ID")
]
AnsweredByArg = Annotated[str, hidden("who answers")]


class ListApprovalsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    agent: Annotated[str | None, arg("only of this agent", metavar="AGENT", is_word=True)] = None
    all: Annotated[bool, arg("the settled ones, too")] = False
    limit: Annotated[int, arg("how many (50)", metavar="N", flag="-n")] = 50


class ApproveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: ApprovalIdArg
    by: AnsweredByArg
    always: Annotated[bool, arg("nor need it ask again for the same in this conversation")] = False
    provider: Annotated[
        str | None, arg("of a budget: who is to go on instead", metavar="P", flag="--provider")
    ] = None


class DenyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: ApprovalIdArg
    by: AnsweredByArg
    reason: Annotated[
        str, arg("why, for the agent and the record", metavar="TEXT", flag="--reason")
    ]


async def list_approvals(desk: OperationContext, given: ListApprovalsRequest) -> ApprovalsDocument:
    if given.limit < 1:
        raise InvalidUsage(f"expected a number from 1 on, found {given.limit}")
    agent = None if given.agent is None else (await find_agent(desk, given.agent)).id
    found = await desk.store.approvals(agent, include_settled=given.all, limit=given.limit)
    return ApprovalsDocument(await build_approval_documents(desk.store, found))


async def approve(desk: OperationContext, given: ApproveRequest) -> ApprovalDocument:
    now = desk.clock.now()
    answer = Answer(True, given.by, now, always=given.always, provider=given.provider)
    return await _find_and_answer(desk, given.id, answer)


async def deny(desk: OperationContext, given: DenyRequest) -> ApprovalDocument:
    if not given.reason.strip():
        raise InvalidUsage("the reason is empty", hint="Say why: the agent is told.")
    return await _find_and_answer(
        desk, given.id, Answer(False, given.by, desk.clock.now(), given.reason)
    )


async def find_approval(store: Store, text: str) -> Approval:
    """The one question whose id begins or ends with `text`."""
    try:
        return await store.approval(ApprovalId(text))
    except NotFound:
        found = await store.approvals_like(text) if text else []
    if not found:
        raise NotFound("approval", text, hint=_LIST)
    if len(found) > 1:
        raise InvalidUsage(f"{text!r} fits several approvals", hint=f"Type more of the id: {_LIST}")
    return found[0]


async def answer_approval(desk: OperationContext, approval: Approval, answer: Answer) -> Approval:
    """Answer it, unless somebody else has, it is settled, or others have to."""
    agent = await desk.store.agent(approval.agent)
    _check_answer(agent, approval, answer)
    if approval.about == "budget":
        return await _answer_about_budget(desk, agent, approval, answer)
    return await _store_answer(desk.store, approval, answer)


def _check_answer(agent: Agent, approval: Approval, answer: Answer) -> None:
    if agent.approvers and answer.by not in agent.approvers:
        hint = f"They may: {', '.join(agent.approvers)}"
        raise NotAllowed(f"{answer.by} may not answer for {agent.name}", hint=hint)
    if answer.always and not approval.offers_always:
        hint = "Approve it without: it will ask again."
        raise InvalidUsage(f"{approval.id} cannot be allowed for good", hint=hint)
    if answer.provider is not None and approval.about != "budget":
        hint = "Only who has spent a budget is asked who shall go on."
        raise InvalidUsage(f"{approval.id} is about a tool: it takes no --provider", hint=hint)


async def _answer_about_budget(
    desk: OperationContext, agent: Agent, approval: Approval, answer: Answer
) -> Approval:
    """Let it go on, maybe with another provider, or let it be: what it was asked is cancelled.

    Each step may be said twice: whoever is killed in between says it again.
    """
    store = desk.store
    if answer.is_allowed and approval.status == "open":
        if answer.provider is not None:
            agent = await switch_provider(desk, agent, answer.provider)
        extended = await extend(store, agent, desk.budgets, desk.clock.now())
        answer = replace(answer, extended=extended)
    answered = await _store_answer(store, approval, answer)
    item = (await store.run(approval.run)).item
    if not answer.is_allowed and item is not None:
        await store.cancel(item, answer.reason)
    return answered


async def _store_answer(store: Store, approval: Approval, answer: Answer) -> Approval:
    try:
        return await store.answer(approval.id, answer)
    except ChangeRefused as error:
        raise Conflict(await _explain_conflict(store, approval.id), hint=_LIST) from error


async def _find_and_answer(desk: OperationContext, text: str, answer: Answer) -> ApprovalDocument:
    approval = await find_approval(desk.store, text)
    answered = await answer_approval(desk, approval, answer)
    [document] = await build_approval_documents(desk.store, [answered])
    return document


async def _explain_conflict(store: Store, name: ApprovalId) -> str:
    found = await store.approval(name)
    if found.answer is None:
        return f"{found.id} is {found.status}: nobody waits for an answer"
    word = "allowed" if found.answer.is_allowed else "denied"
    return f"{found.id} was {word} already, by {found.answer.by}"


async def build_approval_documents(
    store: Store, found: Sequence[Approval]
) -> tuple[ApprovalDocument, ...]:
    names = {agent: (await store.agent(agent)).name for agent in {each.agent for each in found}}
    return tuple(_build_document(each, names[each.agent]) for each in found)


def _build_document(approval: Approval, agent: str) -> ApprovalDocument:
    answer = approval.answer
    return ApprovalDocument(
        id=approval.id,
        agent=agent,
        run=approval.run,
        status=approval.status,
        tool_name=approval.tool_name,
        tool_input=approval.tool_input,
        tool_call_id=approval.tool_call_id,
        offers_always=approval.offers_always,
        asked_at=approval.asked_at,
        verdict=answer.verdict if answer else None,
        by=answer.by if answer else None,
        reason=answer.reason or None if answer else None,
        always=answer.always if answer else None,
        answered_at=answer.at if answer else None,
        about=approval.about,
        provider=answer.provider if answer else None,
        extended=answer.extended if answer else (),
    )
