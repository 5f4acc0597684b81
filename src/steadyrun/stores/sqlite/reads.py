"""Who reads from the database? A few connections in worker threads, never the event loop."""

import sqlite3
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from steadyrun.errors import StoreFailed
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval
from steadyrun.model.event import StoredEvent
from steadyrun.model.gate import Accounts, Gate
from steadyrun.model.ids import AgentId, ApprovalId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import Item
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.model.session import ResumeToken, Session
from steadyrun.model.usage import Cost, UsageSum
from steadyrun.store import (
    PAGE,
    AgentOverview,
    Grouping,
    Holder,
    Lane,
    LaneSnapshot,
    PendingRequests,
)
from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.db.errors import translated
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

T = TypeVar("T")
_MOST_READERS = 4


class SqliteReads:
    """The verbs that only read."""

    def __init__(self, path: Path, liveness: Liveness, accounts: Accounts) -> None:
        self.accounts = accounts
        self._path = path
        self._liveness = liveness
        self._is_open = False
        self._readers: list[sqlite3.Connection] = []
        self._reading = anyio.CapacityLimiter(_MOST_READERS)

    async def agent(self, name: str) -> Agent:
        return await self._read(lambda c: queries.agent(c, name))

    async def agents(self) -> list[Agent]:
        return await self._read(queries.agents)

    async def agent_overviews(
        self, since: datetime, *, agent: AgentId | None = None
    ) -> list[AgentOverview]:
        return await self._read(lambda c: overview.looks(c, agent, since))

    async def token(self, provider: str, token: str) -> ResumeToken | None:
        return await self._read(lambda c: queries.token(c, provider, token))

    async def session(self, agent: AgentId, provider: str) -> Session | None:
        return await self._read(lambda c: rows.maybe_session(c, agent, provider))

    async def item(self, item: ItemId) -> Item:
        return await self._read(lambda c: rows.item(c, item))

    async def items(
        self,
        agent: AgentId | None = None,
        *,
        include_settled: bool = False,
        before: ItemId | None = None,
        limit: int = PAGE,
    ) -> list[Item]:
        return await self._read(lambda c: queries.items(c, agent, include_settled, before, limit))

    async def lane(self, agent: AgentId) -> Lane:
        return await self._read(lambda c: rows.lane(c, agent))

    async def holders(self) -> list[Holder]:
        return await self._read(lambda c: holders.holders(c, self._liveness))

    async def pending_requests(self, holder: HolderId) -> list[PendingRequests]:
        return await self._read(lambda c: queries.calls(c, holder))

    async def run(self, run: RunId) -> Run:
        return await self._read(lambda c: rows.run(c, run))

    async def runs(
        self, agent: AgentId | None = None, *, before: RunId | None = None, limit: int = 50
    ) -> list[Run]:
        return await self._read(lambda c: queries.runs(c, agent, before, limit))

    async def runs_like(self, prefix: str, limit: int = 2) -> list[Run]:
        return await self._read(lambda c: queries.runs_like(c, prefix, limit))

    async def run_costs(self, runs: Collection[RunId]) -> dict[RunId, Cost]:
        return await self._read(lambda c: queries.costs(c, runs)) if runs else {}

    async def process(self, process: ProcessId) -> Process:
        return await self._read(lambda c: rows.process(c, process))

    async def open_processes(self, agent: AgentId | None = None) -> list[Process]:
        return await self._read(lambda c: queries.open_processes(c, agent))

    async def events(
        self,
        after: int = 0,
        *,
        agent: AgentId | None = None,
        run: RunId | None = None,
        limit: int = PAGE,
    ) -> list[StoredEvent]:
        return await self._read(lambda c: queries.events(c, after, agent, run, limit))

    async def last_events(
        self, *, agent: AgentId | None = None, run: RunId | None = None, limit: int = 50
    ) -> list[StoredEvent]:
        return await self._read(lambda c: queries.last_events(c, agent, run, limit))

    async def lane_snapshots(
        self, lanes: Mapping[AgentId, RunId | None]
    ) -> dict[AgentId, LaneSnapshot]:
        return await self._read(lambda c: snapshot.known(c, lanes))

    async def usage(
        self, *, agent: AgentId | None = None, since: datetime | None = None
    ) -> UsageSum:
        return await self._read(lambda c: queries.usage(c, agent, since))

    async def approval(self, approval: ApprovalId) -> Approval:
        return await self._read(lambda c: approvals.approval(c, approval))

    async def approvals(
        self, agent: AgentId | None = None, *, include_settled: bool = False, limit: int = PAGE
    ) -> list[Approval]:
        return await self._read(lambda c: approvals.page(c, agent, include_settled, limit))

    async def approvals_like(self, part: str, limit: int = 2) -> list[Approval]:
        return await self._read(lambda c: approvals.like(c, part, limit))

    async def usage_by(
        self,
        by: Grouping,
        *,
        agent: AgentId | None = None,
        since: datetime | None = None,
        zone: tzinfo = UTC,
    ) -> dict[str, UsageSum]:
        return await self._read(lambda c: queries.usage_by(c, by, agent, since, zone))

    async def get(self, key: str) -> bytes | None:
        return await self._read(lambda c: kv.recall(c, key))

    async def gates(self, *, include_others: bool = False) -> list[Gate]:
        accounts = None if include_others else self.accounts
        return await self._read(lambda c: gates.gates(c, accounts))

    async def check(self) -> list[str]:
        """What SQLite finds wrong with its file; nothing is wrong when the list is empty."""
        return await self._read(_quick_check)

    async def _read(self, query: Callable[[Connection], T]) -> T:
        self._require_open()
        return await anyio.to_thread.run_sync(self._query, query, limiter=self._reading)

    def _query(self, query: Callable[[Connection], T]) -> T:
        with translated(self._path):
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


def _quick_check(connection: Connection) -> list[str]:
    found = [str(row[0]) for row in connection.execute("PRAGMA quick_check")]
    return [] if found == ["ok"] else found
