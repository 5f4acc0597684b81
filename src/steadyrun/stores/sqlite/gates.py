"""How does a gate change? Each function is one step inside a transaction."""

from datetime import datetime

import msgspec
from msgspec.structs import replace

from steadyrun.model.event import Emitted, Event
from steadyrun.model.gate import (
    Dispatched,
    Gate,
    GateNews,
    Limited,
    Shut,
    gate_state,
    gate_step,
    gate_told,
    news_of,
    shut_providers,
)
from steadyrun.model.packed import encode_events
from steadyrun.model.run import Run
from steadyrun.stores.sqlite import rows
from steadyrun.stores.sqlite.ledger import ADD_BATCH, NEXT_CURSOR
from steadyrun.stores.sqlite.rows import Connection
from steadyrun.stores.sqlite.terms import Terms

_PUT_GATE = "INSERT OR REPLACE INTO gates VALUES (:provider, :account, :body)"
_SELECT_GATES = "SELECT body FROM gates ORDER BY provider, account"
_gate = msgspec.json.Decoder(Gate)


def gates(connection: Connection) -> list[Gate]:
    return [_gate.decode(body) for (body,) in connection.execute(_SELECT_GATES)]


def tell(
    connection: Connection,
    provider: str,
    account: str | None,
    news: GateNews,
    now: datetime,
    terms: Terms,
) -> list[Gate]:
    """Tell the gate of an account, or all gates of a provider."""
    known = [gate for gate in gates(connection) if gate.provider == provider]
    told = [gate for gate in known if account in {None, gate.account}]
    return [
        _step(connection, gate, news, now, terms)[0]
        for gate in told or [Gate(provider, account or "")]
    ]


def begun(connection: Connection, run: Run, terms: Terms) -> None:
    """A run was let through: whether it is the one that finds out how things are."""
    for gate in gates(connection):
        if gate.provider == run.provider and gate.is_closed:
            _step(connection, gate, Dispatched(run.id), run.created_at, terms)


def ended(connection: Connection, run: Run, terms: Terms) -> bool:
    """What the end of a run tells its gate; whether that is an event."""
    news, now = news_of(run), run.ended_at
    assert now
    known = [gate for gate in gates(connection) if gate.provider == run.provider]
    if not known and isinstance(news, Limited):
        known = [Gate(run.provider)]
    told = [_step(connection, gate, news, now, terms)[1] for gate in known]
    return any(told)


def shut(connection: Connection, now: datetime) -> Shut:
    """The providers that nobody may be sent to."""
    return shut_providers(gates(connection), now)


def awaiting_probe(connection: Connection, now: datetime) -> bool:
    """Whether some provider takes one run and no more."""
    return any(gate_state(gate, now) == "ready" for gate in gates(connection))


def _step(
    connection: Connection, before: Gate, news: GateNews, now: datetime, terms: Terms
) -> tuple[Gate, bool]:
    after = gate_step(before, news, now, terms.gate)
    after = replace(after, reason=terms.scrubber.clean(after.reason))
    if after != before:
        values = {"provider": after.provider, "account": after.account}
        connection.execute(_PUT_GATE, {**values, "body": rows.encode(after)})
    event = gate_told(before, after, now)
    if event:
        _add_event(connection, event, now, terms)
    return after, event is not None


def _add_event(connection: Connection, event: Event, now: datetime, terms: Terms) -> None:
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
        "body": encode_events([Emitted(f"gate:{cursor}", 0, now, event)], terms.scrubber),
    }
    connection.execute(ADD_BATCH, values)
