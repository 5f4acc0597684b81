"""How are runs, processes and events written? Each function is one step inside a transaction."""

from datetime import datetime
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import ChangeRefused, LeaseLost, NotFound
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
    TERMINAL,
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
from steadyrun.stores.sqlite.db.settings import StoreSettings
from steadyrun.stores.sqlite.sql import approvals, gates, items, rows, warm
from steadyrun.stores.sqlite.sql.events import NEXT_CURSOR, EventLog
from steadyrun.stores.sqlite.sql.rows import EVENT_SEQ, Connection, maybe_micros, micros


class Written(Struct, frozen=True):
    """A batch and its events in writing, made before the transaction begins."""

    batch: Batch
    body: bytes
    kinds: Kinds

    @classmethod
    def of(cls, batch: Batch, scrubber: Scrubber) -> "Written":
        kinds = count_kinds(batch.events)
        return cls(batch, encode_events(batch.events, scrubber, kinds), kinds)


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


def settle(
    connection: Connection,
    claim: Claim,
    change_: RunChange | None,
    written: Written | None,
    now: datetime,
    terms: StoreSettings,
) -> Item:
    _end(connection, claim, change_, written, now, terms)
    items.free(connection, claim.agent, now)
    return rows.item(connection, claim.item.id)


def rest(
    connection: Connection,
    claim: Claim,
    change_: RunChange | None,
    written: Written | None,
    now: datetime,
    terms: StoreSettings,
) -> Item:
    _end(connection, claim, change_, written, now, terms)
    warm.keep(connection, claim.agent, now)
    return rows.item(connection, claim.item.id)


def _end(
    connection: Connection,
    claim: Claim,
    change_: RunChange | None,
    written: Written | None,
    now: datetime,
    terms: StoreSettings,
) -> None:
    """Settle what the claim ran; what becomes of the lane is open."""
    ledger = _ledger(connection, claim)
    item = items.main_of(connection, claim, "settle")
    if written:
        ledger = _append(connection, claim, written, terms)
    if item.run is None:
        raise ChangeRefused("settle", found="the item has no run")
    run = rows.run(connection, item.run)
    if change_:
        run = _change(connection, ledger, run, change_, terms)
    if not run.is_terminal:
        raise ChangeRefused("settle", found=f"its run {run.id} has not ended")
    ledger.close()
    items.settle_all(connection, claim, run, now)


def change(
    connection: Connection, claim: Claim, run: RunId, change_: RunChange, terms: StoreSettings
) -> Run:
    ledger = _ledger(connection, claim)
    before = rows.maybe_run(connection, run)
    if before is not None:
        _own(before.agent, claim, "run", run)
    elif isinstance(change_, Created):
        _bind_run(connection, claim, run, change_)
    after = _change(connection, ledger, before, change_, terms)
    ledger.close()
    return after


def create(connection: Connection, claim: Claim, created: Created, terms: StoreSettings) -> Run:
    """The run of an item that has none: it was claimed just now, in this transaction."""
    if rows.maybe_run(connection, created.id):
        raise ChangeRefused("created", found=f"there is a run {created.id} already")
    _check_created(claim, created.id, created)
    run = scrub_run(step(None, set_account(created, terms.accounts)), terms.scrubber)
    connection.execute(_PUT_RUN, _run_values(run))
    connection.execute(_BIND_RUN, {"run": run.id, "item": claim.item.id})
    gates.begun(connection, run, terms)
    return run


def append(
    connection: Connection, hold: Lease, written: Written, terms: StoreSettings
) -> AppendResult:
    ledger = _append(connection, hold, written, terms)
    cursor = ledger.close()
    return AppendResult(ledger.added, ledger.seq, cursor, tuple(ledger.rows))


def _ledger(connection: Connection, claim: Claim) -> EventLog:
    return EventLog(connection, claim.agent, items.held(connection, claim).event_seq)


def open_process(connection: Connection, hold: Lease, process: Process) -> None:
    items.owned(connection, hold)
    is_known = rows.one(connection, _SELECT_OWNER, {"process": process.id})
    if is_known or process.agent != hold.agent:
        raise ChangeRefused("open_process", found=f"{process.id} belongs elsewhere")
    connection.execute(_ADD_PROCESS, _process_values(process))


_SELECT_OWNER = "SELECT agent_id FROM processes WHERE process_id = :process"


def close_process(connection: Connection, hold: Lease, process: ProcessId, now: datetime) -> None:
    items.owned(connection, hold)
    _process_of(connection, hold, process)
    connection.execute(_CLOSE_PROCESS, {"process": process, "now": micros(now)})


class _Place(NamedTuple):
    """Where a batch goes: who holds the lane, where the process's record ends, how the run is."""

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


# One question, since it is asked for every line of a quiet agent.
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


def _place(connection: Connection, hold: Lease, batch: Batch) -> _Place:
    """Find the place of a batch, and refuse what is not the claim's."""
    values = {"agent": hold.agent, "process": batch.process, "run": batch.run}
    row = rows.one(connection, _SELECT_PLACE, values)
    # An agent that was removed has no lane, and nobody has a hold on it.
    place = _Place(*row) if row else None
    if place is None or (place.holder, place.fence) != (hold.holder, hold.fence):
        raise LeaseLost(hold.agent, fence=hold.fence)
    _own(place.process_agent, hold, "process", batch.process)
    return place


def _append(
    connection: Connection, hold: Lease, written: Written, terms: StoreSettings
) -> EventLog:
    place, process = _place(connection, hold, written.batch), written.batch.process
    marks = Marks(place.mark_s, place.mark_x, place.mark_r)
    fresh, marks = select_new(written.batch, written.kinds, offset=place.offset, marks=marks)
    _check_run(hold, fresh, place)
    ledger = EventLog(
        connection, hold.agent, place.seq, process=process, next_cursor=place.next_cursor
    )
    if isinstance(fresh.change, Launched):
        _change_run(connection, ledger, fresh, terms)
    if len(fresh.events) < len(written.batch.events):
        written = Written.of(fresh, terms.scrubber)
    if fresh.events:
        tools = written.kinds[ToolStarted]
        ledger.add(fresh.run, len(fresh.events), written.body, tools)
    if written.kinds[ApprovalRequested] or written.kinds[ApprovalResolved]:
        approvals.heard(connection, hold.agent, fresh, written.body)
    if fresh.change and not isinstance(fresh.change, Launched):
        _change_run(connection, ledger, fresh, terms)
    _advance(connection, fresh, marks)
    if fresh.token:
        _bind_token(connection, hold.agent, place.provider, fresh.token)
    return ledger


def _check_run(hold: Lease, batch: Batch, place: _Place) -> None:
    if batch.run is None:
        return
    _own(place.run_agent, hold, "run", batch.run)
    if batch.events and place.run_status in TERMINAL:
        raise ChangeRefused("append", found=f"{batch.run} is {place.run_status}")


def _change_run(
    connection: Connection, ledger: EventLog, batch: Batch, terms: StoreSettings
) -> None:
    if batch.run and batch.change:
        _change(connection, ledger, rows.run(connection, batch.run), batch.change, terms)


def _change(
    connection: Connection,
    ledger: EventLog,
    before: Run | None,
    change_: RunChange,
    terms: StoreSettings,
) -> Run:
    """Take one step of the reducer and write row and event."""
    after = step(before, set_account(change_, terms.accounts))
    if after is before:
        return after
    events = build_status_events(before, after)
    if events:
        ledger.add(after.id, len(events), encode_events(events, terms.scrubber))
    if after.is_terminal:
        ledger.write()
        count, tools = rows.counts(connection, after.id)
        after = replace(after, events=count, tools=tools)
    else:
        after = add_counts(after, len(events), 0)
    after = scrub_run(after, terms.scrubber)
    connection.execute(_PUT_RUN, _run_values(after))
    if before is None:
        gates.begun(connection, after, terms)
    elif after.is_terminal:
        approvals.withdraw(connection, after.id)
        if after.stop_reason == "budget":
            items.set_paused(connection, after.agent, True)
        if gates.ended(connection, after, terms):
            ledger.look_again()
    return after


def _advance(connection: Connection, batch: Batch, marks: Marks) -> None:
    values: dict[str, object] = {
        "process": batch.process,
        "offset": batch.to_offset,
        "s": marks.s,
        "x": marks.x,
        "r": marks.r,
    }
    connection.execute(_ADVANCE, values)
    if batch.checkpoint:
        saved = {"state": batch.checkpoint.state, "sent": batch.checkpoint.sent}
        connection.execute(
            _SAVE_STATE, {"process": batch.process, "offset": batch.to_offset, **saved}
        )


def _bind_token(connection: Connection, agent: AgentId, provider: str, token: ResumeToken) -> None:
    known = rows.maybe_session(connection, agent, provider)
    _put_session(connection, agent, known.bind(token) if known else Session(provider, token))


def retire_token(
    connection: Connection, hold: Lease, provider: str, reason: str, terms: StoreSettings
) -> None:
    items.owned(connection, hold)
    known = rows.maybe_session(connection, hold.agent, provider)
    if known:
        _put_session(connection, hold.agent, known.retire(terms.scrubber.clean(reason)))


def _put_session(connection: Connection, agent: AgentId, session: Session) -> None:
    token = session.current.token if session.current else None
    values = {"agent": agent, "provider": session.provider, "token": token}
    connection.execute(_PUT_SESSION, {**values, "body": rows.encode(session)})


def _bind_run(connection: Connection, claim: Claim, run: RunId, change_: Created) -> None:
    item = items.main_of(connection, claim, "created")
    _check_created(claim, run, change_)
    if item.run is not None and not rows.run(connection, item.run).is_terminal:
        raise ChangeRefused("created", found=f"its run {item.run} has not ended")
    connection.execute(_BIND_RUN, {"run": run, "item": item.id})


def _check_created(claim: Claim, run: RunId, created: Created) -> None:
    if (created.id, created.agent, created.item) != (run, claim.agent, claim.item.id):
        raise ChangeRefused("created", found="the claim is for another agent or item")


def _process_of(connection: Connection, hold: Lease, process: ProcessId) -> Process:
    found = rows.process(connection, process)
    _own(found.agent, hold, "process", process)
    return found


def _own(agent: AgentId | None, hold: Lease, kind: str, name: str) -> None:
    """A claim reaches only what belongs to its own agent."""
    if agent != hold.agent:
        raise NotFound(kind, name)


def _run_values(run: Run) -> dict[str, object]:
    return {
        "run": run.id,
        "agent": run.agent,
        "provider": run.provider,
        "status": run.status,
        "created_at": micros(run.created_at),
        "input_tokens": run.usage.input_tokens,
        "output_tokens": run.usage.output_tokens,
        "cache_read_tokens": run.usage.cache_read_tokens,
        "cache_write_tokens": run.usage.cache_write_tokens,
        "cost_usd": run.cost.usd,
        "cost_kind": run.cost.kind,
        "body": rows.encode(run),
    }


def _process_values(process: Process) -> dict[str, object]:
    saved = process.saved
    return {
        "process": process.id,
        "agent": process.agent,
        "provider": process.provider,
        "machine": process.machine,
        "keeper": process.keeper,
        "opened_at": micros(process.opened_at),
        "offset": process.offset,
        "s": process.marks.s,
        "x": process.marks.x,
        "r": process.marks.r,
        "state": saved.state if saved else None,
        "sent": saved.sent if saved else None,
        "state_offset": saved.offset if saved else None,
        "closed_at": maybe_micros(process.closed_at),
        "seal": process.seal,
        "account": process.account,
    }
