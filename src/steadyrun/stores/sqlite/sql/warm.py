"""How does a lane stay with its holder while nothing runs? Each function is one step inside a
transaction."""

from datetime import datetime

from steadyrun.errors import ChangeRefused
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Claim, Lease, Message
from steadyrun.stores.sqlite.sql import items, offers
from steadyrun.stores.sqlite.sql.rows import Connection, micros

_KEEP = """
    UPDATE lanes
    SET status = 'warm',
        ready_at = CASE WHEN queued > 0 THEN :now END
    WHERE agent_id = :agent
"""
_WAKE = "UPDATE lanes SET status = 'held', ready_at = NULL WHERE agent_id = :agent"
_LET_GO = """
    UPDATE lanes
    SET status = CASE WHEN queued > 0 THEN 'ready' ELSE 'idle' END,
        holder_id = NULL
    WHERE agent_id = :agent
"""


def keep(connection: Connection, agent: AgentId, now: datetime) -> None:
    """The lane of an item that was just settled stays with its holder."""
    connection.execute(_KEEP, {"agent": agent, "now": micros(now)})


def wake(
    connection: Connection, hold: Lease, message: Message, new: ItemId, now: datetime
) -> Claim:
    """`new` is the id that the message gets."""
    _require_warm(connection, hold, "wake")
    item = offers.start_unasked(connection, hold, message, new, now, "wake")
    connection.execute(_WAKE, {"agent": hold.agent})
    return Claim(hold.agent, hold.holder, hold.fence, item)


def let_go(connection: Connection, hold: Lease) -> None:
    _require_warm(connection, hold, "let_go")
    connection.execute(_LET_GO, {"agent": hold.agent})


def _require_warm(connection: Connection, hold: Lease, verb: str) -> None:
    lane = items.owned(connection, hold)
    if lane.status != "warm":
        raise ChangeRefused(verb, found=f"the lane is {lane.status}")
