"""Converts rows of the database to values of the model, and back."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from steadyrun.model.agent import Agent
from steadyrun.model.event import ErrorFact
from steadyrun.model.ids import AgentId, ItemId, ProcessId, RunId
from steadyrun.model.item import Item, Payload
from steadyrun.model.process import Marks, Process, SavedState
from steadyrun.model.run import Run
from steadyrun.model.session import Session
from steadyrun.store import Lane
from steadyrun.stores import rules
from steadyrun.stores.sqlite.db.transaction import Transaction

# What executes statements: a connection that reads, or a transaction.
Connection = sqlite3.Connection | Transaction
Row = tuple[Any, ...]
T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

encode = msgspec.json.Encoder().encode
_agent = msgspec.json.Decoder(Agent)
_error = msgspec.json.Decoder(ErrorFact)
_payload = msgspec.json.Decoder(Payload)
_run = msgspec.json.Decoder(Run)
_session = msgspec.json.Decoder(Session)

ITEM_COLUMNS = """
    item_id, agent_id, seq, kind, text, on_lost, created_at, status, delivery, attempt,
    cancel_requested, run_id, reply, started_at, settled_at, followup, before_run, tries, error,
    payload
"""
# The number of an agent's last event.
EVENT_SEQ = """
    coalesce((
        SELECT event_batches.last_seq FROM event_batches
        WHERE event_batches.agent_id = lanes.agent_id
        ORDER BY event_batches.id DESC
        LIMIT 1
    ), (
        SELECT pruned_events.last_seq FROM pruned_events
        WHERE pruned_events.agent_id = lanes.agent_id
    ), 0)
"""
LANE_COLUMNS = f"""
    agent_id, status, is_paused, ready_at, holder_id, fence, last_seq, queued, {EVENT_SEQ}
"""
PROCESS_COLUMNS = """
    process_id, agent_id, provider, machine, keeper, opened_at, "offset",
    mark_s, mark_x, mark_r, state, state_sent, state_offset, closed_at, seal, account
"""


def to_micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def to_maybe_micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def from_micros(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at)


def from_maybe_micros(at: int | None) -> datetime | None:
    return None if at is None else from_micros(at)


def fetch_one(
    connection: Connection, sql: str, parameters: Mapping[str, object], decode: Callable[[Row], T]
) -> T | None:
    """The decoded first row, if there is one."""
    row: Row | None = connection.execute(sql, parameters).fetchone()
    return None if row is None else decode(row)


def has_row(connection: Connection, sql: str, parameters: Mapping[str, object]) -> bool:
    return connection.execute(sql, parameters).fetchone() is not None


def to_json_list(names: Iterable[str | None]) -> str:
    """The names as a parameter for `json_each`: one query for many rows."""
    return encode([*names]).decode()


def decode_item(row: Row) -> Item:
    values = list(row)
    values[6], values[10] = from_micros(row[6]), bool(row[10])
    values[13], values[14] = from_maybe_micros(row[13]), from_maybe_micros(row[14])
    values[18] = None if row[18] is None else _error.decode(row[18])
    values[19] = Payload() if row[19] is None else _payload.decode(row[19])
    return Item(*values)


def decode_lane(row: Row) -> Lane:
    return Lane(row[0], row[1], bool(row[2]), from_maybe_micros(row[3]), *row[4:])


def decode_process(row: Row) -> Process:
    identity, (opened_at, offset), marks, saved = row[:5], row[5:7], row[7:10], row[10:13]
    state = None if saved[0] is None else SavedState(*saved)
    closed_at = from_maybe_micros(row[13])
    fields = (*identity, from_micros(opened_at), offset, Marks(*marks), state, closed_at)
    return Process(*fields, *row[14:16])


def decode_agent(row: Row) -> Agent:
    return _agent.decode(row[0])


def decode_run(connection: Connection, row: Row) -> Run:
    """The run. As long as it has not ended, its events are counted in their table."""
    run = _run.decode(row[0])
    if run.is_terminal:
        return run
    events, tools = count_events(connection, run.id)
    return structs.replace(run, events=events, tools=tools)


_COUNTS = """
    SELECT coalesce(sum(last_seq - first_seq + 1), 0), coalesce(sum(tools), 0)
    FROM event_batches
    WHERE run_id = :run
"""


def count_events(connection: Connection, run: RunId) -> tuple[int, int]:
    """The number of events of a run, and the number of tools it has started."""
    events, tools = connection.execute(_COUNTS, {"run": run}).fetchone()
    return events, tools


def decode_session(row: Row) -> Session:
    return _session.decode(row[0])


_SELECT_LANE = f"SELECT {LANE_COLUMNS} FROM lanes WHERE agent_id = :agent"  # noqa: S608
_SELECT_AGENT = "SELECT body FROM agents WHERE agent_id = :agent"
_SELECT_ITEM = f"SELECT {ITEM_COLUMNS} FROM items WHERE item_id = :item"  # noqa: S608
_SELECT_PROCESS = f"SELECT {PROCESS_COLUMNS} FROM processes WHERE process_id = :process"  # noqa: S608
_SELECT_RUN = "SELECT body FROM runs WHERE run_id = :run"
_SELECT_SESSION = """
    SELECT body FROM sessions
    WHERE agent_id = :agent AND provider = :provider
"""


def find_lane(connection: Connection, agent: AgentId) -> Lane | None:
    return fetch_one(connection, _SELECT_LANE, {"agent": agent}, decode_lane)


def lane(connection: Connection, agent: AgentId) -> Lane:
    return rules.require_found(find_lane(connection, agent), "agent", agent)


def find_agent(connection: Connection, agent: AgentId) -> Agent | None:
    return fetch_one(connection, _SELECT_AGENT, {"agent": agent}, decode_agent)


def agent(connection: Connection, agent: AgentId) -> Agent:
    return rules.require_found(find_agent(connection, agent), "agent", agent)


def item(connection: Connection, item: ItemId) -> Item:
    found = fetch_one(connection, _SELECT_ITEM, {"item": item}, decode_item)
    return rules.require_found(found, "item", item)


def require_process(connection: Connection, process: ProcessId) -> Process:
    found = fetch_one(connection, _SELECT_PROCESS, {"process": process}, decode_process)
    return rules.require_found(found, "process", process)


def find_run(connection: Connection, run: RunId) -> Run | None:
    return fetch_one(connection, _SELECT_RUN, {"run": run}, lambda row: decode_run(connection, row))


def run(connection: Connection, run: RunId) -> Run:
    return rules.require_found(find_run(connection, run), "run", run)


def find_session(connection: Connection, agent: AgentId, provider: str) -> Session | None:
    values = {"agent": agent, "provider": provider}
    return fetch_one(connection, _SELECT_SESSION, values, decode_session)
