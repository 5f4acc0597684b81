"""How a lane is claimed, kept and given up. Each function is one step inside a transaction."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from msgspec.structs import replace

from steadyrun.errors import ChangeRefused
from steadyrun.lib.notifier import Hint
from steadyrun.model.agent import Agent
from steadyrun.model.gate import UnavailableProviders
from steadyrun.model.ids import AgentId, HolderId, ItemId
from steadyrun.model.item import Claim, Item, Lease, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Run
from steadyrun.store import Accepted, Lane, Start, Started
from steadyrun.stores import rules
from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import agents, gates, holders, items, rows, runs
from steadyrun.stores.sqlite.sql.events import EventLog
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, PROCESS_COLUMNS, to_micros
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


def accept(tx: Transaction, new: ItemId, message: Message, begin: Start | None) -> Accepted:
    """`new` is the id of the item that the message becomes."""
    _, accepted = items.add_item(tx, rows.lane(tx, message.agent), new, message)
    started = _start_ready(tx, begin, 1, message.agent) if begin else []
    if not started:
        tx.notify(message.agent)
    return accepted.with_started(started[0]) if started else accepted


def start(
    tx: Transaction,
    holder: HolderId,
    create_run: Callable[[Agent, Item], Created],
    limit: int = 1,
    *,
    agent: AgentId | None = None,
    excluded: Collection[str] = (),
) -> list[Started]:
    return _start_ready(tx, Start(holder, create_run, excluded), limit, agent)


def start_direct(
    tx: Transaction, new: ItemId, agent: Agent, message: Message, begin: Start
) -> Started:
    """`new` is the id of the item that the message becomes."""
    holders.require(tx, begin.holder)
    rules.require_message_for(agent.id, message, "start_direct")
    agents.add_agent(tx, agent)
    items.add_item(tx, rows.lane(tx, agent.id), new, message)
    started = _start_ready(tx, begin, 1, agent.id)
    if not started:
        found = f"the gate of {agent.provider} is closed"
        raise ChangeRefused("start_direct", found=found)
    return started[0]


def _start_ready(tx: Transaction, begin: Start, limit: int, agent: AgentId | None) -> list[Started]:
    """Claim several lanes at once, unless a gate admits a single run: then each lane is claimed by
    itself, and the next claim finds the gate as the last run has left it."""
    holders.require(tx, begin.holder)
    at_once = 1 if gates.has_ready(tx) else limit
    started: list[Started] = []
    while len(started) < limit:
        shut = gates.find_unavailable(tx, begin.excluded)
        chosen = _claim(tx, begin.holder, at_once, agent, shut)
        started += [_start(tx, each, begin.create_run) for each in chosen]
        if len(chosen) < at_once or at_once == limit:
            break
    return started


def _claim(
    tx: Transaction,
    holder: HolderId,
    limit: int,
    agent: AgentId | None,
    shut: UnavailableProviders,
) -> list[_Chosen]:
    values = {
        "holder": holder,
        "limit": limit,
        "agent": agent,
        "closed": rows.to_json_list(shut.closed),
        "suspect": rows.to_json_list(shut.suspect),
    }
    found = tx.execute(_READY_CHOSEN if shut.closed else _READY_FIRST, values).fetchall()
    return [_Chosen(_hold(tx, ready, holder, fence), provider) for ready, fence, provider in found]


def _hold(tx: Transaction, agent: AgentId, holder: HolderId, fence: int) -> Claim:
    tx.execute(_HOLD, {"agent": agent, "holder": holder, "fence": fence})
    [head] = tx.execute(_START_HEAD, {"agent": agent, "now": to_micros(tx.now)}).fetchall()
    # An item that is started already is no work for another holder.
    tx.notify(agent, Hint.STATE)
    return Claim(agent, holder, fence, rows.decode_item(head))


def _start(
    tx: Transaction, chosen: _Chosen, create_run: Callable[[Agent, Item], Created]
) -> Started:
    claim = chosen.claim
    agent = rows.agent(tx, claim.agent).with_provider(chosen.provider)
    run = runs.create(tx, claim, create_run(agent, claim.item))
    return Started(
        replace(claim, item=replace(claim.item, run=run.id)),
        run,
        agent,
        rows.find_session(tx, agent.id, run.provider),
        _find_newest_process(tx, agent.id),
        rows.run(tx, claim.item.before) if claim.item.before else None,
        gates.is_probe(tx, run),
    )


def _find_newest_process(tx: Transaction, agent: AgentId) -> Process | None:
    return rows.fetch_one(tx, _NEWEST_PROCESS, {"agent": agent}, rows.decode_process)


def release_lane(tx: Transaction, lease: Lease) -> None:
    lane = rules.require_warm(rows.find_lane(tx, lease.agent), lease, "release_lane")
    items.save_lane(tx, rules.free_lane(lane, tx.now))
    tx.notify(lease.agent)


def continue_with(tx: Transaction, new: ItemId, lease: Lease, to: ItemId | Message) -> Claim:
    """`new` is the id of the item that a message becomes."""
    lane = rows.find_lane(tx, lease.agent)
    if isinstance(lease, Claim):
        lane, ended = rules.require_held(lane, lease), _end_for_next(tx, lease)
    else:
        lane, ended = rules.require_warm(lane, lease, "continue_with"), []
    if isinstance(to, Message):
        lane, started = _accept_unprompted(tx, lane, new, to)
    else:
        offer = rules.require_offer(rows.item(tx, to), lease)
        started = rules.start_item(offer, "own_turn", tx.now)
    items.save_items(tx, [*ended, started])
    items.save_lane(tx, rules.count_requeued(lane, ended))
    tx.notify(lease.agent)
    return Claim(lease.agent, lease.holder, lease.fence, started)


def _end_for_next(tx: Transaction, claim: Claim) -> list[Item]:
    """The items that the run of the claim leaves behind, settled."""
    item = runs.find_main(tx, claim, "continue_with")
    run = _find_ended_run(tx, item, "continue_with")
    running = items.list_running(tx, claim.agent)
    return [rules.settle_after_run(i, run, tx.now) for i in running if i.delivery != "offered"]


def _accept_unprompted(
    tx: Transaction, lane: Lane, new: ItemId, message: Message
) -> tuple[Lane, Item]:
    """Accept the message of a turn that has begun already; it is not queued."""
    rules.require_message_for(lane.agent, message, "continue_with")
    lane, accepted = items.add_item(tx, lane, new, message)
    started = rules.start_item(rules.require_new(accepted, "continue_with"), "none", tx.now)
    return rules.count_started(lane), started


def retry(tx: Transaction, claim: Claim, *, spends: bool) -> Claim:
    lane = rules.require_held(rows.find_lane(tx, claim.agent), claim)
    item = runs.find_main(tx, claim, "retry")
    prepared = rules.retry_item(item, _find_ended_run(tx, item, "retry"), spends=spends)
    running = items.list_running(tx, claim.agent)
    others = [rules.requeue_item(each, tx.now) for each in running if each.id != item.id]
    items.save_items(tx, [prepared, *others])
    if others:
        items.save_lane(tx, rules.count_requeued(lane, others))
    tx.notify(claim.agent)
    return replace(claim, item=prepared)


def settle(tx: Transaction, claim: Claim, last: LastWrites, *, keep_warm: bool) -> Item:
    lane = rules.require_held(rows.find_lane(tx, claim.agent), claim)
    item = runs.find_main(tx, claim, "settle")
    run = runs.end(tx, claim, item, last, EventLog(tx, claim.agent, lane.event_seq))
    ended = {
        each.id: rules.settle_after_run(each, run, tx.now)
        for each in items.list_running(tx, claim.agent)
    }
    items.save_items(tx, ended.values())
    lane = rules.count_requeued(lane, [*ended.values()])
    items.save_lane(tx, rules.end_claim(lane, tx.now, keep_warm=keep_warm))
    tx.notify(claim.agent)
    return ended[item.id]


def _find_ended_run(tx: Transaction, item: Item, verb: str) -> Run:
    run = rows.run(tx, item.run) if item.run else None
    return rules.require_ended(run, verb)
