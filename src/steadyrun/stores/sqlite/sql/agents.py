"""Agents in the database. Each function is one step inside a transaction."""

from msgspec.structs import replace

from steadyrun.errors import NameTaken
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.stores import rules
from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import approvals, rows
from steadyrun.stores.sqlite.sql.rows import to_maybe_micros

_NAME_IN_USE = """
    SELECT 1 FROM agents
    WHERE (name = :name AND removed_at IS NULL AND agent_id != :agent) OR agent_id = :name
"""
_ID_IN_USE = "SELECT 1 FROM agents WHERE agent_id = :agent"
_PUT_AGENT = """
    INSERT OR REPLACE INTO agents
    VALUES (:agent, :name, :provider, :is_direct, :removed_at, :body, :chain)
"""
_ADD_LANE = "INSERT INTO lanes VALUES (:agent, 'idle', 0, NULL, NULL, 0, 0, 0)"
_REMOVE_LANE = "DELETE FROM lanes WHERE agent_id = :agent"


def add_agent(tx: Transaction, agent: Agent) -> None:
    if rows.has_row(tx, _ID_IN_USE, {"agent": agent.id}):
        raise NameTaken(agent.name)
    _require_free_name(tx, agent)
    _put(tx, agent)
    tx.execute(_ADD_LANE, {"agent": agent.id})
    tx.notify(agent.id)


def set_agent(tx: Transaction, agent: Agent, *, was: Agent) -> None:
    stored = rules.require_present(rows.find_agent(tx, agent.id), agent.id)
    rules.require_unchanged(stored, agent, was)
    _require_free_name(tx, agent)
    _put(tx, agent)
    tx.notify(agent.id)


def remove_agent(tx: Transaction, agent: AgentId) -> None:
    stored = rules.require_present(rows.find_agent(tx, agent), agent)
    rules.require_idle(stored, rows.lane(tx, agent))
    approvals.withdraw_for_agent(tx, agent)
    _put(tx, replace(stored, removed_at=tx.now))
    tx.execute(_REMOVE_LANE, {"agent": agent})
    tx.notify(agent)


def _require_free_name(tx: Transaction, agent: Agent) -> None:
    if rows.has_row(tx, _NAME_IN_USE, {"agent": agent.id, "name": agent.name}):
        raise NameTaken(agent.name)


def _put(tx: Transaction, agent: Agent) -> None:
    values = {
        "agent": agent.id,
        "name": agent.name,
        "provider": agent.provider,
        "is_direct": agent.is_direct,
        "removed_at": to_maybe_micros(agent.removed_at),
        "body": rows.encode(agent),
        "chain": rows.to_json_list(agent.providers),
    }
    tx.execute(_PUT_AGENT, values)
