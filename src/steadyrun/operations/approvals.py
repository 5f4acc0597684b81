"""Lists approval requests of agents and answers them. The first answer counts."""

from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import ChangeRefused, Conflict, InvalidUsage, NotAllowed
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval, ApprovalAnswer
from steadyrun.model.ids import ApprovalId
from steadyrun.operations.agents import build_switched
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import ApprovalDocument, ApprovalsDocument
from steadyrun.operations.fields import arg, hidden
from steadyrun.operations.lookup import find_agent, find_approval
from steadyrun.operations.views import build_approval_documents
from steadyrun.runtime.run.budget import compute_extensions, encode_extensions
from steadyrun.store import AnswerEffects, Store

_LIST = "`steadyrun approvals` lists them."
# The author of an answer of a program that gives no other name.
BY_PROGRAM = "library"

ApprovalIdArg = Annotated[
    str,
    arg("the id of a request, its beginning or its end: see `steadyrun approvals`", metavar="ID"),
]
AnsweredByArg = Annotated[
    str | None, hidden("the author of the answer; over the socket, none but the caller")
]


class ListApprovalsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    agent: Annotated[str | None, arg("only of this agent", metavar="AGENT", is_word=True)] = None
    all: Annotated[bool, arg("include settled requests")] = False
    limit: Annotated[int, arg("number of requests (50)", metavar="N", flag="-n")] = 50


class ApproveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: ApprovalIdArg
    by: AnsweredByArg = None
    always: Annotated[bool, arg("allow the same for the rest of the conversation")] = False
    provider: Annotated[
        str | None,
        arg("for a spent budget: continue with this provider", metavar="P", flag="--provider"),
    ] = None


class DenyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: ApprovalIdArg
    reason: Annotated[
        str, arg("the reason, for the agent and the record", metavar="TEXT", flag="--reason")
    ]
    by: AnsweredByArg = None


async def list_approvals(
    context: OperationContext, request: ListApprovalsRequest
) -> ApprovalsDocument:
    if request.limit < 1:
        raise InvalidUsage(f"expected a number above 0, found {request.limit}")
    agent = None if request.agent is None else (await find_agent(context, request.agent)).id
    found = await context.store.approvals(agent, include_settled=request.all, limit=request.limit)
    return ApprovalsDocument(await build_approval_documents(context.store, found))


async def approve(context: OperationContext, request: ApproveRequest) -> ApprovalDocument:
    by, now = _find_author(context, request.by), context.clock.now()
    answer = ApprovalAnswer(True, by, now, always=request.always, provider=request.provider)
    return await find_and_answer(context, request.id, answer)


async def deny(context: OperationContext, request: DenyRequest) -> ApprovalDocument:
    if not request.reason.strip():
        raise InvalidUsage("the reason is empty", hint="Give a reason: the agent receives it.")
    by = _find_author(context, request.by)
    return await find_and_answer(
        context, request.id, ApprovalAnswer(False, by, context.clock.now(), request.reason)
    )


async def answer_approval(
    context: OperationContext, approval: Approval, answer: ApprovalAnswer
) -> Approval:
    """Answer a request, unless it has an answer already or the author may not answer it."""
    agent = await context.store.agent(approval.agent)
    _check_answer(agent, approval, answer)
    if approval.about == "budget":
        return await _answer_about_budget(context, agent, approval, answer)
    return await _store_answer(context.store, approval, answer)


def _find_author(context: OperationContext, named: str | None) -> str:
    """The caller, as the server knows it. Another name in the request is refused."""
    if context.caller is None:
        return named or BY_PROGRAM
    if named not in {None, context.caller}:
        raise NotAllowed(f"{context.caller} cannot answer as {named}", hint="Leave out `by`.")
    return context.caller


def _check_answer(agent: Agent, approval: Approval, answer: ApprovalAnswer) -> None:
    if agent.approvers and answer.by not in agent.approvers:
        hint = f"Allowed are: {', '.join(agent.approvers)}"
        raise NotAllowed(f"{answer.by} may not answer for {agent.name}", hint=hint)
    if answer.always and not approval.offers_always:
        hint = "Approve it without --always."
        raise InvalidUsage(f"{approval.id} does not offer --always", hint=hint)
    if answer.provider is not None and approval.about != "budget":
        hint = "Only a request about a spent budget accepts --provider."
        raise InvalidUsage(f"{approval.id} is about a tool", hint=hint)


async def _answer_about_budget(
    context: OperationContext, agent: Agent, approval: Approval, answer: ApprovalAnswer
) -> Approval:
    """Extend the budget, with another provider if one is named, or cancel the item. The store
    does it together with the answer, or not at all: of two answers only the first has an effect."""
    store = context.store
    if not answer.is_allowed:
        item = (await store.run(approval.run)).item
        return await _store_answer(store, approval, answer, AnswerEffects(cancels=item))
    effects = AnswerEffects()
    if approval.status == "open":
        switched = agent
        if answer.provider is not None:
            switched = await build_switched(context, agent, answer.provider)
        now = context.clock.now()
        extended = await compute_extensions(store, switched, context.budgets, now)
        answer = replace(answer, extended=tuple(extended.values()))
        change = (switched, agent) if switched != agent else None
        effects = AnswerEffects(encode_extensions(extended), change)
    return await _store_answer(store, approval, answer, effects)


async def _store_answer(
    store: Store, approval: Approval, answer: ApprovalAnswer, effects: AnswerEffects | None = None
) -> Approval:
    try:
        return await store.answer(approval.id, answer, effects)
    except ChangeRefused as error:
        if (await store.approval(approval.id)).status == "open":
            # The agent was changed at the same moment.
            raise
        raise Conflict(await _explain_conflict(store, approval.id), hint=_LIST) from error


async def find_and_answer(
    context: OperationContext, text: str, answer: ApprovalAnswer
) -> ApprovalDocument:
    """Answer the request that `text` names: see `find_approval`."""
    approval = await find_approval(context.store, text)
    answered = await answer_approval(context, approval, answer)
    [document] = await build_approval_documents(context.store, [answered])
    return document


async def _explain_conflict(store: Store, name: ApprovalId) -> str:
    found = await store.approval(name)
    if found.answer is None:
        return f"{found.id} is {found.status}: it needs no answer any more"
    word = "allowed" if found.answer.is_allowed else "denied"
    return f"{found.id} was already {word} by {found.answer.by}"
