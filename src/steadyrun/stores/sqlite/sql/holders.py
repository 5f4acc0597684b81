"""Who holds lanes, and what becomes of those whose holder is gone? Each function is one step
inside a transaction."""

from collections.abc import Sequence

from steadyrun.errors import HolderGone
from steadyrun.model.ids import AgentId, HolderId
from steadyrun.model.item import Claim, Lease
from steadyrun.model.process import Process
from steadyrun.store import AbandonedLane, Holder
from steadyrun.stores.sqlite.db.liveness import Liveness
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.rows import (
    ITEM_COLUMNS,
    PROCESS_COLUMNS,
    Connection,
    micros,
    moment,
)

_ADD_HOLDER = "INSERT INTO holders VALUES (:holder, :kind, :machine, :version, :now)"
_REMOVE_HOLDER = "DELETE FROM holders WHERE holder_id = :holder"


def add(connection: Connection, holder: Holder) -> None:
    values = {
        "holder": holder.id,
        "kind": holder.kind,
        "machine": holder.machine,
        "version": holder.version,
        "now": micros(holder.joined_at),
    }
    connection.execute(_ADD_HOLDER, values)


def remove(connection: Connection, holder: HolderId) -> None:
    connection.execute(_REMOVE_HOLDER, {"holder": holder})


_HOLDERS = "SELECT holder_id, kind, machine, version, joined_at FROM holders ORDER BY holder_id"


def holders(connection: Connection, liveness: Liveness) -> list[Holder]:
    return [
        Holder(name, kind, machine, version, moment(joined_at), liveness.is_alive(name))
        for name, kind, machine, version, joined_at in connection.execute(_HOLDERS)
    ]


_IS_HOLDER = "SELECT 1 FROM holders WHERE holder_id = :holder"


def require(connection: Connection, holder: HolderId) -> None:
    """It has not been taken for gone meanwhile."""
    if rows.one(connection, _IS_HOLDER, {"holder": holder}) is None:
        raise HolderGone(holder)


_KNOWN_HOLDERS = """
    SELECT holder_id FROM holders
    UNION
    SELECT holder_id FROM lanes WHERE holder_id IS NOT NULL
"""
_TAKE_OVER = """
    UPDATE lanes
    SET holder_id = :holder, fence = fence + 1
    WHERE holder_id IN (SELECT value FROM json_each(:gone))
      AND (:lasting OR (SELECT is_direct FROM agents WHERE agents.agent_id = lanes.agent_id))
    RETURNING agent_id, fence
"""


def reap(
    connection: Connection, holder: HolderId, liveness: Liveness, *, lasting: bool
) -> list[AbandonedLane]:
    require(connection, holder)
    known = [name for [name] in connection.execute(_KNOWN_HOLDERS).fetchall()]
    gone = [name for name in known if not liveness.is_alive(name)]
    values = {"holder": holder, "gone": rows.listed(gone), "lasting": lasting}
    holds = [
        Lease(agent, holder, fence)
        for agent, fence in sorted(connection.execute(_TAKE_OVER, values).fetchall())
    ]
    for name in gone:
        connection.execute(_REMOVE_HOLDER, {"holder": name})
        liveness.forget(name)
    return _left(connection, holds)


_AGENTS = """
    SELECT body FROM agents
    WHERE agent_id IN (SELECT value FROM json_each(:agents))
"""
_MAINS = f"""
    SELECT {ITEM_COLUMNS} FROM items
    WHERE agent_id IN (SELECT value FROM json_each(:agents))
      AND status = 'running'
      AND delivery IN ('none', 'own_turn')
"""  # noqa: S608
_RUNS = """
    SELECT body FROM runs
    WHERE run_id IN (SELECT value FROM json_each(:runs))
"""
_PROCESSES = f"""
    SELECT {PROCESS_COLUMNS} FROM processes
    WHERE agent_id IN (SELECT value FROM json_each(:agents))
      AND closed_at IS NULL
    ORDER BY process_id
"""  # noqa: S608


def _left(connection: Connection, holds: Sequence[Lease]) -> list[AbandonedLane]:
    """What is known of these lanes: a question for each table, however many lanes there are."""
    values = {"agents": rows.listed(hold.agent for hold in holds)}
    agents = {a.id: a for a in map(rows.agent_from, connection.execute(_AGENTS, values))}
    items = {i.agent: i for i in map(rows.item_from, connection.execute(_MAINS, values))}
    found = connection.execute(
        _RUNS, {"runs": rows.listed(i.run for i in items.values())}
    ).fetchall()
    runs = {run.id: run for run in (rows.run_from(connection, row) for row in found)}
    processes: dict[AgentId, list[Process]] = {agent: [] for agent in agents}
    for process in map(rows.process_from, connection.execute(_PROCESSES, values)):
        processes[process.agent].append(process)
    lost = []
    for hold in holds:
        agent, item = agents[hold.agent], items.get(hold.agent)
        run = runs[item.run] if item and item.run else None
        claim = Claim(hold.agent, hold.holder, hold.fence, item) if item else hold
        lost.append(AbandonedLane(claim, agent, run, tuple(processes[agent.id])))
    return lost
