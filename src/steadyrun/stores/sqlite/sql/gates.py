"""Gates in the database. Each function is one step inside a transaction."""

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


def list_gates(connection: Connection, accounts: Accounts | None) -> list[Gate]:
    """The gates of these accounts, or all gates. Gates of keys that are no longer used stay."""
    return [
        _gate.decode(body)
        for provider, account, body in connection.execute(_SELECT_GATES)
        if accounts is None or is_present_account(provider, account, accounts)
    ]


def update(
    connection: Connection,
    provider: str,
    account: str | None,
    news: GateReport,
    now: datetime,
    settings: StoreSettings,
) -> Gate:
    """Report news to the gate of an account, or of the present account."""
    account = find_account(provider, settings.accounts) if account is None else account
    gate = _find(connection, provider, account) or Gate(provider, account)
    return _step(connection, gate, news, now, settings)[0]


def on_run_started(connection: Connection, run: Run, settings: StoreSettings) -> None:
    """Report a new run to its gate: the run may be the probe of a closed gate."""
    gate = _find(connection, run.provider, run.account)
    if gate and gate.is_closed:
        _step(connection, gate, Dispatched(run.id), run.created_at, settings)


def on_run_ended(connection: Connection, run: Run, settings: StoreSettings) -> bool:
    """Report the end of a run to its gate; whether an event was added."""
    news, now = report_run_end(run), run.ended_at
    assert now
    gate = _find(connection, run.provider, run.account)
    if gate is None and isinstance(news, Limited):
        gate = Gate(run.provider, run.account)
    return gate is not None and _step(connection, gate, news, now, settings)[1]


def find_shut(
    connection: Connection, now: datetime, settings: StoreSettings, excluded: Collection[str] = ()
) -> UnavailableProviders:
    """The providers that get no run; lanes wait for those in `excluded` as for suspect ones."""
    closed, suspect = find_unavailable_providers(list_gates(connection, settings.accounts), now)
    return UnavailableProviders(closed, suspect.union(excluded))


def has_ready(connection: Connection, now: datetime, settings: StoreSettings) -> bool:
    """Whether a gate admits a single run."""
    present = list_gates(connection, settings.accounts)
    return any(compute_gate_state(gate, now) == "ready" for gate in present)


def is_probe(connection: Connection, run: Run) -> bool:
    """Whether the gate of a run waits for the result of this run."""
    gate = _find(connection, run.provider, run.account)
    return gate is not None and gate.probe == run.id


def _find(connection: Connection, provider: str, account: str) -> Gate | None:
    row = rows.fetch_one(connection, _SELECT_GATE, {"provider": provider, "account": account})
    return None if row is None else _gate.decode(row[0])


def _step(
    connection: Connection, before: Gate, news: GateReport, now: datetime, settings: StoreSettings
) -> tuple[Gate, bool]:
    after = step_gate(before, news, now, settings.gate)
    after = replace(after, reason=settings.scrubber.clean(after.reason))
    if after != before:
        values = {"provider": after.provider, "account": after.account}
        connection.execute(_PUT_GATE, {**values, "body": rows.encode(after)})
    event = build_gate_event(before, after, now)
    if event:
        _add_event(connection, event, now, settings)
    return after, event is not None


def _add_event(
    connection: Connection, event: Event, now: datetime, settings: StoreSettings
) -> None:
    """Add an event of no agent. It has a cursor, like every event, and no number."""
    [cursor] = connection.execute(f"SELECT {NEXT_CURSOR}").fetchone()
    values = {
        "cursor": cursor,
        "agent": None,
        "run": None,
        "process": None,
        "first_seq": 0,
        "last_seq": 0,
        "tools": 0,
        "body": encode_events([Emitted(f"gate:{cursor}", 0, now, event)], settings.scrubber),
    }
    connection.execute(ADD_BATCH, values)
