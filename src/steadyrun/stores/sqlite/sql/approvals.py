"""How does a question to a person come and go? Each function is one step inside a transaction."""

from itertools import groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from steadyrun.errors import ChangeRefused, NotFound
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
from steadyrun.stores.sqlite.db.settings import StoreSettings
from steadyrun.stores.sqlite.sql import items, rows
from steadyrun.stores.sqlite.sql.events import EventLog
from steadyrun.stores.sqlite.sql.rows import Connection, micros

_ADD = """
    INSERT INTO approvals
    VALUES (:approval, :agent, :run, :about, 'open', :asked_at, :body)
    ON CONFLICT DO NOTHING
"""
_SETTLE = """
    UPDATE approvals SET status = :status
    WHERE approval_id = :approval AND status IN ('open', 'answered')
"""
_WITHDRAW = """
    UPDATE approvals SET status = 'withdrawn'
    WHERE run_id = :run AND about = 'tool' AND status IN ('open', 'answered')
"""
_FORGET = """
    UPDATE approvals SET status = 'withdrawn'
    WHERE agent_id = :agent AND status IN ('open', 'answered')
"""
_ANSWER = """
    UPDATE approvals SET status = :status, body = :body
    WHERE approval_id = :approval
"""
_SELECT = "SELECT body, status FROM approvals WHERE approval_id = :approval"
_PAGE = """
    SELECT body, status FROM approvals
    WHERE (:agent IS NULL OR agent_id = :agent)
    ORDER BY asked_at DESC, approval_id DESC
    LIMIT :limit
"""
_UNSETTLED = """
    SELECT body, status FROM approvals
    WHERE status IN ('open', 'answered') AND (:agent IS NULL OR agent_id = :agent)
    ORDER BY asked_at DESC, approval_id DESC
    LIMIT :limit
"""
_LIKE = """
    SELECT body, status FROM approvals
    WHERE substr(approval_id, 1, length(:part)) = :part
       OR substr(approval_id, -length(:part)) = :part
    ORDER BY asked_at DESC, approval_id DESC
    LIMIT :limit
"""
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


def heard(connection: Connection, agent: AgentId, batch: Batch, body: bytes) -> None:
    """A question was asked, or has come to its end; as it is written, without secrets."""
    for each in decode_events(body):
        match each.event:
            case ApprovalRequested() if batch.run is not None:
                _ask(connection, build_approval(each, batch.process, agent, batch.run))
            case ApprovalResolved(name, _, by):
                settled = {
                    "approval": build_approval_id(batch.process, name),
                    "status": choose_status(by),
                }
                connection.execute(_SETTLE, settled)
            case _:
                pass


def _ask(connection: Connection, approval: Approval) -> None:
    if approval.about == "tool":
        _add(connection, approval)
        return
    agent = approval.agent
    is_besides = rows.lane(connection, agent).is_paused and not _about_budget(connection, agent)
    _add(connection, replace(approval, is_paused_besides=is_besides))
    items.set_paused(connection, agent, True)


def pause(connection: Connection, agent: AgentId) -> None:
    """Somebody wants it: whoever allows it to spend more does not end that."""
    items.set_paused(connection, agent, True)
    for known in _about_budget(connection, agent):
        paused = rows.encode(replace(known, is_paused_besides=True))
        values = {"approval": known.id, "status": known.status, "body": paused}
        connection.execute(_ANSWER, values)


def _about_budget(connection: Connection, agent: AgentId) -> list[Approval]:
    found = page(connection, agent, False, _MOST_OPEN)
    return [each for each in found if each.about == "budget"]


def withdraw(connection: Connection, run: RunId) -> None:
    """Nobody waits for what is not settled by now."""
    connection.execute(_WITHDRAW, {"run": run})


def forget(connection: Connection, agent: AgentId) -> None:
    """Nobody needs to know any more how an agent shall go on."""
    connection.execute(_FORGET, {"agent": agent})


def answer(
    connection: Connection, name: ApprovalId, given: ApprovalAnswer, terms: StoreSettings
) -> Approval:
    known = approval(connection, name)
    if known.answer and known.answer.to_key() == given.to_key():
        return known
    if known.status != "open":
        raise ChangeRefused("answer", found=f"{known.id} is {known.status}")
    answered = known.with_answer(given)
    values = {"approval": known.id, "status": answered.status, "body": rows.encode(answered)}
    connection.execute(_ANSWER, values)
    if known.about == "budget":
        _go_on(connection, answered, terms)
    return answered


def _go_on(connection: Connection, answered: Approval, terms: StoreSettings) -> None:
    """Nobody waits who would tell the record; the agent may work again, if it may."""
    assert answered.answer
    ledger = EventLog(connection, answered.agent, rows.lane(connection, answered.agent).event_seq)
    ledger.add(None, 1, encode_events([build_resolution(answered)], terms.scrubber))
    ledger.close()
    if answered.answer.is_allowed and not answered.is_paused_besides:
        items.set_paused(connection, answered.agent, False)


def approval(connection: Connection, name: ApprovalId) -> Approval:
    row = rows.one(connection, _SELECT, {"approval": name})
    if row is None:
        raise NotFound("approval", name)
    return _from(row)


def page(
    connection: Connection, agent: AgentId | None, include_settled: bool, limit: int
) -> list[Approval]:
    sql = _PAGE if include_settled else _UNSETTLED
    return [_from(row) for row in connection.execute(sql, {"agent": agent, "limit": limit})]


def like(connection: Connection, part: str, limit: int) -> list[Approval]:
    return [_from(row) for row in connection.execute(_LIKE, {"part": part, "limit": limit})]


def answers(connection: Connection, holder: HolderId) -> dict[AgentId, tuple[Approval, ...]]:
    """What the runs of a holder were answered and do not have yet."""
    found = map(_from, connection.execute(_ANSWERS, {"holder": holder}))
    return {agent: tuple(each) for agent, each in groupby(found, key=lambda one: one.agent)}


def _add(connection: Connection, approval: Approval) -> None:
    values = {
        "approval": approval.id,
        "agent": approval.agent,
        "run": approval.run,
        "about": approval.about,
        "asked_at": micros(approval.asked_at),
        "body": rows.encode(approval),
    }
    connection.execute(_ADD, values)


def _from(row: tuple[Any, ...]) -> Approval:
    """What became of it is told by the row: a run that ends does not look into them."""
    body, status = row
    return replace(_approval.decode(body), status=status)
