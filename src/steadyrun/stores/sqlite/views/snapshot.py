"""Reads snapshots of lanes and of their runs: one query for each table, for all lanes."""

from collections.abc import Iterator, Mapping

from steadyrun.errors import NotFound
from steadyrun.model.event import SNAPSHOT_KINDS, Emitted
from steadyrun.model.event_codec import decode_events
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.store import LaneSnapshot
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, Connection

_PROVIDERS = """
    SELECT agent_id, provider FROM agents
    WHERE agent_id IN (SELECT value FROM json_each(:agents))
"""
_PROCESSES = """
    SELECT agent_id, provider FROM processes
    WHERE agent_id IN (SELECT value FROM json_each(:agents)) AND closed_at IS NULL
    ORDER BY process_id
"""
_RUNS = """
    SELECT body FROM runs
    WHERE run_id IN (SELECT value FROM json_each(:runs))
"""
_SESSIONS = """
    SELECT agent_id, provider, body FROM sessions
    WHERE agent_id IN (SELECT value FROM json_each(:agents))
"""
_FOLLOWUPS = f"""
    SELECT {ITEM_COLUMNS} FROM items
    WHERE agent_id IN (SELECT value FROM json_each(:agents))
      AND status IN ('queued', 'running')
      AND delivery IN ('offered', 'returned')
    ORDER BY seq
"""  # noqa: S608
_STEERABLE = """
    SELECT DISTINCT agent_id FROM items
    WHERE agent_id IN (SELECT value FROM json_each(:agents))
      AND status = 'queued'
      AND followup = 'steer'
      AND delivery = 'none'
"""
# The kind of an event is stored as text: a row without one of these words need not be decoded.
_CANDIDATES = """
    SELECT run_id, body FROM event_batches
    WHERE run_id IN (SELECT value FROM json_each(:runs))
      AND (instr(body, :followup) OR instr(body, :approval) OR instr(body, :budget))
    ORDER BY id
"""
_WORDS = {"followup": b"followup.", "approval": b"approval.", "budget": b"budget."}


def lane_snapshots(
    connection: Connection, lanes: Mapping[AgentId, RunId | None]
) -> dict[AgentId, LaneSnapshot]:
    values = {"agents": rows.to_json_list(lanes)}
    providers = dict(connection.execute(_PROVIDERS, values).fetchall())
    providers.update(connection.execute(_PROCESSES, values).fetchall())
    sessions = {
        (agent, provider): rows.decode_session((body,))
        for agent, provider, body in connection.execute(_SESSIONS, values)
    }
    followups: dict[AgentId, list[Item]] = {agent: [] for agent in lanes}
    for item in map(rows.decode_item, connection.execute(_FOLLOWUPS, values)):
        followups[item.agent].append(item)
    steerable = {agent for [agent] in connection.execute(_STEERABLE, values)}
    named = [run for run in lanes.values() if run is not None]
    runs, events = _load_runs(connection, named), _load_events(connection, named)
    found = {}
    for agent, name in lanes.items():
        run = _require_run(runs, agent, name) if name is not None else None
        if agent not in providers:
            raise NotFound("agent", agent)
        session = sessions.get((agent, run.provider if run else providers[agent]))
        emitted = tuple(events[run.id]) if run else ()
        found[agent] = LaneSnapshot(
            run, session, tuple(followups[agent]), emitted, agent in steerable
        )
    return found


def _require_run(runs: Mapping[RunId, Run], agent: AgentId, name: RunId) -> Run:
    run = runs.get(name)
    if run is None or run.agent != agent:
        raise NotFound("run", name)
    return run


def _load_runs(connection: Connection, names: list[RunId]) -> dict[RunId, Run]:
    found = connection.execute(_RUNS, {"runs": rows.to_json_list(names)}).fetchall()
    return {run.id: run for run in (rows.decode_run(connection, row) for row in found)}


def _load_events(connection: Connection, names: list[RunId]) -> dict[RunId, list[Emitted]]:
    found: dict[RunId, list[Emitted]] = {name: [] for name in names}
    for run, body in connection.execute(_CANDIDATES, {"runs": rows.to_json_list(names), **_WORDS}):
        found[run] += _decode_known(body)
    return found


def _decode_known(body: bytes) -> Iterator[Emitted]:
    for each in decode_events(body):
        if type(each.event) in SNAPSHOT_KINDS:
            yield each
