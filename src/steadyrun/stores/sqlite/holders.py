"""Who holds lanes, and what becomes of those whose holder is gone? Each function is one step
inside a transaction."""

from steadyrun.model.ids import AgentId, HolderId
from steadyrun.model.item import Claim
from steadyrun.store import Holder
from steadyrun.stores.sqlite import lanes
from steadyrun.stores.sqlite.presence import Presence
from steadyrun.stores.sqlite.rows import Connection, micros

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


_HOLDERS = """
    SELECT holder_id FROM holders
    UNION
    SELECT holder_id FROM lanes WHERE status = 'held'
"""
_LANES_OF = "SELECT agent_id, fence FROM lanes WHERE status = 'held' AND holder_id = :holder"
_TAKE_OVER = "UPDATE lanes SET holder_id = :holder, fence = :fence WHERE agent_id = :agent"


def reap(connection: Connection, holder: HolderId, presence: Presence) -> list[Claim]:
    known = [name for [name] in connection.execute(_HOLDERS).fetchall()]
    gone = [name for name in known if not presence.is_there(name)]
    lost = [lane for name in gone for lane in connection.execute(_LANES_OF, {"holder": name})]
    for name in gone:
        connection.execute(_REMOVE_HOLDER, {"holder": name})
        presence.forget(name)
    return [_take_over(connection, agent, holder, fence + 1) for agent, fence in sorted(lost)]


def _take_over(connection: Connection, agent: AgentId, holder: HolderId, fence: int) -> Claim:
    connection.execute(_TAKE_OVER, {"agent": agent, "holder": holder, "fence": fence})
    mains = [item for item in lanes.running(connection, agent) if lanes.is_main(item)]
    return Claim(agent, holder, fence, mains[0])
