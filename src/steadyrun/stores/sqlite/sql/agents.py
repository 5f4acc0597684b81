"""How do agents come, change and go? Each function is one step inside a transaction."""

from datetime import datetime

from msgspec.structs import replace

from steadyrun.errors import ChangeRefused, NameTaken, NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Message
from steadyrun.stores.sqlite.sql import approvals, items, rows
from steadyrun.stores.sqlite.sql.rows import Connection, maybe_micros

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
    if rows.one(connection, _ID_IN_USE, {"agent": agent.id}):
        raise NameTaken(agent.name)
    _refuse_taken(connection, agent)
    _put(connection, agent)
    connection.execute(_ADD_LANE, {"agent": agent.id})


def hire(
    connection: Connection, agent: Agent, message: Message, item: ItemId, now: datetime
) -> None:
    """`item` is the id that the message gets."""
    if message.agent != agent.id:
        raise ChangeRefused("hire", found=f"the message is for {message.agent}")
    add(connection, agent)
    items.accept(connection, item, message, now)


def change(connection: Connection, agent: Agent, was: Agent) -> None:
    known = _present(connection, agent.id)
    if known != was:
        raise ChangeRefused("set_agent", found=f"{known.name} has been changed meanwhile")
    if (agent.is_direct, agent.removed_at) != (was.is_direct, was.removed_at):
        raise ChangeRefused("set_agent", found="what kind of agent it is stays as it is")
    _refuse_taken(connection, agent)
    _put(connection, agent)


def remove(connection: Connection, agent: AgentId, now: datetime) -> None:
    known, lane = _present(connection, agent), rows.lane(connection, agent)
    if lane.status != "idle":
        raise ChangeRefused("remove_agent", found=f"the lane of {known.name} is {lane.status}")
    approvals.forget(connection, agent)
    _put(connection, replace(known, removed_at=now))
    connection.execute(_REMOVE_LANE, {"agent": agent})


def _present(connection: Connection, agent: AgentId) -> Agent:
    known = rows.agent(connection, agent)
    if known.removed_at is not None:
        raise NotFound("agent", agent)
    return known


def _refuse_taken(connection: Connection, agent: Agent) -> None:
    if rows.one(connection, _NAME_IN_USE, {"agent": agent.id, "name": agent.name}):
        raise NameTaken(agent.name)


def _put(connection: Connection, agent: Agent) -> None:
    values = {
        "agent": agent.id,
        "name": agent.name,
        "provider": agent.provider,
        "is_direct": agent.is_direct,
        "removed_at": maybe_micros(agent.removed_at),
        "body": rows.encode(agent),
        "chain": rows.listed(agent.providers),
    }
    connection.execute(_PUT_AGENT, values)
