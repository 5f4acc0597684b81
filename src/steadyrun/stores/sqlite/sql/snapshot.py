"""What is known of lanes and of what runs in them? A question for each table, for all at once."""

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
# The name of an event's kind is written out in what is stored of it: what has none of them in it
# need not be read.
_TELLING = """
    SELECT run_id, body FROM event_batches
    WHERE run_id IN (SELECT value FROM json_each(:runs))
      AND (instr(body, :followup) OR instr(body, :approval) OR instr(body, :budget))
    ORDER BY id
"""
_MARKS = {"followup": b"followup.", "approval": b"approval.", "budget": b"budget."}


def known(
    connection: Connection, lanes: Mapping[AgentId, RunId | None]
) -> dict[AgentId, LaneSnapshot]:
    values = {"agents": rows.listed(lanes)}
    providers = dict(connection.execute(_PROVIDERS, values).fetchall())
    providers.update(connection.execute(_PROCESSES, values).fetchall())
    sessions = {
        (agent, provider): rows.session_from((body,))
        for agent, provider, body in connection.execute(_SESSIONS, values)
    }
    followups: dict[AgentId, list[Item]] = {agent: [] for agent in lanes}
    for item in map(rows.item_from, connection.execute(_FOLLOWUPS, values)):
        followups[item.agent].append(item)
    steerable = {agent for [agent] in connection.execute(_STEERABLE, values)}
    named = [run for run in lanes.values() if run is not None]
    runs, events = _runs(connection, named), _events(connection, named)
    found = {}
    for agent, name in lanes.items():
        run = _required(runs, agent, name) if name is not None else None
        if agent not in providers:
            raise NotFound("agent", agent)
        session = sessions.get((agent, run.provider if run else providers[agent]))
        told = tuple(events[run.id]) if run else ()
        found[agent] = LaneSnapshot(run, session, tuple(followups[agent]), told, agent in steerable)
    return found


def _required(runs: Mapping[RunId, Run], agent: AgentId, name: RunId) -> Run:
    run = runs.get(name)
    if run is None or run.agent != agent:
        raise NotFound("run", name)
    return run


def _runs(connection: Connection, names: list[RunId]) -> dict[RunId, Run]:
    found = connection.execute(_RUNS, {"runs": rows.listed(names)}).fetchall()
    return {run.id: run for run in (rows.run_from(connection, row) for row in found)}


def _events(connection: Connection, names: list[RunId]) -> dict[RunId, list[Emitted]]:
    found: dict[RunId, list[Emitted]] = {name: [] for name in names}
    for run, body in connection.execute(_TELLING, {"runs": rows.listed(names), **_MARKS}):
        found[run] += _telling(body)
    return found


def _telling(body: bytes) -> Iterator[Emitted]:
    for each in decode_events(body):
        if type(each.event) in SNAPSHOT_KINDS:
            yield each
