"""How do agents come into the record? Each function is one step inside a transaction."""

from steadyrun.errors import NameTaken
from steadyrun.model.agent import Agent
from steadyrun.stores.sqlite import rows
from steadyrun.stores.sqlite.rows import Connection

_NAME_IN_USE = """
    SELECT 1 FROM agents WHERE name = :name OR agent_id = :name OR agent_id = :agent
"""
_ADD_AGENT = "INSERT INTO agents VALUES (:agent, :name, :provider, :body)"
_ADD_LANE = "INSERT INTO lanes VALUES (:agent, 'idle', 0, NULL, NULL, 0, 0, 0)"


def add(connection: Connection, agent: Agent) -> None:
    values = {"agent": agent.id, "name": agent.name}
    if rows.one(connection, _NAME_IN_USE, values):
        raise NameTaken(agent.name)
    body = rows.encode(agent)
    connection.execute(_ADD_AGENT, {**values, "provider": agent.provider, "body": body})
    connection.execute(_ADD_LANE, {"agent": agent.id})
