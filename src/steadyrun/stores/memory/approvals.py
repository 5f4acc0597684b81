"""Approvals of the reference store. An approval changes in the same step as its cause."""

from collections.abc import Iterable

from msgspec.structs import replace

from steadyrun.errors import NotFound
from steadyrun.model.approval import (
    UNSETTLED,
    Approval,
    ApprovalAnswer,
    build_approval,
    build_approval_id,
    choose_status,
)
from steadyrun.model.batch import Batch
from steadyrun.model.event import ApprovalRequested, ApprovalResolved
from steadyrun.model.ids import AgentId, ApprovalId, RunId
from steadyrun.stores import rules
from steadyrun.stores.memory.tables import Placed, Tables, find_lane, set_paused


def record(t: Tables, agent: AgentId, batch: Batch, placed: Iterable[Placed]) -> None:
    """Store the questions that events ask, and settle those that events resolve."""
    for each in placed:
        match each.emitted.event:
            case ApprovalRequested() if batch.run is not None:
                _ask(t, build_approval(each.emitted, batch.process, agent, batch.run))
            case ApprovalResolved(name, _, by):
                stored = t.approvals.get(build_approval_id(batch.process, name))
                if stored and stored.status in UNSETTLED:
                    t.approvals[stored.id] = replace(stored, status=choose_status(by))
            case _:
                pass


def _ask(t: Tables, approval: Approval) -> None:
    if approval.about == "budget":
        agent = approval.agent
        unsettled = _list_budget_questions(t, agent)
        approval = rules.ask_for_budget(approval, find_lane(t, agent), unsettled)
        set_paused(t, agent, is_paused=True)
    t.approvals.setdefault(approval.id, approval)


def pause(t: Tables, agent: AgentId) -> None:
    """Pause by hand: an answer that allows more budget does not lift this pause."""
    set_paused(t, agent, is_paused=True)
    for question in _list_budget_questions(t, agent):
        t.approvals[question.id] = replace(question, is_paused_besides=True)


def _list_budget_questions(t: Tables, agent: AgentId) -> list[Approval]:
    """The unsettled questions about budgets of an agent."""
    found = [each for each in t.approvals.values() if each.agent == agent]
    return [each for each in found if each.about == "budget" and each.status in UNSETTLED]


def withdraw_of_run(t: Tables, run: RunId) -> None:
    """Withdraw the unsettled questions about tools of a run that has ended."""
    _withdraw(t, [a for a in t.approvals.values() if a.run == run and a.about == "tool"])


def withdraw_of_agent(t: Tables, agent: AgentId) -> None:
    """Withdraw all unsettled questions of an agent that is removed."""
    _withdraw(t, [a for a in t.approvals.values() if a.agent == agent])


def _withdraw(t: Tables, approvals: Iterable[Approval]) -> None:
    for each in approvals:
        if each.status in UNSETTLED:
            t.approvals[each.id] = replace(each, status="withdrawn")


def find_approval(t: Tables, approval: ApprovalId) -> Approval:
    if approval not in t.approvals:
        raise NotFound("approval", approval)
    return t.approvals[approval]


def answer(t: Tables, approval: ApprovalId, given: ApprovalAnswer) -> Approval:
    answered = rules.answer_approval(find_approval(t, approval), given)
    if answered is not t.approvals[approval] and rules.is_lane_resumed(answered):
        set_paused(t, answered.agent, is_paused=False)
    t.approvals[approval] = answered
    return answered
