"""What else is remembered? Values under keys, for whoever has no table."""

from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.rows import Connection

_REMEMBER = "INSERT OR REPLACE INTO kv VALUES (:key, :value)"
_RECALL = "SELECT value FROM kv WHERE key = :key"


def remember(connection: Connection, key: str, value: bytes) -> None:
    connection.execute(_REMEMBER, {"key": key, "value": value})


def recall(connection: Connection, key: str) -> bytes | None:
    row = rows.one(connection, _RECALL, {"key": key})
    return None if row is None else bytes(row[0])
