"""Runs, processes and events in the database. Each function is one step inside a transaction."""

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import LeaseLost
from steadyrun.lib.notifier import Hint
from steadyrun.model.batch import AppendResult, Batch, select_new
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    Kinds,
    ToolStarted,
    count_kinds,
)
from steadyrun.model.event_codec import encode_events
from steadyrun.model.gate import set_account
from steadyrun.model.ids import AgentId, HolderId, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Lease
from steadyrun.model.process import Marks, Process
from steadyrun.model.run import (
    Created,
    Launched,
    Run,
    RunChange,
    RunStatus,
    add_counts,
    build_status_events,
    scrub_run,
    step,
)
from steadyrun.model.secret import Scrubber
from steadyrun.model.session import ResumeToken, Session
from steadyrun.store import Lane
from steadyrun.stores import rules
from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import approvals, gates, items, rows
from steadyrun.stores.sqlite.sql.events import NEXT_CURSOR, EventLog
from steadyrun.stores.sqlite.sql.rows import EVENT_SEQ, to_maybe_micros, to_micros


class EncodedBatch(Struct, frozen=True):
    """A batch and its encoded events, made before the transaction begins."""

    batch: Batch
    body: bytes
    kinds: Kinds

    @classmethod
    def from_batch(cls, batch: Batch, scrubber: Scrubber) -> "EncodedBatch":
        kinds = count_kinds(batch.events)
        return cls(batch, encode_events(batch.events, scrubber, kinds), kinds)


class LastWrites(NamedTuple):
    """What the end of a claim writes about its run."""

    change: RunChange | None
    batch: EncodedBatch | None


_PUT_RUN = """
    INSERT OR REPLACE INTO runs
    VALUES (:run, :agent, :provider, :status, :created_at,
            :input_tokens, :output_tokens, :cache_read_tokens, :cache_write_tokens,
            :cost_usd, :cost_kind, :body)
"""
_BIND_RUN = "UPDATE items SET run_id = :run WHERE item_id = :item"
_ADD_PROCESS = """
    INSERT INTO processes
    VALUES (:process, :agent, :provider, :machine, :keeper, :opened_at, :offset,
            :s, :x, :r, :state, :sent, :state_offset, :closed_at, :seal, :account)
"""
_ADVANCE = """
    UPDATE processes
    SET "offset" = :offset, mark_s = :s, mark_x = :x, mark_r = :r
    WHERE process_id = :process
"""
_SAVE_STATE = """
    UPDATE processes
    SET state = :state, state_sent = :sent, state_offset = :offset
    WHERE process_id = :process
"""
_CLOSE_PROCESS = """
    UPDATE processes SET closed_at = :now WHERE process_id = :process AND closed_at IS NULL
"""
_PUT_SESSION = "INSERT OR REPLACE INTO sessions VALUES (:agent, :provider, :token, :body)"


def find_main(tx: Transaction, claim: Claim, verb: str) -> Item:
    """The item of the claim, which must be the main item of its lane."""
    return rules.require_running(rows.item(tx, claim.item.id), claim, verb)


def end(tx: Transaction, claim: Claim, item: Item, last: LastWrites, log: EventLog) -> Run:
    """Append the last batch, apply the last change; the run of the item, which has ended then."""
    if last.batch:
        log = _append(tx, claim, last.batch)
    run = rows.run(tx, item.run) if item.run else None
    if run and last.change:
        run = _change(tx, log, run, last.change)
    run = rules.require_ended(run, "settle")
    log.close()
    return run


def change(tx: Transaction, claim: Claim, run: RunId, change: RunChange) -> Run:
    lane = rules.require_held(rows.find_lane(tx, claim.agent), claim)
    log = EventLog(tx, claim.agent, lane.event_seq)
    before = rows.find_run(tx, run)
    if before is not None:
        rules.require_own(before.agent, claim, "run", run)
    elif isinstance(change, Created):
        _bind_run(tx, claim, run, change)
    after = _change(tx, log, before, change)
    log.close()
    tx.notify(claim.agent, Hint.STATE)
    return after


def create(tx: Transaction, claim: Claim, created: Created) -> Run:
    """Create the run of an item that was claimed in this transaction and has no run."""
    rules.require_unused(rows.find_run(tx, created.id))
    rules.require_created_for(claim, created.id, created)
    settings = tx.settings
    run = scrub_run(step(None, set_account(created, settings.accounts)), settings.scrubber)
    tx.execute(_PUT_RUN, _run_values(run))
    tx.execute(_BIND_RUN, {"run": run.id, "item": claim.item.id})
    gates.on_run_started(tx, run)
    return run


def append(tx: Transaction, lease: Lease, encoded: EncodedBatch) -> AppendResult:
    log = _append(tx, lease, encoded)
    cursor = log.close()
    tx.notify(lease.agent, Hint.EVENTS)
    return AppendResult(log.added, log.seq, cursor, tuple(log.rows))


def open_process(tx: Transaction, lease: Lease, process: Process) -> None:
    rules.require_owner(rows.find_lane(tx, lease.agent), lease)
    is_stored = rows.has_row(tx, _SELECT_OWNER, {"process": process.id})
    rules.require_own_process(process, lease, is_stored=is_stored)
    tx.execute(_ADD_PROCESS, _encode_process(process))
    tx.notify(lease.agent, Hint.STATE)


_SELECT_OWNER = "SELECT agent_id FROM processes WHERE process_id = :process"


def close_process(tx: Transaction, lease: Lease, process: ProcessId) -> None:
    rules.require_owner(rows.find_lane(tx, lease.agent), lease)
    found = rows.require_process(tx, process)
    rules.require_own(found.agent, lease, "process", process)
    tx.execute(_CLOSE_PROCESS, {"process": process, "now": to_micros(tx.now)})
    tx.notify(lease.agent, Hint.STATE)


class _Place(NamedTuple):
    """Where a batch goes: the owner of the lane, the end of the record of the process, the state of
    the run."""

    holder: HolderId | None
    fence: int
    seq: int
    next_cursor: int
    process_agent: AgentId | None
    provider: str
    offset: int
    mark_s: int
    mark_x: int
    mark_r: int
    run_agent: AgentId | None
    run_status: RunStatus | None


# One query, since it is run for every line that a slow agent prints.
_SELECT_PLACE = f"""
    SELECT lanes.holder_id, lanes.fence, {EVENT_SEQ}, {NEXT_CURSOR},
           processes.agent_id, processes.provider, processes."offset",
           processes.mark_s, processes.mark_x, processes.mark_r,
           runs.agent_id, runs.status
    FROM lanes
    LEFT JOIN processes ON processes.process_id = :process
    LEFT JOIN runs ON runs.run_id = :run
    WHERE lanes.agent_id = :agent
"""  # noqa: S608


def _find_place(tx: Transaction, lease: Lease, batch: Batch) -> _Place:
    """Find the place of a batch, if the lease is valid and the process is of its agent."""
    values = {"agent": lease.agent, "process": batch.process, "run": batch.run}
    place = rows.fetch_one(tx, _SELECT_PLACE, values, _Place._make)
    if place is None:
        # A removed agent has no lane.
        raise LeaseLost(lease.agent, fence=lease.fence)
    rules.require_owner(Lane(lease.agent, holder=place.holder, fence=place.fence), lease)
    rules.require_own(place.process_agent, lease, "process", batch.process)
    return place


def _append(tx: Transaction, lease: Lease, encoded: EncodedBatch) -> EventLog:
    place, process = _find_place(tx, lease, encoded.batch), encoded.batch.process
    marks = Marks(place.mark_s, place.mark_x, place.mark_r)
    fresh, marks = select_new(encoded.batch, encoded.kinds, offset=place.offset, marks=marks)
    _check_run(lease, fresh, place)
    log = EventLog(tx, lease.agent, place.seq, process=process, next_cursor=place.next_cursor)
    if isinstance(fresh.change, Launched):
        _change_run(tx, log, fresh)
    if len(fresh.events) < len(encoded.batch.events):
        encoded = EncodedBatch.from_batch(fresh, tx.settings.scrubber)
    if fresh.events:
        tools = encoded.kinds[ToolStarted]
        log.add(fresh.run, len(fresh.events), encoded.body, tools)
    if encoded.kinds[ApprovalRequested] or encoded.kinds[ApprovalResolved]:
        approvals.record(tx, lease.agent, fresh, encoded.body)
    if fresh.change and not isinstance(fresh.change, Launched):
        _change_run(tx, log, fresh)
    _advance(tx, fresh, marks)
    if fresh.token:
        _bind_token(tx, lease.agent, place.provider, fresh.token)
    return log


def _check_run(lease: Lease, batch: Batch, place: _Place) -> None:
    if batch.run is None:
        return
    rules.require_own(place.run_agent, lease, "run", batch.run)
    if batch.events:
        rules.require_open_run(batch.run, place.run_status)


def _change_run(tx: Transaction, log: EventLog, batch: Batch) -> None:
    if batch.run and batch.change:
        _change(tx, log, rows.run(tx, batch.run), batch.change)


def _change(tx: Transaction, log: EventLog, before: Run | None, change: RunChange) -> Run:
    """Take one step of the reducer; row, events and their effects."""
    settings = tx.settings
    after = step(before, set_account(change, settings.accounts))
    if after is before:
        return after
    after = scrub_run(after, settings.scrubber)
    events = build_status_events(before, after)
    if events:
        log.add(after.id, len(events), encode_events(events, settings.scrubber))
    if after.is_terminal:
        log.write()
        count, tools = rows.count_events(tx, after.id)
        after = replace(after, events=count, tools=tools)
    else:
        after = add_counts(after, len(events), 0)
    tx.execute(_PUT_RUN, _run_values(after))
    if before is None:
        gates.on_run_started(tx, after)
    elif after.is_terminal:
        approvals.withdraw_for_run(tx, after.id)
        if after.stop_reason == "budget":
            items.set_paused(tx, after.agent, is_paused=True)
        if gates.on_run_ended(tx, after):
            log.forget_cursor()
    return after


def _advance(tx: Transaction, batch: Batch, marks: Marks) -> None:
    values: dict[str, object] = {
        "process": batch.process,
        "offset": batch.to_offset,
        "s": marks.s,
        "x": marks.x,
        "r": marks.r,
    }
    tx.execute(_ADVANCE, values)
    if batch.checkpoint:
        saved = {"state": batch.checkpoint.state, "sent": batch.checkpoint.sent}
        tx.execute(_SAVE_STATE, {"process": batch.process, "offset": batch.to_offset, **saved})


def _bind_token(tx: Transaction, agent: AgentId, provider: str, token: ResumeToken) -> None:
    session = rows.find_session(tx, agent, provider)
    _put_session(tx, agent, rules.bind_token(session, provider, token))


def retire_token(tx: Transaction, lease: Lease, provider: str, reason: str) -> None:
    rules.require_owner(rows.find_lane(tx, lease.agent), lease)
    session = rows.find_session(tx, lease.agent, provider)
    if session:
        _put_session(tx, lease.agent, session.retire(tx.settings.scrubber.clean(reason)))
    tx.notify(lease.agent, Hint.STATE)


def _put_session(tx: Transaction, agent: AgentId, session: Session) -> None:
    token = session.current.token if session.current else None
    values = {"agent": agent, "provider": session.provider, "token": token}
    tx.execute(_PUT_SESSION, {**values, "body": rows.encode(session)})


def _bind_run(tx: Transaction, claim: Claim, run: RunId, created: Created) -> None:
    """Make a run the run of the claim's item."""
    item = find_main(tx, claim, "created")
    rules.require_created_for(claim, run, created)
    if item.run is not None:
        rules.require_ended(rows.run(tx, item.run), "created")
    tx.execute(_BIND_RUN, {"run": run, "item": item.id})


def _run_values(run: Run) -> dict[str, object]:
    return {
        "run": run.id,
        "agent": run.agent,
        "provider": run.provider,
        "status": run.status,
        "created_at": to_micros(run.created_at),
        "input_tokens": run.usage.input_tokens,
        "output_tokens": run.usage.output_tokens,
        "cache_read_tokens": run.usage.cache_read_tokens,
        "cache_write_tokens": run.usage.cache_write_tokens,
        "cost_usd": run.cost.usd,
        "cost_kind": run.cost.kind,
        "body": rows.encode(run),
    }


def _encode_process(process: Process) -> dict[str, object]:
    saved = process.saved
    return {
        "process": process.id,
        "agent": process.agent,
        "provider": process.provider,
        "machine": process.machine,
        "keeper": process.keeper,
        "opened_at": to_micros(process.opened_at),
        "offset": process.offset,
        "s": process.marks.s,
        "x": process.marks.x,
        "r": process.marks.r,
        "state": saved.state if saved else None,
        "sent": saved.sent if saved else None,
        "state_offset": saved.offset if saved else None,
        "closed_at": to_maybe_micros(process.closed_at),
        "seal": process.seal,
        "account": process.account,
    }
