"""The verbs that only read: queries on a few connections in worker threads, never on the event
loop."""

import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
import anyio.to_thread

from steadyrun.errors import StoreFailed
from steadyrun.model.gate import Accounts, Gate
from steadyrun.store import Holder
from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.db.errors import translate_errors
from steadyrun.stores.sqlite.db.liveness import Liveness
from steadyrun.stores.sqlite.sql import (
    approvals,
    gates,
    holders,
    kv,
    overview,
    queries,
    rows,
    snapshot,
)
from steadyrun.stores.sqlite.sql.rows import Connection

P = ParamSpec("P")
T = TypeVar("T")
_MOST_READERS = 4


def make_read(
    query: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate["SqliteReads", P], Coroutine[Any, Any, T]]:
    """Make a query a verb with the same parameters, which runs it in a worker thread."""

    async def verb(store: "SqliteReads", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store.read(lambda connection: query(connection, *args, **kwargs))

    return verb


class SqliteReads:
    """The verbs that only read."""

    agent = make_read(queries.agent)
    agents = make_read(queries.agents)
    session = make_read(rows.find_session)
    token = make_read(queries.token)
    lane = make_read(rows.lane)
    item = make_read(rows.item)
    items = make_read(queries.items)
    run = make_read(rows.run)
    runs = make_read(queries.runs)
    process = make_read(rows.process)
    open_processes = make_read(queries.open_processes)
    pending_requests = make_read(queries.pending_requests)
    events = make_read(queries.events)
    approval = make_read(approvals.find_approval)
    approvals = make_read(approvals.list_approvals)
    agent_overviews = make_read(overview.agent_overviews)
    lane_snapshots = make_read(snapshot.lane_snapshots)
    run_costs = make_read(queries.run_costs)
    usage = make_read(queries.usage)
    usage_by = make_read(queries.usage_by)
    get = make_read(kv.get)

    def __init__(self, path: Path, liveness: Liveness, accounts: Accounts) -> None:
        self.accounts = accounts
        self._path = path
        self._liveness = liveness
        self._is_open = False
        self._readers: list[sqlite3.Connection] = []
        self._reading = anyio.CapacityLimiter(_MOST_READERS)

    async def holders(self) -> list[Holder]:
        return await self.read(lambda c: holders.list_holders(c, self._liveness))

    async def gates(self, *, include_others: bool = False) -> list[Gate]:
        accounts = None if include_others else self.accounts
        return await self.read(lambda c: gates.list_gates(c, accounts))

    async def check(self) -> list[str]:
        """The problems that SQLite finds in its file; an empty list if there are none."""
        return await self.read(_check_quickly)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query in a worker thread, on a connection of its own."""
        self._require_open()
        return await anyio.to_thread.run_sync(self._query, query, limiter=self._reading)

    def _query(self, query: Callable[[Connection], T]) -> T:
        with translate_errors(self._path):
            connection = self._readers.pop() if self._readers else schema.connect_reader(self._path)
            try:
                return query(connection)
            finally:
                self._readers.append(connection)

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreFailed("the store has been closed", path=self._path)

    def _close_readers(self) -> None:
        while self._readers:
            self._readers.pop().close()


def _check_quickly(connection: Connection) -> list[str]:
    found = [str(row[0]) for row in connection.execute("PRAGMA quick_check")]
    return [] if found == ["ok"] else found
