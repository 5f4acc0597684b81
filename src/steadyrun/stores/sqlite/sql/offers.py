"""How follow-ups reach a run. Each function is one step inside a transaction."""

from datetime import datetime

from steadyrun.model.ids import ItemId
from steadyrun.model.item import Claim, Item
from steadyrun.stores import rules
from steadyrun.stores.sqlite.sql import items, rows, runs
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, Connection

_STEERABLE = f"""
    SELECT {ITEM_COLUMNS} FROM items
    WHERE agent_id = :agent
      AND status = 'queued'
      AND followup = 'steer'
      AND delivery = 'none'
    ORDER BY seq
    LIMIT :limit
"""  # noqa: S608


def offer_followups(
    connection: Connection, claim: Claim, limit: int, max_bytes: int, now: datetime
) -> list[Item]:
    lane = rules.require_held(rows.find_lane(connection, claim.agent), claim)
    values = {"agent": claim.agent, "limit": limit}
    found = [rows.decode_item(row) for row in connection.execute(_STEERABLE, values).fetchall()]
    count = rules.count_fitting((len(item.text.encode()) for item in found), max_bytes)
    offers = [rules.offer_item(item, now) for item in found[:count]]
    items.save_items(connection, offers)
    items.save_lane(connection, rules.count_started(lane, len(offers)))
    return offers


def absorb(connection: Connection, claim: Claim, item: ItemId) -> None:
    rules.require_held(rows.find_lane(connection, claim.agent), claim)
    main = runs.find_main(connection, claim, "absorb")
    offer = rules.require_offer(rows.item(connection, item), claim)
    items.save_items(connection, [rules.absorb_item(offer, main)])


def return_offer(connection: Connection, claim: Claim, item: ItemId, now: datetime) -> None:
    lane = rules.require_held(rows.find_lane(connection, claim.agent), claim)
    offer = rules.require_offer(rows.item(connection, item), claim)
    returned = rules.requeue_item(offer, now)
    items.save_items(connection, [returned])
    items.save_lane(connection, rules.count_requeued(lane, [returned]))
