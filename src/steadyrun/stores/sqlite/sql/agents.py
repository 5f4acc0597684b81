"""Agents in the database. Each function is one step inside a transaction."""

from datetime import datetime

from msgspec.structs import replace

from steadyrun.errors import NameTaken
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.stores import rules
from steadyrun.stores.sqlite.sql import approvals, rows
from steadyrun.stores.sqlite.sql.rows import Connection, to_maybe_micros

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


def add(connection: Connection, agent: Agent) -> None:
    if rows.fetch_one(connection, _ID_IN_USE, {"agent": agent.id}):
        raise NameTaken(agent.name)
    _require_free_name(connection, agent)
    _put(connection, agent)
    connection.execute(_ADD_LANE, {"agent": agent.id})


def change(connection: Connection, agent: Agent, was: Agent) -> None:
    stored = rules.require_present(rows.find_agent(connection, agent.id), agent.id)
    rules.require_unchanged(stored, agent, was)
    _require_free_name(connection, agent)
    _put(connection, agent)


def remove(connection: Connection, agent: AgentId, now: datetime) -> None:
    stored = rules.require_present(rows.find_agent(connection, agent), agent)
    rules.require_idle(stored, rows.lane(connection, agent))
    approvals.withdraw_of_agent(connection, agent)
    _put(connection, replace(stored, removed_at=now))
    connection.execute(_REMOVE_LANE, {"agent": agent})


def _require_free_name(connection: Connection, agent: Agent) -> None:
    if rows.fetch_one(connection, _NAME_IN_USE, {"agent": agent.id, "name": agent.name}):
        raise NameTaken(agent.name)


def _put(connection: Connection, agent: Agent) -> None:
    values = {
        "agent": agent.id,
        "name": agent.name,
        "provider": agent.provider,
        "is_direct": agent.is_direct,
        "removed_at": to_maybe_micros(agent.removed_at),
        "body": rows.encode(agent),
        "chain": rows.to_json_list(agent.providers),
    }
    connection.execute(_PUT_AGENT, values)
