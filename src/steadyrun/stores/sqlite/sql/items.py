"""Items and lanes in the database. Each function is one step inside a transaction."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from steadyrun.model.event import ErrorFact
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Item, Message, Payload
from steadyrun.store import DEDUP_RETENTION, Accepted, Lane
from steadyrun.stores import rules
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, Connection, to_maybe_micros, to_micros

_FORGET_KEYS = "DELETE FROM dedup WHERE expires_at <= :now"
_FIND_KEY = "SELECT item_id FROM dedup WHERE agent_id = :agent AND key = :key"
_ADD_KEY = "INSERT INTO dedup VALUES (:agent, :key, :item, :expires)"
_ADD_ITEM = """
    INSERT INTO items
    VALUES (:item, :agent, :seq, :kind, :text, :on_lost, :now, 'queued', 'none', 0, 0,
            NULL, NULL, NULL, NULL, :followup, NULL, 0, NULL, :payload)
"""
_SAVE_ITEM = """
    UPDATE items
    SET status = :status, delivery = :delivery, attempt = :attempt,
        cancel_requested = :cancel_requested, run_id = :run, reply = :reply,
        started_at = :started_at, settled_at = :settled_at, before_run = :before, tries = :tries,
        error = :error
    WHERE item_id = :id
"""
# Whether a lane is paused is written by `set_paused` alone.
_SAVE_LANE = """
    UPDATE lanes
    SET status = :status, ready_at = :ready_at, holder_id = :holder, last_seq = :last_seq,
        queued = :queued
    WHERE agent_id = :agent
"""
_SET_PAUSED = "UPDATE lanes SET is_paused = :is_paused WHERE agent_id = :agent"
_RUNNING = f"""
    SELECT {ITEM_COLUMNS} FROM items
    WHERE agent_id = :agent AND status = 'running'
    ORDER BY seq
"""  # noqa: S608


def accept(connection: Connection, new: ItemId, message: Message, now: datetime) -> Accepted:
    """`new` is the id of the item that the message becomes."""
    return accept_in(connection, rows.lane(connection, message.agent), new, message, now)[1]


def accept_in(
    connection: Connection, lane: Lane, new: ItemId, message: Message, now: datetime
) -> tuple[Lane, Accepted]:
    """Accept a message into a lane that was read in this transaction; the lane after it."""
    if message.key is not None:
        connection.execute(_FORGET_KEYS, {"now": to_micros(now)})
        key = {"agent": message.agent, "key": message.key}
        stored = rows.fetch_one(connection, _FIND_KEY, key)
        if stored:
            return lane, Accepted(rows.item(connection, stored[0]), is_new=False)
        expires = to_micros(now + DEDUP_RETENTION)
        connection.execute(_ADD_KEY, {**key, "item": new, "expires": expires})
    item = rules.create_item(new, message, lane, now)
    connection.execute(_ADD_ITEM, _encode_item(item))
    lane = rules.count_accepted(lane, item, now)
    save_lane(connection, lane)
    return lane, Accepted(item, is_new=True)


def cancel(connection: Connection, item: ItemId, reason: ErrorFact | None, now: datetime) -> Item:
    found = rows.item(connection, item)
    cancelled = rules.cancel_item(found, reason, now)
    if cancelled is not found:
        save_items(connection, [cancelled])
    if found.status == "queued":
        lane = rows.lane(connection, found.agent)
        save_lane(connection, rules.count_cancelled(lane, now))
    return cancelled


def list_running(connection: Connection, agent: AgentId) -> list[Item]:
    return [rows.decode_item(row) for row in connection.execute(_RUNNING, {"agent": agent})]


def save_items(connection: Connection, items: Iterable[Item]) -> None:
    for item in items:
        values = {
            **msgspec.structs.asdict(item),
            "started_at": to_maybe_micros(item.started_at),
            "settled_at": to_maybe_micros(item.settled_at),
            "error": rows.encode(item.error) if item.error else None,
        }
        del values["payload"], values["created_at"]
        connection.execute(_SAVE_ITEM, values)


def save_lane(connection: Connection, lane: Lane) -> None:
    values = {**msgspec.structs.asdict(lane), "ready_at": to_maybe_micros(lane.ready_at)}
    connection.execute(_SAVE_LANE, values)


def set_paused(connection: Connection, agent: AgentId, is_paused: bool) -> None:
    rows.lane(connection, agent)
    connection.execute(_SET_PAUSED, {"agent": agent, "is_paused": is_paused})


_GIVEN = ("agent", "seq", "kind", "text", "on_lost", "followup")


def _encode_item(item: Item) -> dict[str, object]:
    values: dict[str, object] = msgspec.structs.asdict(item)
    return {
        "item": item.id,
        "now": to_micros(item.created_at),
        "payload": None if item.payload == Payload() else rows.encode(item.payload),
        **{name: values[name] for name in _GIVEN},
    }
