"""How do follow-ups reach a run? Each function is one step inside a transaction."""

import itertools
from datetime import datetime

from steadyrun.errors import ChangeRefused
from steadyrun.model.ids import ItemId
from steadyrun.model.item import Claim, Delivery, Item, Lease, Message
from steadyrun.stores.sqlite.sql import items, rows
from steadyrun.stores.sqlite.sql.items import held, main_of
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, Connection, micros

_OFFER = f"""
    UPDATE items
    SET status = 'running', delivery = 'offered', started_at = :now
    WHERE item_id IN (SELECT value FROM json_each(:items))
    RETURNING {ITEM_COLUMNS}
"""  # noqa: S608
_STEERABLE = """
    SELECT item_id, length(CAST(text AS BLOB)) FROM items
    WHERE agent_id = :agent
      AND status = 'queued'
      AND followup = 'steer'
      AND delivery = 'none'
    ORDER BY seq
    LIMIT :limit
"""
_COUNT_TAKEN = "UPDATE lanes SET queued = queued - :taken WHERE agent_id = :agent"


def take(
    connection: Connection, claim: Claim, limit: int, most_bytes: int, now: datetime
) -> list[Item]:
    held(connection, claim)
    found = connection.execute(_STEERABLE, {"agent": claim.agent, "limit": limit}).fetchall()
    totals = itertools.accumulate(size for _, size in found)
    fitting = [
        item
        for n, ((item, _), total) in enumerate(zip(found, totals, strict=True))
        if n == 0 or total <= most_bytes
    ]
    values = {"items": rows.encode(fitting).decode(), "now": micros(now)}
    taken = [rows.item_from(row) for row in connection.execute(_OFFER, values).fetchall()]
    connection.execute(_COUNT_TAKEN, {"agent": claim.agent, "taken": len(taken)})
    return sorted(taken, key=lambda item: item.seq)


_ABSORB = """
    UPDATE items
    SET delivery = 'absorbed', run_id = (SELECT run_id FROM items WHERE item_id = :main)
    WHERE item_id = :item
"""


def absorb(connection: Connection, claim: Claim, item: ItemId) -> None:
    held(connection, claim)
    main_of(connection, claim, "absorb")
    _offer(connection, claim, item)
    connection.execute(_ABSORB, {"item": item, "main": claim.item.id})


def give_back(connection: Connection, claim: Claim, item: ItemId, now: datetime) -> None:
    held(connection, claim)
    items.requeue(connection, _offer(connection, claim, item), now)


def _offer(connection: Connection, claim: Claim, item: ItemId) -> Item:
    found = rows.item(connection, item)
    if (found.agent, found.status, found.delivery) != (claim.agent, "running", "offered"):
        raise ChangeRefused("follow-up", found=f"{item} is {found.status}, {found.delivery}")
    return found


_START = f"""
    UPDATE items
    SET status = 'running', delivery = :delivery, attempt = attempt + 1, run_id = NULL,
        before_run = coalesce(run_id, before_run), started_at = COALESCE(started_at, :now)
    WHERE item_id = :item
    RETURNING {ITEM_COLUMNS}
"""  # noqa: S608


def go_on(
    connection: Connection, claim: Claim, to: ItemId | Message, new: ItemId, now: datetime
) -> Claim:
    """`new` is the id that a message gets."""
    held(connection, claim)
    run = items.ended_run(connection, main_of(connection, claim, "go_on"), "go_on")
    ended = [item for item in items.running(connection, claim.agent) if item.delivery != "offered"]
    if isinstance(to, Message):
        started = start_unasked(connection, claim, to, new, now, "go_on")
    else:
        started = _start(connection, _offer(connection, claim, to), "own_turn", now)
    for item in ended:
        items.settle_with(connection, item, run, now)
    return Claim(claim.agent, claim.holder, claim.fence, started)


def start_unasked(
    connection: Connection, hold: Lease, message: Message, new: ItemId, now: datetime, verb: str
) -> Item:
    """Accept a message and run it at once, whatever else is queued."""
    if message.agent != hold.agent:
        raise ChangeRefused(verb, found=f"the message is for {message.agent}")
    accepted = items.accept(connection, new, message, now)
    if not accepted.is_new:
        raise ChangeRefused(verb, found=f"its key is that of {accepted.item.id}")
    connection.execute(_COUNT_TAKEN, {"agent": hold.agent, "taken": 1})
    return _start(connection, accepted.item, "none", now)


def _start(connection: Connection, item: Item, delivery: Delivery, now: datetime) -> Item:
    values = {"item": item.id, "delivery": delivery, "now": micros(now)}
    [row] = connection.execute(_START, values).fetchall()
    return rows.item_from(row)
