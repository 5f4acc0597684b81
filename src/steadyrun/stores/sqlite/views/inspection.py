"""Reads every row of the store and reports those that cannot be decoded."""

import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from steadyrun.model.approval import Approval
from steadyrun.model.event_codec import decode_events
from steadyrun.model.gate import Gate
from steadyrun.model.run import Run
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.rows import ITEM_COLUMNS, PROCESS_COLUMNS, Connection, Row

_UNREADABLE = (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError)
_LONGEST = 120
_run = msgspec.json.Decoder(Run)
_gate = msgspec.json.Decoder(Gate)
_approval = msgspec.json.Decoder(Approval)


class _Table(NamedTuple):
    """A table: the column that names a row, the columns to decode, and how."""

    name: str
    key: str
    columns: str
    decode: Callable[[Row], object]


def _decode_batch(row: Row) -> None:
    first, last, body = row
    found = len(decode_events(body))
    if found != last - first + 1:
        raise ValueError(f"expected {last - first + 1} events, found {found}")


_TABLES = (
    _Table("agents", "agent_id", "body", rows.decode_agent),
    _Table("sessions", "agent_id", "body", rows.decode_session),
    _Table("items", "item_id", ITEM_COLUMNS, rows.decode_item),
    _Table("runs", "run_id", "body", lambda row: _run.decode(row[0])),
    _Table("processes", "process_id", PROCESS_COLUMNS, rows.decode_process),
    _Table("gates", "provider", "body", lambda row: _gate.decode(row[0])),
    _Table("approvals", "approval_id", "body", lambda row: _approval.decode(row[0])),
    _Table("event_batches", "id", "first_seq, last_seq, body", _decode_batch),
)


def inspect_rows(connection: Connection) -> list[str]:
    """Decode all agents, sessions, items, runs, processes, gates, approvals and events; return what
    is wrong, one line for each row."""
    return [problem for table in _TABLES for problem in _inspect_table(connection, table)]


def _inspect_table(connection: Connection, table: _Table) -> Iterator[str]:
    found = connection.execute(f"SELECT {table.key}, {table.columns} FROM {table.name}")  # noqa: S608
    try:
        for key, *row in found:
            try:
                table.decode(tuple(row))
            except _UNREADABLE as error:
                yield f"{table.name} {key}: {_cut(error)}"
    except sqlite3.OperationalError as error:
        # A text that is not UTF-8 ends the query.
        yield f"{table.name}: {_cut(error)}"


def _cut(error: Exception) -> str:
    """The first line of an error, which may quote the text of an agent."""
    return (str(error).splitlines() or [type(error).__name__])[0][:_LONGEST]
