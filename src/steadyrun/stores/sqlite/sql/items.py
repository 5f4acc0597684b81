"""How do items pass through a lane? Each function is one step inside a transaction."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

import msgspec

from steadyrun.errors import ChangeRefused, LeaseLost
from steadyrun.model.event import ErrorFact
from steadyrun.model.gate import UnavailableProviders
from steadyrun.model.ids import AgentId, HolderId, ItemId
from steadyrun.model.item import (
    Claim,
    Item,
    ItemStatus,
    Lease,
    Message,
    Payload,
    compute_absorbed_status,
    compute_item_status,
)
from steadyrun.model.run import Run
from steadyrun.store import DEDUP_RETENTION, Accepted, Lane
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, Connection, micros

_FORGET_KEYS = "DELETE FROM dedup WHERE expires_at <= :now"
_FIND_KEY = "SELECT item_id FROM dedup WHERE agent_id = :agent AND key = :key"
_ADD_KEY = "INSERT INTO dedup VALUES (:agent, :key, :item, :expires)"
_ADD_ITEM = """
    INSERT INTO items
    VALUES (:item, :agent, :seq, :kind, :text, :on_lost, :now, 'queued', 'none', 0, 0,
            NULL, NULL, NULL, NULL, :followup, NULL, 0, NULL, :payload)
"""
_COUNT_ACCEPTED = """
    UPDATE lanes
    SET last_seq = last_seq + 1,
        queued = queued + 1,
        ready_at = CASE WHEN status != 'held' THEN coalesce(ready_at, :now) END,
        status = CASE status WHEN 'idle' THEN 'ready' ELSE status END
    WHERE agent_id = :agent
"""


def accept(connection: Connection, item: ItemId, message: Message, now: datetime) -> Accepted:
    lane = rows.lane(connection, message.agent)
    if message.key is not None:
        connection.execute(_FORGET_KEYS, {"now": micros(now)})
        key = {"agent": message.agent, "key": message.key}
        known = rows.one(connection, _FIND_KEY, key)
        if known:
            return Accepted(rows.item(connection, known[0]), is_new=False)
        expires = micros(now + DEDUP_RETENTION)
        connection.execute(_ADD_KEY, {**key, "item": item, "expires": expires})
    new = Item(
        id=item,
        agent=message.agent,
        seq=lane.last_seq + 1,
        kind=message.kind,
        text=message.text,
        on_lost=message.on_lost,
        created_at=now,
        followup=message.followup,
        payload=message.payload,
    )
    connection.execute(_ADD_ITEM, _item_values(new))
    connection.execute(_COUNT_ACCEPTED, {"agent": message.agent, "now": micros(now)})
    return Accepted(new, is_new=True)


_CANCEL_QUEUED = """
    UPDATE items
    SET status = 'cancelled', error = :error, settled_at = :now
    WHERE item_id = :item
"""
_REQUEST_CANCEL = """
    UPDATE items
    SET cancel_requested = 1, error = :error
    WHERE item_id = :item AND NOT cancel_requested
"""
_COUNT_CANCELLED = """
    UPDATE lanes
    SET queued = queued - 1,
        ready_at = CASE WHEN queued > 1 THEN ready_at END,
        status = CASE WHEN status = 'ready' AND queued = 1 THEN 'idle' ELSE status END
    WHERE agent_id = :agent
"""


def cancel(connection: Connection, item: ItemId, why: ErrorFact | None, now: datetime) -> Item:
    found = rows.item(connection, item)
    values = {"item": item, "error": rows.encode(why) if why else None}
    if found.status == "queued":
        connection.execute(_CANCEL_QUEUED, {**values, "now": micros(now)})
        connection.execute(_COUNT_CANCELLED, {"agent": found.agent})
    elif found.status == "running":
        connection.execute(_REQUEST_CANCEL, values)
    return rows.item(connection, item)


_SET_PAUSED = "UPDATE lanes SET is_paused = :is_paused WHERE agent_id = :agent"


def set_paused(connection: Connection, agent: AgentId, is_paused: bool) -> None:
    rows.lane(connection, agent)
    connection.execute(_SET_PAUSED, {"agent": agent, "is_paused": is_paused})


# As long as no gate is closed, the first provider of every chain does the work.
_FIRST = "agents.provider"
_CHOSEN = """(
    SELECT value FROM json_each(agents.chain)
    WHERE value NOT IN (SELECT value FROM json_each(:closed))
    ORDER BY key
    LIMIT 1
)"""
_READY = """
    SELECT lanes.agent_id, lanes.fence + (lanes.status = 'ready'), {chosen} AS chosen
    FROM lanes
    JOIN agents USING (agent_id)
    WHERE lanes.ready_at IS NOT NULL
      AND (lanes.status = 'ready' OR lanes.holder_id = :holder)
      AND NOT lanes.is_paused
      AND (lanes.agent_id = :agent OR (:agent IS NULL AND NOT agents.is_direct))
      AND chosen IS NOT NULL
      AND chosen NOT IN (SELECT value FROM json_each(:but_not))
    ORDER BY lanes.ready_at, lanes.agent_id
    LIMIT :limit
"""
_READY_FIRST, _READY_CHOSEN = _READY.format(chosen=_FIRST), _READY.format(chosen=_CHOSEN)
_HOLD = """
    UPDATE lanes
    SET status = 'held', holder_id = :holder, fence = :fence, queued = queued - 1, ready_at = NULL
    WHERE agent_id = :agent
"""
_START_HEAD = f"""
    UPDATE items
    SET status = 'running', delivery = 'none', attempt = attempt + 1, run_id = NULL,
        before_run = coalesce(run_id, before_run), started_at = :now
    WHERE item_id = (
        SELECT item_id FROM items
        WHERE agent_id = :agent AND status = 'queued'
        ORDER BY seq
        LIMIT 1
    )
    RETURNING {ITEM_COLUMNS}
"""  # noqa: S608


class Chosen(NamedTuple):
    """A claim, and the provider of its agent that is to do the work."""

    claim: Claim
    provider: str


def claim(
    connection: Connection,
    holder: HolderId,
    limit: int,
    agent: AgentId | None,
    now: datetime,
    shut: UnavailableProviders,
) -> list[Chosen]:
    values = {
        "holder": holder,
        "limit": limit,
        "agent": agent,
        "closed": rows.listed(shut.closed),
        "but_not": rows.listed(shut.suspect),
    }
    found = connection.execute(_READY_CHOSEN if shut.closed else _READY_FIRST, values).fetchall()
    return [
        Chosen(_claim(connection, ready, holder, fence, now), provider)
        for ready, fence, provider in found
    ]


def _claim(
    connection: Connection, agent: AgentId, holder: HolderId, fence: int, now: datetime
) -> Claim:
    connection.execute(_HOLD, {"agent": agent, "holder": holder, "fence": fence})
    [head] = connection.execute(_START_HEAD, {"agent": agent, "now": micros(now)}).fetchall()
    return Claim(agent, holder, fence, rows.item_from(head))


def owned(connection: Connection, hold: Lease) -> Lane:
    """The lane, if it is still this holder's."""
    lane = rows.maybe_lane(connection, hold.agent)
    if lane is None or (lane.holder, lane.fence) != (hold.holder, hold.fence):
        raise LeaseLost(hold.agent, fence=hold.fence)
    return lane


def held(connection: Connection, claim: Claim) -> Lane:
    """The claim's lane, if it is still this holder's and something runs in it."""
    lane = owned(connection, claim)
    if lane.status != "held":
        raise ChangeRefused("claim", found=f"the lane is {lane.status}")
    return lane


def main_of(connection: Connection, claim: Claim, verb: str) -> Item:
    """The claim's item, if it is still the one that the lane runs."""
    item = rows.item(connection, claim.item.id)
    if item.agent != claim.agent or not is_main(item):
        raise ChangeRefused(verb, found=f"{item.id} is {item.status}, {item.delivery}")
    return item


def is_main(item: Item) -> bool:
    return item.status == "running" and item.delivery in {"none", "own_turn"}


_AGAIN = f"""
    UPDATE items
    SET attempt = attempt + 1, tries = tries + :spends, run_id = NULL, before_run = run_id,
        delivery = 'none'
    WHERE item_id = :item
    RETURNING {ITEM_COLUMNS}
"""  # noqa: S608


def again(connection: Connection, claim: Claim, spends: bool, now: datetime) -> Claim:
    held(connection, claim)
    item = main_of(connection, claim, "again")
    ended_run(connection, item, "again")
    if item.cancel_requested:
        raise ChangeRefused("again", found=f"{item.id} was asked to stop")
    for other in running(connection, claim.agent):
        if other.id != item.id:
            requeue(connection, other, now)
    [row] = connection.execute(_AGAIN, {"item": item.id, "spends": spends}).fetchall()
    return Claim(claim.agent, claim.holder, claim.fence, rows.item_from(row))


def ended_run(connection: Connection, item: Item, verb: str) -> Run:
    """The item's run, which must be over."""
    if item.run is None:
        raise ChangeRefused(verb, found="the item has no run")
    run = rows.run(connection, item.run)
    if not run.is_terminal:
        raise ChangeRefused(verb, found=f"its run {run.id} has not ended")
    return run


def release(connection: Connection, claim: Claim, now: datetime) -> Item:
    held(connection, claim)
    item = main_of(connection, claim, "release")
    if item.run and not rows.run(connection, item.run).is_terminal:
        raise ChangeRefused("release", found=f"its run {item.run} has not ended")
    for other in running(connection, claim.agent):
        requeue(connection, other, now)
    free(connection, claim.agent, now)
    return rows.item(connection, item.id)


_RUNNING = f"""
    SELECT {ITEM_COLUMNS} FROM items
    WHERE agent_id = :agent AND status = 'running'
    ORDER BY seq
"""  # noqa: S608
_REQUEUE = "UPDATE items SET status = 'queued', delivery = :delivery WHERE item_id = :item"
_COUNT_REQUEUED = "UPDATE lanes SET queued = queued + 1 WHERE agent_id = :agent"
_SETTLE = """
    UPDATE items
    SET status = :status, reply = :reply, settled_at = :now,
        error = CASE WHEN :status = 'cancelled' THEN error ELSE :error END
    WHERE item_id = :item
"""
_FREE = """
    UPDATE lanes
    SET holder_id = NULL,
        status = CASE WHEN queued > 0 THEN 'ready' ELSE 'idle' END,
        ready_at = CASE WHEN queued > 0 THEN :now END
    WHERE agent_id = :agent
"""


def running(connection: Connection, agent: AgentId) -> Iterable[Item]:
    return [rows.item_from(row) for row in connection.execute(_RUNNING, {"agent": agent})]


def requeue(connection: Connection, item: Item, now: datetime) -> None:
    """Back to its place; what somebody cancelled meanwhile is cancelled instead."""
    if item.cancel_requested:
        _settle_item(connection, item, "cancelled", None, now)
        return
    delivery = "none" if item.delivery in {"none", "own_turn"} else "returned"
    connection.execute(_REQUEUE, {"item": item.id, "delivery": delivery})
    connection.execute(_COUNT_REQUEUED, {"agent": item.agent})


def settle_all(connection: Connection, claim: Claim, run: Run, now: datetime) -> None:
    """Settle what the claim ran, by how its run ended. What becomes of the lane is open."""
    for item in running(connection, claim.agent):
        settle_with(connection, item, run, now)


def free(connection: Connection, agent: AgentId, now: datetime) -> None:
    connection.execute(_FREE, {"agent": agent, "now": micros(now)})


def settle_with(connection: Connection, item: Item, run: Run, now: datetime) -> None:
    status = "queued" if item.delivery == "offered" else _status(item, run)
    if status == "queued":
        requeue(connection, item, now)
    else:
        _settle_item(connection, item, status, run, now)


def _status(item: Item, run: Run) -> ItemStatus:
    is_absorbed = item.delivery == "absorbed"
    return compute_absorbed_status(run, item) if is_absorbed else compute_item_status(run, item)


def _settle_item(
    connection: Connection, item: Item, status: ItemStatus, run: Run | None, now: datetime
) -> None:
    """What completed has the run's last words, what failed its error; what somebody has cancelled
    keeps the reason."""
    reply = run.text if run and status == "completed" else None
    error = rows.encode(run.error) if run and run.error and status == "failed" else None
    values = {"item": item.id, "status": status, "reply": reply, "error": error}
    connection.execute(_SETTLE, {**values, "now": micros(now)})


_GIVEN = ("agent", "seq", "kind", "text", "on_lost", "followup")


def _item_values(item: Item) -> dict[str, object]:
    values: dict[str, object] = msgspec.structs.asdict(item)
    return {
        "item": item.id,
        "now": micros(item.created_at),
        "payload": None if item.payload == Payload() else rows.encode(item.payload),
        **{name: values[name] for name in _GIVEN},
    }
