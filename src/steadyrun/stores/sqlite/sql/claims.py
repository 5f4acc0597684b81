"""How a lane is claimed, kept and given up. Each function is one step inside a transaction."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from steadyrun.model.agent import Agent
from steadyrun.model.gate import UnavailableProviders
from steadyrun.model.ids import AgentId, HolderId, ItemId
from steadyrun.model.item import Claim, Item, Lease, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Run
from steadyrun.store import Lane, Start, Started
from steadyrun.stores import rules
from steadyrun.stores.sqlite.db.settings import StoreSettings
from steadyrun.stores.sqlite.sql import gates, items, rows, runs
from steadyrun.stores.sqlite.sql.events import EventLog
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, PROCESS_COLUMNS, Connection, to_micros
from steadyrun.stores.sqlite.sql.runs import LastWrites

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
      AND chosen NOT IN (SELECT value FROM json_each(:suspect))
    ORDER BY lanes.ready_at, lanes.agent_id
    LIMIT :limit
"""
_READY_FIRST, _READY_CHOSEN = _READY.format(chosen=_FIRST), _READY.format(chosen=_CHOSEN)
_HOLD = """
    UPDATE lanes
    SET status = 'held', holder_id = :holder, fence = :fence, queued = queued - 1, ready_at = NULL
    WHERE agent_id = :agent
"""
# The same as `rules.start_item`, in one statement: a claim is the step that is taken most often.
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
_NEWEST_PROCESS = f"""
    SELECT {PROCESS_COLUMNS} FROM processes
    WHERE agent_id = :agent AND closed_at IS NULL
    ORDER BY process_id DESC
    LIMIT 1
"""  # noqa: S608


class _Chosen(NamedTuple):
    """A claim, and the provider of its agent that does the work."""

    claim: Claim
    provider: str


def start(
    connection: Connection,
    start: Start,
    limit: int,
    agent: AgentId | None,
    now: datetime,
    settings: StoreSettings,
) -> list[Started]:
    """Claim several lanes at once, unless a gate admits a single run: then each lane is claimed by
    itself, and the next claim finds the gate as the last run has left it."""
    at_once = 1 if gates.has_ready(connection, now, settings) else limit
    started: list[Started] = []
    while len(started) < limit:
        shut = gates.find_shut(connection, now, settings, start.excluded)
        chosen = _claim(connection, start.holder, at_once, agent, now, shut)
        started += [_start(connection, each, start.create_run, settings) for each in chosen]
        if len(chosen) < at_once or at_once == limit:
            break
    return started


def _claim(
    connection: Connection,
    holder: HolderId,
    limit: int,
    agent: AgentId | None,
    now: datetime,
    shut: UnavailableProviders,
) -> list[_Chosen]:
    values = {
        "holder": holder,
        "limit": limit,
        "agent": agent,
        "closed": rows.to_json_list(shut.closed),
        "suspect": rows.to_json_list(shut.suspect),
    }
    found = connection.execute(_READY_CHOSEN if shut.closed else _READY_FIRST, values).fetchall()
    return [
        _Chosen(_hold(connection, ready, holder, fence, now), provider)
        for ready, fence, provider in found
    ]


def _hold(
    connection: Connection, agent: AgentId, holder: HolderId, fence: int, now: datetime
) -> Claim:
    connection.execute(_HOLD, {"agent": agent, "holder": holder, "fence": fence})
    [head] = connection.execute(_START_HEAD, {"agent": agent, "now": to_micros(now)}).fetchall()
    return Claim(agent, holder, fence, rows.decode_item(head))


def _start(
    connection: Connection,
    chosen: _Chosen,
    create_run: Callable[[Agent, Item], Created],
    settings: StoreSettings,
) -> Started:
    claim = chosen.claim
    agent = rows.agent(connection, claim.agent).with_provider(chosen.provider)
    run = runs.create(connection, claim, create_run(agent, claim.item), settings)
    return Started(
        replace(claim, item=replace(claim.item, run=run.id)),
        run,
        agent,
        rows.find_session(connection, agent.id, run.provider),
        _find_newest_process(connection, agent.id),
        rows.run(connection, claim.item.before) if claim.item.before else None,
        gates.is_probe(connection, run),
    )


def _find_newest_process(connection: Connection, agent: AgentId) -> Process | None:
    row = rows.fetch_one(connection, _NEWEST_PROCESS, {"agent": agent})
    return None if row is None else rows.decode_process(row)


def start_unprompted(
    connection: Connection, lease: Lease, message: Message, new: ItemId, now: datetime
) -> Claim:
    """`new` is the id of the item that the message becomes."""
    lane = rows.find_lane(connection, lease.agent)
    lane = rules.require_warm(lane, lease, "start_unprompted")
    _, item = _accept_and_run(connection, lane, message, new, now, "start_unprompted")
    return Claim(lease.agent, lease.holder, lease.fence, item)


def _accept_and_run(
    connection: Connection, lane: Lane, message: Message, new: ItemId, now: datetime, verb: str
) -> tuple[Lane, Item]:
    """Accept a message and run it at once, before what is queued."""
    rules.require_message_for(lane.agent, message, verb)
    lane, accepted = items.accept_in(connection, lane, new, message, now)
    started = rules.start_item(rules.require_new(accepted, verb), "none", now)
    lane = rules.count_started(lane)
    items.save_items(connection, [started])
    items.save_lane(connection, lane)
    return lane, started


def release_lane(connection: Connection, lease: Lease, now: datetime) -> None:
    lane = rows.find_lane(connection, lease.agent)
    lane = rules.require_warm(lane, lease, "release_lane")
    items.save_lane(connection, rules.free_lane(lane, now))


def continue_with(
    connection: Connection, claim: Claim, to: ItemId | Message, new: ItemId, now: datetime
) -> Claim:
    """`new` is the id of the item that a message becomes."""
    lane = rules.require_held(rows.find_lane(connection, claim.agent), claim)
    item = runs.find_main(connection, claim, "continue_with")
    run = _find_ended_run(connection, item, "continue_with")
    running = items.list_running(connection, claim.agent)
    if isinstance(to, Message):
        lane, started = _accept_and_run(connection, lane, to, new, now, "continue_with")
    else:
        offer = rules.require_offer(rows.item(connection, to), claim)
        started = rules.start_item(offer, "own_turn", now)
        items.save_items(connection, [started])
    ended = [
        rules.settle_after_run(each, run, now) for each in running if each.delivery != "offered"
    ]
    items.save_items(connection, ended)
    items.save_lane(connection, rules.count_requeued(lane, ended))
    return replace(claim, item=started)


def retry(connection: Connection, claim: Claim, now: datetime, *, spends: bool) -> Claim:
    lane = rules.require_held(rows.find_lane(connection, claim.agent), claim)
    item = runs.find_main(connection, claim, "retry")
    run = _find_ended_run(connection, item, "retry")
    prepared = rules.retry_item(item, run, spends=spends)
    running = items.list_running(connection, claim.agent)
    others = [rules.requeue_item(each, now) for each in running if each.id != item.id]
    items.save_items(connection, [prepared, *others])
    if others:
        items.save_lane(connection, rules.count_requeued(lane, others))
    return replace(claim, item=prepared)


def settle(
    connection: Connection,
    claim: Claim,
    last: LastWrites,
    now: datetime,
    settings: StoreSettings,
    *,
    keep_warm: bool,
) -> Item:
    lane = rules.require_held(rows.find_lane(connection, claim.agent), claim)
    item = runs.find_main(connection, claim, "settle")
    log = EventLog(connection, claim.agent, lane.event_seq)
    run = runs.end(connection, claim, item, last, log, settings)
    ended = {
        each.id: rules.settle_after_run(each, run, now)
        for each in items.list_running(connection, claim.agent)
    }
    items.save_items(connection, ended.values())
    lane = rules.count_requeued(lane, [*ended.values()])
    items.save_lane(connection, rules.end_claim(lane, now, keep_warm=keep_warm))
    return ended[item.id]


def _find_ended_run(connection: Connection, item: Item, verb: str) -> Run:
    run = rows.run(connection, item.run) if item.run else None
    return rules.require_ended(run, verb)
