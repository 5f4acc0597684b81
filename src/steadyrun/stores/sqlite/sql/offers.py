"""How follow-ups reach a run. Each function is one step inside a transaction."""

from steadyrun.lib.notifier import Hint
from steadyrun.model.ids import ItemId
from steadyrun.model.item import Claim, Item
from steadyrun.store import MAX_OFFER_BYTES, OfferOutcome
from steadyrun.stores import rules
from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import items, rows, runs
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS

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
    tx: Transaction, claim: Claim, limit: int = 1, *, max_bytes: int = MAX_OFFER_BYTES
) -> list[Item]:
    lane = rules.require_held(rows.find_lane(tx, claim.agent), claim)
    values = {"agent": claim.agent, "limit": limit}
    found = [rows.decode_item(row) for row in tx.execute(_STEERABLE, values).fetchall()]
    count = rules.count_fitting((len(item.text.encode()) for item in found), max_bytes)
    offers = [rules.offer_item(item, tx.now) for item in found[:count]]
    items.save_items(tx, offers)
    items.save_lane(tx, rules.count_started(lane, len(offers)))
    tx.notify(claim.agent, Hint.STATE)
    return offers


def close_offer(tx: Transaction, claim: Claim, item: ItemId, outcome: OfferOutcome) -> None:
    lane = rules.require_held(rows.find_lane(tx, claim.agent), claim)
    offer = rules.require_offer(rows.item(tx, item), claim)
    if outcome == "absorbed":
        closed = rules.absorb_item(offer, runs.find_main(tx, claim, "close_offer"))
    else:
        closed = rules.requeue_item(offer, tx.now)
    items.save_items(tx, [closed])
    items.save_lane(tx, rules.count_requeued(lane, [closed]))
    tx.notify(claim.agent, Hint.STATE if outcome == "absorbed" else Hint.WORK)
