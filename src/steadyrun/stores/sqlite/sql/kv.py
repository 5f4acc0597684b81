"""Values under keys, for what has no table of its own."""

from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.rows import Connection

_PUT = "INSERT OR REPLACE INTO kv VALUES (:key, :value)"
_GET = "SELECT value FROM kv WHERE key = :key"


def put(tx: Transaction, key: str, value: bytes) -> None:
    tx.execute(_PUT, {"key": key, "value": value})


def get(connection: Connection, key: str) -> bytes | None:
    return rows.fetch_one(connection, _GET, {"key": key}, lambda row: bytes(row[0]))
