"""How does a gate change? Each function is one step inside a transaction."""

from collections.abc import Collection
from datetime import datetime

import msgspec
from msgspec.structs import replace

from steadyrun.model.event import Emitted, Event
from steadyrun.model.event_codec import encode_events
from steadyrun.model.gate import (
    Accounts,
    Dispatched,
    Gate,
    GateReport,
    Limited,
    UnavailableProviders,
    build_gate_event,
    compute_gate_state,
    find_account,
    find_unavailable_providers,
    is_present_account,
    report_run_end,
    step_gate,
)
from steadyrun.model.run import Run
from steadyrun.stores.sqlite.db.settings import StoreSettings
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.events import ADD_BATCH, NEXT_CURSOR
from steadyrun.stores.sqlite.sql.rows import Connection

_PUT_GATE = "INSERT OR REPLACE INTO gates VALUES (:provider, :account, :body)"
_SELECT_GATES = "SELECT provider, account, body FROM gates ORDER BY provider, account"
_SELECT_GATE = "SELECT body FROM gates WHERE provider = :provider AND account = :account"
_gate = msgspec.json.Decoder(Gate)


def gates(connection: Connection, accounts: Accounts | None) -> list[Gate]:
    """Of these accounts, or all: those of keys that were in use once are left alone."""
    return [
        _gate.decode(body)
        for provider, account, body in connection.execute(_SELECT_GATES)
        if accounts is None or is_present_account(provider, account, accounts)
    ]


def tell(
    connection: Connection,
    provider: str,
    account: str | None,
    news: GateReport,
    now: datetime,
    terms: StoreSettings,
) -> Gate:
    """Tell the gate of an account, or of the present one."""
    account = find_account(provider, terms.accounts) if account is None else account
    gate = _known(connection, provider, account) or Gate(provider, account)
    return _step(connection, gate, news, now, terms)[0]


def begun(connection: Connection, run: Run, terms: StoreSettings) -> None:
    """A run was let through: whether it is the one that finds out how things are."""
    gate = _known(connection, run.provider, run.account)
    if gate and gate.is_closed:
        _step(connection, gate, Dispatched(run.id), run.created_at, terms)


def ended(connection: Connection, run: Run, terms: StoreSettings) -> bool:
    """What the end of a run tells its gate; whether that is an event."""
    news, now = report_run_end(run), run.ended_at
    assert now
    gate = _known(connection, run.provider, run.account)
    if gate is None and isinstance(news, Limited):
        gate = Gate(run.provider, run.account)
    return gate is not None and _step(connection, gate, news, now, terms)[1]


def shut(
    connection: Connection, now: datetime, terms: StoreSettings, but_not: Collection[str] = ()
) -> UnavailableProviders:
    """The providers that nobody may be sent to; `but_not` are waited for, too."""
    closed, suspect = find_unavailable_providers(gates(connection, terms.accounts), now)
    return UnavailableProviders(closed, suspect.union(but_not))


def awaiting_probe(connection: Connection, now: datetime, terms: StoreSettings) -> bool:
    """Whether some provider takes one run and no more."""
    present = gates(connection, terms.accounts)
    return any(compute_gate_state(gate, now) == "ready" for gate in present)


def is_probe(connection: Connection, run: Run) -> bool:
    """Whether the gate of a run waits for what becomes of it."""
    gate = _known(connection, run.provider, run.account)
    return gate is not None and gate.probe == run.id


def _known(connection: Connection, provider: str, account: str) -> Gate | None:
    row = rows.one(connection, _SELECT_GATE, {"provider": provider, "account": account})
    return None if row is None else _gate.decode(row[0])


def _step(
    connection: Connection, before: Gate, news: GateReport, now: datetime, terms: StoreSettings
) -> tuple[Gate, bool]:
    after = step_gate(before, news, now, terms.gate)
    after = replace(after, reason=terms.scrubber.clean(after.reason))
    if after != before:
        values = {"provider": after.provider, "account": after.account}
        connection.execute(_PUT_GATE, {**values, "body": rows.encode(after)})
    event = build_gate_event(before, after, now)
    if event:
        _add_event(connection, event, now, terms)
    return after, event is not None


def _add_event(connection: Connection, event: Event, now: datetime, terms: StoreSettings) -> None:
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
