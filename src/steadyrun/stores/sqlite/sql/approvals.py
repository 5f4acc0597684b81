"""Questions to persons in the database. Each function is one step inside a transaction."""

from itertools import groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from steadyrun.model.approval import (
    Approval,
    ApprovalAnswer,
    build_approval,
    build_approval_id,
    build_resolution,
    choose_status,
)
from steadyrun.model.batch import Batch
from steadyrun.model.event import ApprovalRequested, ApprovalResolved
from steadyrun.model.event_codec import decode_events, encode_events
from steadyrun.model.ids import AgentId, ApprovalId, HolderId, RunId
from steadyrun.store import PAGE
from steadyrun.stores import rules
from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import items, rows
from steadyrun.stores.sqlite.sql.events import EventLog
from steadyrun.stores.sqlite.sql.rows import Connection, to_micros

_ADD = """
    INSERT INTO approvals
    VALUES (:approval, :agent, :run, :about, 'open', :asked_at, :body)
    ON CONFLICT DO NOTHING
"""
_SETTLE = """
    UPDATE approvals SET status = :status
    WHERE approval_id = :approval AND status IN ('open', 'answered')
"""
_WITHDRAW_OF_RUN = """
    UPDATE approvals SET status = 'withdrawn'
    WHERE run_id = :run AND about = 'tool' AND status IN ('open', 'answered')
"""
_WITHDRAW_OF_AGENT = """
    UPDATE approvals SET status = 'withdrawn'
    WHERE agent_id = :agent AND status IN ('open', 'answered')
"""
_SAVE = """
    UPDATE approvals SET status = :status, body = :body
    WHERE approval_id = :approval
"""
_SELECT = "SELECT body, status FROM approvals WHERE approval_id = :approval"
_PAGE = """
    SELECT body, status FROM approvals
    WHERE {conditions}
    ORDER BY asked_at DESC, approval_id DESC
    LIMIT :limit
"""
_IS_UNSETTLED = "status IN ('open', 'answered')"
_IS_MATCHING = """(
    substr(approval_id, 1, length(:part)) = :part OR substr(approval_id, -length(:part)) = :part
)"""
_ANSWERS = """
    SELECT approvals.body, approvals.status
    FROM approvals
    JOIN lanes USING (agent_id)
    WHERE approvals.status = 'answered'
      AND lanes.holder_id = :holder
      AND lanes.status = 'held'
    ORDER BY approvals.agent_id, approvals.asked_at, approvals.approval_id
"""
_MOST_OPEN = 1000
_approval = msgspec.json.Decoder(Approval)


def record(tx: Transaction, agent: AgentId, batch: Batch, body: bytes) -> None:
    """Store the questions that events ask, and settle those that events resolve. `body` has the
    events as they are stored, without secrets."""
    for each in decode_events(body):
        match each.event:
            case ApprovalRequested() if batch.run is not None:
                _ask(tx, build_approval(each, batch.process, agent, batch.run))
            case ApprovalResolved(name, _, by):
                settled = {
                    "approval": build_approval_id(batch.process, name),
                    "status": choose_status(by),
                }
                tx.execute(_SETTLE, settled)
            case _:
                pass


def _ask(tx: Transaction, approval: Approval) -> None:
    if approval.about == "tool":
        _add(tx, approval)
        return
    lane = rows.lane(tx, approval.agent)
    unsettled = _list_budget_questions(tx, approval.agent)
    _add(tx, rules.ask_for_budget(approval, lane, unsettled))
    items.set_paused(tx, approval.agent, is_paused=True)


def set_paused(tx: Transaction, agent: AgentId, *, is_paused: bool) -> None:
    """Pause or resume by hand: an answer that allows more budget does not lift such a pause."""
    items.set_paused(tx, agent, is_paused=is_paused)
    tx.notify(agent)
    for question in _list_budget_questions(tx, agent) if is_paused else ():
        _save(tx, replace(question, is_paused_besides=True))


def _list_budget_questions(tx: Transaction, agent: AgentId) -> list[Approval]:
    """The unsettled questions about budgets of an agent."""
    found = list_approvals(tx, agent, limit=_MOST_OPEN)
    return [each for each in found if each.about == "budget"]


def withdraw_for_run(tx: Transaction, run: RunId) -> None:
    """Withdraw the unsettled questions about tools of a run that has ended."""
    tx.execute(_WITHDRAW_OF_RUN, {"run": run})


def withdraw_for_agent(tx: Transaction, agent: AgentId) -> None:
    """Withdraw all unsettled questions of an agent that is removed."""
    tx.execute(_WITHDRAW_OF_AGENT, {"agent": agent})


def answer(tx: Transaction, approval: ApprovalId, answer: ApprovalAnswer) -> Approval:
    stored = find_approval(tx, approval)
    clean = replace(answer, reason=tx.settings.scrubber.clean(answer.reason))
    answered = rules.answer_approval(stored, clean)
    if answered is not stored:
        _save(tx, answered)
        if answered.about == "budget":
            _add_event(tx, answered)
        if rules.is_lane_resumed(answered):
            items.set_paused(tx, answered.agent, is_paused=False)
    tx.notify(answered.agent)
    return answered


def _add_event(tx: Transaction, answered: Approval) -> None:
    """No process waits for an answer about a budget, so the store adds its event."""
    log = EventLog(tx, answered.agent, rows.lane(tx, answered.agent).event_seq)
    log.add(None, 1, encode_events([build_resolution(answered)], tx.settings.scrubber))
    log.close()


def find_approval(connection: Connection, approval: ApprovalId) -> Approval:
    found = rows.fetch_one(connection, _SELECT, {"approval": approval}, _decode_approval)
    return rules.require_found(found, "approval", approval)


def list_approvals(
    connection: Connection,
    agent: AgentId | None = None,
    *,
    include_settled: bool = False,
    matching: str | None = None,
    limit: int = PAGE,
) -> list[Approval]:
    conditions = ["agent_id = :agent"] if agent is not None else []
    conditions += [_IS_UNSETTLED] if not include_settled else []
    conditions += [_IS_MATCHING] if matching is not None else []
    sql = _PAGE.format(conditions=" AND ".join(conditions) or "true")
    values = {"agent": agent, "part": matching, "limit": limit}
    return [_decode_approval(row) for row in connection.execute(sql, values)]


def list_answers(connection: Connection, holder: HolderId) -> dict[AgentId, tuple[Approval, ...]]:
    """The answers that the runs of a holder have not received yet."""
    found = map(_decode_approval, connection.execute(_ANSWERS, {"holder": holder}))
    return {agent: tuple(each) for agent, each in groupby(found, key=lambda one: one.agent)}


def _save(tx: Transaction, approval: Approval) -> None:
    values = {"approval": approval.id, "status": approval.status, "body": rows.encode(approval)}
    tx.execute(_SAVE, values)


def _add(tx: Transaction, approval: Approval) -> None:
    values = {
        "approval": approval.id,
        "agent": approval.agent,
        "run": approval.run,
        "about": approval.about,
        "asked_at": to_micros(approval.asked_at),
        "body": rows.encode(approval),
    }
    tx.execute(_ADD, values)


def _decode_approval(row: tuple[Any, ...]) -> Approval:
    """The approval. Its status is a column, because the end of a run withdraws questions without
    decoding them."""
    body, status = row
    return replace(_approval.decode(body), status=status)
