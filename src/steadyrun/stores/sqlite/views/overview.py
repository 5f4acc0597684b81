"""Reads what a list of agents shows: a few queries for all agents, in one view of the file."""

from datetime import datetime

from steadyrun.model.ids import AgentId
from steadyrun.model.usage import UsageSum
from steadyrun.store import AgentOverview
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.queries import USAGE_COLUMNS
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, LANE_COLUMNS, Connection, to_micros

_AGENTS = f"""
    SELECT body, {LANE_COLUMNS}
    FROM agents
    JOIN lanes USING (agent_id)
    WHERE is_direct = 0 AND removed_at IS NULL
      AND (:agent IS NULL OR agent_id = :agent)
    ORDER BY name
"""  # noqa: S608
_SESSIONS = """
    SELECT agent_id, provider, body FROM sessions
    WHERE :agent IS NULL OR agent_id = :agent
"""
_ACTIVE = f"""
    SELECT {ITEM_COLUMNS} FROM items
    WHERE status = 'running' AND delivery IN ('none', 'own_turn')
      AND (:agent IS NULL OR agent_id = :agent)
      AND EXISTS (
          SELECT 1 FROM runs
          WHERE runs.run_id = items.run_id AND runs.status IN ('starting', 'running')
      )
"""  # noqa: S608
_USAGE = f"""
    SELECT agent_id, {USAGE_COLUMNS} FROM runs
    WHERE created_at >= :since AND (:agent IS NULL OR agent_id = :agent)
    GROUP BY agent_id
"""  # noqa: S608


def agent_overviews(
    connection: Connection, since: datetime, *, agent: AgentId | None = None
) -> list[AgentOverview]:
    connection.execute("BEGIN")
    try:
        return _load(connection, {"agent": agent, "since": to_micros(since)})
    finally:
        connection.execute("COMMIT")


def _load(connection: Connection, chosen: dict[str, object]) -> list[AgentOverview]:
    found = connection.execute(_AGENTS, chosen).fetchall()
    sessions = {row[:2]: row[2:] for row in connection.execute(_SESSIONS, chosen)}
    active = {row[1]: rows.decode_item(row) for row in connection.execute(_ACTIVE, chosen)}
    usages = {row[0]: UsageSum(*row[1:]) for row in connection.execute(_USAGE, chosen)}
    overviews = []
    for body, *lane in found:
        agent = rows.decode_agent((body,))
        stored, item = sessions.get((agent.id, agent.provider)), active.get(agent.id)
        session = rows.decode_session(stored) if stored else None
        run = item.run if item else None
        usage = usages.get(agent.id, UsageSum())
        overviews.append(
            AgentOverview(agent, rows.decode_lane(tuple(lane)), session, item, run, usage)
        )
    return overviews
