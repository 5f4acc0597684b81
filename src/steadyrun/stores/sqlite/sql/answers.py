"""Answers to questions, with what changes together with them: one step inside a transaction."""

from steadyrun.model.approval import Approval, ApprovalAnswer
from steadyrun.model.ids import ApprovalId
from steadyrun.store import AnswerEffects
from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import agents, approvals, items, kv


def answer(
    tx: Transaction,
    approval: ApprovalId,
    answer: ApprovalAnswer,
    effects: AnswerEffects | None = None,
) -> Approval:
    is_repeated = approvals.find_approval(tx, approval).answer is not None
    answered = approvals.answer(tx, approval, answer)
    if effects is None or is_repeated:
        return answered
    for key, value in effects.values.items():
        kv.put(tx, key, value)
    if effects.agent:
        agent, was = effects.agent
        agents.set_agent(tx, agent, was=was)
    if effects.cancels:
        items.cancel(tx, effects.cancels, answer.reason)
    return answered
