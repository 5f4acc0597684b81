"""SQLite: the embedded default. One file, no service, any number of processes on one home."""

from steadyrun.stores.sqlite.base import DATABASE
from steadyrun.stores.sqlite.store import SqliteStore

__all__ = ["DATABASE", "SqliteStore"]
