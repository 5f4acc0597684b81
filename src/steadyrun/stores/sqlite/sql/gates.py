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
    NotLaunched,
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
from steadyrun.stores.sqlite.db.transaction import Transaction
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


def update_gate(
    tx: Transaction, provider: str, report: GateReport, *, account: str | None = None
) -> Gate:
    account = find_account(provider, tx.settings.accounts) if account is None else account
    gate = _find(tx, provider, account) or Gate(provider, account)
    tx.notify(None)
    return _step(tx, gate, report, tx.now)[0]


def on_run_started(tx: Transaction, run: Run) -> None:
    """Report a new run to its gate: the run may be the probe of a closed gate."""
    gate = _find(tx, run.provider, run.account)
    if gate and gate.is_closed:
        _step(tx, gate, Dispatched(run.id), run.created_at)


def on_run_ended(tx: Transaction, run: Run) -> bool:
    """Report the end of a run to its gate; whether an event was added."""
    report, now = report_run_end(run), run.ended_at
    assert now
    gate = _find(tx, run.provider, run.account)
    if gate is None and isinstance(report, Limited | NotLaunched):
        gate = Gate(run.provider, run.account)
    return gate is not None and _step(tx, gate, report, now)[1]


def find_unavailable(tx: Transaction, excluded: Collection[str] = ()) -> UnavailableProviders:
    """The providers that get no run; lanes wait for those in `excluded` as for suspect ones."""
    closed, suspect = find_unavailable_providers(list_gates(tx, tx.settings.accounts), tx.now)
    return UnavailableProviders(closed, suspect.union(excluded))


def has_ready(tx: Transaction) -> bool:
    """Whether a gate admits a single run."""
    present = list_gates(tx, tx.settings.accounts)
    return any(compute_gate_state(gate, tx.now) == "ready" for gate in present)


def is_probe(connection: Connection, run: Run) -> bool:
    """Whether the gate of a run waits for the result of this run."""
    gate = _find(connection, run.provider, run.account)
    return gate is not None and gate.probe == run.id


def _find(connection: Connection, provider: str, account: str) -> Gate | None:
    values = {"provider": provider, "account": account}
    return rows.fetch_one(connection, _SELECT_GATE, values, lambda row: _gate.decode(row[0]))


def _step(tx: Transaction, before: Gate, report: GateReport, now: datetime) -> tuple[Gate, bool]:
    """Apply a report; the gate after it, and whether an event was added."""
    after = step_gate(before, report, now, tx.settings.gate)
    after = replace(after, reason=tx.settings.scrubber.clean(after.reason))
    if after != before:
        values = {"provider": after.provider, "account": after.account}
        tx.execute(_PUT_GATE, {**values, "body": rows.encode(after)})
    event = build_gate_event(before, after, now)
    if event:
        _add_event(tx, event, now)
    return after, event is not None


def _add_event(tx: Transaction, event: Event, now: datetime) -> None:
    """Add an event of no agent. It has a cursor, like every event, and no number."""
    [cursor] = tx.execute(f"SELECT {NEXT_CURSOR}").fetchone()
    values = {
        "cursor": cursor,
        "agent": None,
        "run": None,
        "process": None,
        "first_seq": 0,
        "last_seq": 0,
        "tools": 0,
        "body": encode_events([Emitted(f"gate:{cursor}", 0, now, event)], tx.settings.scrubber),
    }
    tx.execute(ADD_BATCH, values)
