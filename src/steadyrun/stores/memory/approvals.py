"""Approvals of the reference store. An approval changes in the same step as its cause."""

from collections.abc import Iterable
from datetime import datetime

from msgspec.structs import replace

from steadyrun.model.approval import (
    UNSETTLED,
    Approval,
    ApprovalAnswer,
    build_approval,
    build_approval_id,
    choose_status,
)
from steadyrun.model.batch import Batch
from steadyrun.model.event import ApprovalRequested, ApprovalResolved, ErrorFact
from steadyrun.model.ids import AgentId, ApprovalId, RunId
from steadyrun.store import AnswerEffects
from steadyrun.stores import rules
from steadyrun.stores.memory import tables
from steadyrun.stores.memory.tables import Placed, Tables


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
        approval = rules.ask_for_budget(approval, tables.find_lane(t, agent), unsettled)
        tables.set_paused(t, agent, is_paused=True)
    t.approvals.setdefault(approval.id, approval)


def set_paused(t: Tables, agent: AgentId, *, is_paused: bool) -> None:
    """Pause or resume by hand: an answer that allows more budget does not lift such a pause."""
    tables.set_paused(t, agent, is_paused=is_paused)
    for question in _list_budget_questions(t, agent) if is_paused else ():
        t.approvals[question.id] = replace(question, is_paused_besides=True)


def _list_budget_questions(t: Tables, agent: AgentId) -> list[Approval]:
    """The unsettled questions about budgets of an agent."""
    found = [each for each in t.approvals.values() if each.agent == agent]
    return [each for each in found if each.about == "budget" and each.status in UNSETTLED]


def withdraw_for_run(t: Tables, run: RunId) -> None:
    """Withdraw the unsettled questions about tools of a run that has ended."""
    _withdraw(t, [a for a in t.approvals.values() if a.run == run and a.about == "tool"])


def withdraw_for_agent(t: Tables, agent: AgentId) -> None:
    """Withdraw all unsettled questions of an agent that is removed."""
    _withdraw(t, [a for a in t.approvals.values() if a.agent == agent])


def _withdraw(t: Tables, approvals: Iterable[Approval]) -> None:
    for each in approvals:
        if each.status in UNSETTLED:
            t.approvals[each.id] = replace(each, status="withdrawn")


def find_approval(t: Tables, approval: ApprovalId) -> Approval:
    return rules.require_found(t.approvals.get(approval), "approval", approval)


def answer(t: Tables, approval: ApprovalId, given: ApprovalAnswer) -> Approval:
    answered = rules.answer_approval(find_approval(t, approval), given)
    if answered is not t.approvals[approval] and rules.is_lane_resumed(answered):
        tables.set_paused(t, answered.agent, is_paused=False)
    t.approvals[approval] = answered
    return answered


def apply_effects(t: Tables, effects: AnswerEffects, why: ErrorFact | None, now: datetime) -> None:
    """Change what an answer changes; a cancelled item is cancelled for this reason."""
    t.kv.update(effects.values)
    if effects.agent:
        tables.replace_agent(t, *effects.agent)
    if effects.cancels:
        tables.cancel_item(t, effects.cancels, why, now)
