"""How is a gate opened and closed? Each function is one step inside a transaction."""

from steadyrun.model.gate import Gate
from steadyrun.stores.sqlite.rows import Connection, maybe_micros

_SET_GATE = "INSERT OR REPLACE INTO gates VALUES (:provider, :account, :until, :reason)"


def set_gate(connection: Connection, gate: Gate) -> None:
    values = {
        "provider": gate.provider,
        "account": gate.account,
        "until": maybe_micros(gate.closed_until),
        "reason": gate.reason,
    }
    connection.execute(_SET_GATE, values)
