"""How do agents stand? A few questions for all of them together, in one view of the file."""

from datetime import datetime

from steadyrun.model.ids import AgentId
from steadyrun.model.usage import UsageSum
from steadyrun.store import AgentOverview
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.queries import USAGE_COLUMNS
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, LANE_COLUMNS, Connection, micros

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
_GOING_ON = f"""
    SELECT {ITEM_COLUMNS} FROM items
    WHERE status = 'running' AND delivery IN ('none', 'own_turn')
      AND (:agent IS NULL OR agent_id = :agent)
      AND EXISTS (
          SELECT 1 FROM runs
          WHERE runs.run_id = items.run_id AND runs.status IN ('starting', 'running')
      )
"""  # noqa: S608
_USED = f"""
    SELECT agent_id, {USAGE_COLUMNS} FROM runs
    WHERE created_at >= :since AND (:agent IS NULL OR agent_id = :agent)
    GROUP BY agent_id
"""  # noqa: S608


def looks(connection: Connection, agent: AgentId | None, since: datetime) -> list[AgentOverview]:
    connection.execute("BEGIN")
    try:
        return _looks(connection, {"agent": agent, "since": micros(since)})
    finally:
        connection.execute("COMMIT")


def _looks(connection: Connection, about: dict[str, object]) -> list[AgentOverview]:
    found = connection.execute(_AGENTS, about).fetchall()
    sessions = {row[:2]: row[2:] for row in connection.execute(_SESSIONS, about)}
    doing = {row[1]: rows.item_from(row) for row in connection.execute(_GOING_ON, about)}
    used = {row[0]: UsageSum(*row[1:]) for row in connection.execute(_USED, about)}
    looks = []
    for body, *lane in found:
        agent = rows.agent_from((body,))
        kept, item = sessions.get((agent.id, agent.provider)), doing.get(agent.id)
        session = rows.session_from(kept) if kept else None
        run = item.run if item else None
        usage = used.get(agent.id, UsageSum())
        looks.append(AgentOverview(agent, rows.lane_from(tuple(lane)), session, item, run, usage))
    return looks
