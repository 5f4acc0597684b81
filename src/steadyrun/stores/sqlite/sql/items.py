"""Items and lanes in the database. Each function is one step inside a transaction."""

from collections.abc import Iterable

import msgspec

from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Item, Message, Payload, build_cancel_fact
from steadyrun.store import DEDUP_RETENTION, Accepted, Lane
from steadyrun.stores import rules
from steadyrun.stores.sqlite.db.transaction import Transaction
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


def add_item(tx: Transaction, lane: Lane, new: ItemId, message: Message) -> tuple[Lane, Accepted]:
    """Accept a message as the item `new`; the lane after it."""
    if message.key is not None:
        tx.execute(_FORGET_KEYS, {"now": to_micros(tx.now)})
        key = {"agent": message.agent, "key": message.key}
        stored = rows.fetch_one(tx, _FIND_KEY, key, lambda row: rows.item(tx, row[0]))
        if stored:
            return lane, Accepted(stored, is_new=False)
        expires = to_micros(tx.now + DEDUP_RETENTION)
        tx.execute(_ADD_KEY, {**key, "item": new, "expires": expires})
    item = rules.create_item(new, message, lane, tx.now)
    tx.execute(_ADD_ITEM, _encode_item(item))
    lane = rules.count_accepted(lane, item, tx.now)
    save_lane(tx, lane)
    return lane, Accepted(item, is_new=True)


def cancel(tx: Transaction, item: ItemId, reason: str | None = None) -> Item:
    found = rows.item(tx, item)
    fact = build_cancel_fact(reason and tx.settings.scrubber.clean(reason))
    cancelled = rules.cancel_item(found, fact, tx.now)
    if cancelled is not found:
        save_items(tx, [cancelled])
    if found.status == "queued":
        lane = rows.lane(tx, found.agent)
        save_lane(tx, rules.count_cancelled(lane, tx.now))
    tx.notify(found.agent)
    return cancelled


def list_running(connection: Connection, agent: AgentId) -> list[Item]:
    return [rows.decode_item(row) for row in connection.execute(_RUNNING, {"agent": agent})]


def save_items(tx: Transaction, items: Iterable[Item]) -> None:
    for item in items:
        values = {
            **msgspec.structs.asdict(item),
            "started_at": to_maybe_micros(item.started_at),
            "settled_at": to_maybe_micros(item.settled_at),
            "error": rows.encode(item.error) if item.error else None,
        }
        del values["payload"], values["created_at"]
        tx.execute(_SAVE_ITEM, values)


def save_lane(tx: Transaction, lane: Lane) -> None:
    values = {**msgspec.structs.asdict(lane), "ready_at": to_maybe_micros(lane.ready_at)}
    tx.execute(_SAVE_LANE, values)


def set_paused(tx: Transaction, agent: AgentId, *, is_paused: bool) -> None:
    rows.lane(tx, agent)
    tx.execute(_SET_PAUSED, {"agent": agent, "is_paused": is_paused})


_GIVEN = ("agent", "seq", "kind", "text", "on_lost", "followup")


def _encode_item(item: Item) -> dict[str, object]:
    values: dict[str, object] = msgspec.structs.asdict(item)
    return {
        "item": item.id,
        "now": to_micros(item.created_at),
        "payload": None if item.payload == Payload() else rows.encode(item.payload),
        **{name: values[name] for name in _GIVEN},
    }
