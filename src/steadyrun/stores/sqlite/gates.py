"""How is a gate opened and closed? Each function is one step inside a transaction."""

from datetime import datetime

from msgspec.structs import replace

from steadyrun.model.event import Emitted, Event
from steadyrun.model.gate import Gate, gate_after, gate_told
from steadyrun.model.packed import encode_events
from steadyrun.model.secret import Scrubber
from steadyrun.stores.sqlite import rows
from steadyrun.stores.sqlite.ledger import ADD_BATCH, NEXT_CURSOR
from steadyrun.stores.sqlite.rows import Connection, maybe_micros

_SET_GATE = "INSERT OR REPLACE INTO gates VALUES (:provider, :account, :until, :reason)"


def set_gate(connection: Connection, gate: Gate, now: datetime, scrubber: Scrubber) -> None:
    before = rows.maybe_gate(connection, gate.provider, gate.account)
    after = gate_after(before, replace(gate, reason=scrubber.clean(gate.reason)), now)
    values = {
        "provider": after.provider,
        "account": after.account,
        "until": maybe_micros(after.closed_until),
        "reason": after.reason,
    }
    connection.execute(_SET_GATE, values)
    event = gate_told(before, after, now)
    if event:
        _add_event(connection, event, now, scrubber)


def _add_event(connection: Connection, event: Event, now: datetime, scrubber: Scrubber) -> None:
    """It has a cursor, like every event, and nobody to count it."""
    [cursor] = connection.execute(f"SELECT {NEXT_CURSOR}").fetchone()
    values = {
        "cursor": cursor,
        "agent": None,
        "run": None,
        "process": None,
        "first_seq": 0,
        "last_seq": 0,
        "tools": 0,
        "body": encode_events([Emitted(f"gate:{cursor}", 0, now, event)], scrubber),
    }
    connection.execute(ADD_BATCH, values)
