"""Holders in the database, and how lanes of dead holders are taken over. Each function is one step
inside a transaction."""

from collections.abc import Sequence

from steadyrun.errors import HolderGone
from steadyrun.lib.notifier import Hint
from steadyrun.model.ids import AgentId, HolderId
from steadyrun.model.item import Claim, Lease
from steadyrun.model.process import Process
from steadyrun.store import AbandonedLane, Holder
from steadyrun.stores.sqlite.db.liveness import Liveness
from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.rows import (
    ITEM_COLUMNS,
    PROCESS_COLUMNS,
    Connection,
    from_micros,
    to_micros,
)

_ADD_HOLDER = "INSERT INTO holders VALUES (:holder, :kind, :machine, :version, :now)"
_REMOVE_HOLDER = "DELETE FROM holders WHERE holder_id = :holder"


def add(tx: Transaction, holder: Holder) -> None:
    values = {
        "holder": holder.id,
        "kind": holder.kind,
        "machine": holder.machine,
        "version": holder.version,
        "now": to_micros(holder.joined_at),
    }
    tx.execute(_ADD_HOLDER, values)


def remove(tx: Transaction, holder: HolderId) -> None:
    tx.execute(_REMOVE_HOLDER, {"holder": holder})


_HOLDERS = "SELECT holder_id, kind, machine, version, joined_at FROM holders ORDER BY holder_id"


def list_holders(connection: Connection, liveness: Liveness) -> list[Holder]:
    return [
        Holder(name, kind, machine, version, from_micros(joined_at), liveness.is_alive(name))
        for name, kind, machine, version, joined_at in connection.execute(_HOLDERS)
    ]


_IS_HOLDER = "SELECT 1 FROM holders WHERE holder_id = :holder"


def require(connection: Connection, holder: HolderId) -> None:
    """Raise `HolderGone` if another holder removed this one, because its process seemed to have
    ended.
    """
    if not rows.has_row(connection, _IS_HOLDER, {"holder": holder}):
        raise HolderGone(holder)


_STORED_HOLDERS = """
    SELECT holder_id FROM holders
    UNION
    SELECT holder_id FROM lanes WHERE holder_id IS NOT NULL
"""
_TAKE_OVER = """
    UPDATE lanes
    SET holder_id = :holder, fence = fence + 1
    WHERE holder_id IN (SELECT value FROM json_each(:dead))
      AND (:lasting OR (SELECT is_direct FROM agents WHERE agents.agent_id = lanes.agent_id))
    RETURNING agent_id, fence
"""


def reap(
    tx: Transaction, holder: HolderId, liveness: Liveness, *, lasting: bool
) -> list[AbandonedLane]:
    require(tx, holder)
    stored = [name for [name] in tx.execute(_STORED_HOLDERS).fetchall()]
    dead = [name for name in stored if not liveness.is_alive(name)]
    values = {"holder": holder, "dead": rows.to_json_list(dead), "lasting": lasting}
    leases = [
        Lease(agent, holder, fence)
        for agent, fence in sorted(tx.execute(_TAKE_OVER, values).fetchall())
    ]
    for name in dead:
        tx.execute(_REMOVE_HOLDER, {"holder": name})
        liveness.forget(name)
    for lease in leases:
        tx.notify(lease.agent, Hint.STATE)
    return _load_lanes(tx, leases)


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


def _load_lanes(connection: Connection, leases: Sequence[Lease]) -> list[AbandonedLane]:
    """What is stored of these lanes: one query for each table, for any number of lanes."""
    values = {"agents": rows.to_json_list(lease.agent for lease in leases)}
    agents = {a.id: a for a in map(rows.decode_agent, connection.execute(_AGENTS, values))}
    items = {i.agent: i for i in map(rows.decode_item, connection.execute(_MAINS, values))}
    found = connection.execute(
        _RUNS, {"runs": rows.to_json_list(i.run for i in items.values())}
    ).fetchall()
    runs = {run.id: run for run in (rows.decode_run(connection, row) for row in found)}
    processes: dict[AgentId, list[Process]] = {agent: [] for agent in agents}
    for process in map(rows.decode_process, connection.execute(_PROCESSES, values)):
        processes[process.agent].append(process)
    abandoned = []
    for lease in leases:
        agent, item = agents[lease.agent], items.get(lease.agent)
        run = runs[item.run] if item and item.run else None
        claim = Claim(lease.agent, lease.holder, lease.fence, item) if item else lease
        abandoned.append(AbandonedLane(claim, agent, run, tuple(processes[agent.id])))
    return abandoned
