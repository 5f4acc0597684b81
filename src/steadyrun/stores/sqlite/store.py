"""The store contract over one SQLite file.

Writes go through one thread (`Writer`), reads through a few connections in worker threads; the
event loop never touches the database. What is acknowledged to somebody outside is committed with
synchronous=FULL, event batches with NORMAL: their journal is on disk already.
"""

import asyncio
import errno
import os
import platform
import sqlite3
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import anyio
import anyio.to_thread

from steadyrun.clock import Clock, SystemClock
from steadyrun.errors import NameTaken, StoreFailed
from steadyrun.model.agent import Agent
from steadyrun.model.event import StoredEvent
from steadyrun.model.gate import Gate
from steadyrun.model.ids import AgentId, HolderId, Ids, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Change, Run
from steadyrun.model.secret import Scrubber
from steadyrun.model.session import ResumeToken, Session
from steadyrun.model.usage import UsageSum
from steadyrun.store import PAGE, Accepted, Appended, Batch, Hints, Holder, Lane
from steadyrun.stores.sqlite import lanes, reads, rows, runs, schema
from steadyrun.stores.sqlite.faults import translated
from steadyrun.stores.sqlite.presence import Presence
from steadyrun.stores.sqlite.rows import Connection, maybe_micros, micros
from steadyrun.stores.sqlite.runs import Written
from steadyrun.stores.sqlite.turnstile import PATIENCE_SECONDS
from steadyrun.stores.sqlite.watcher import Watcher
from steadyrun.stores.sqlite.writer import Writer
from steadyrun.version import __version__

T = TypeVar("T")

DATABASE = "steadyrun.db"
_MOST_READERS = 4


class SqliteStore:
    """One process's view of the record in `home`. Open it on the event loop that uses it."""

    def __init__(
        self, home: Path, clock: Clock, ids: Ids, hints: Hints, scrubber: Scrubber
    ) -> None:
        self.hints = hints
        self._path = home / DATABASE
        self._clock = clock
        self._ids = ids
        self._scrubber = scrubber
        self._presence = Presence(home / "holders")
        self._readers: list[sqlite3.Connection] = []
        self._reading = anyio.CapacityLimiter(_MOST_READERS)
        self._writer: Writer | None = None
        self._watcher: Watcher | None = None

    @classmethod
    async def open(
        cls,
        home: Path,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        hints: Hints | None = None,
        scrubber: Scrubber | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> Self:
        """Open the store of a home directory, making both if need be.

        A write waits up to `patience_seconds` for other processes, then raises `StoreBusy`.
        """
        clock = clock or SystemClock()
        ids, hints = ids or Ids(clock.now), hints or Hints()
        store = cls(home, clock, ids, hints, scrubber or Scrubber())
        loop = asyncio.get_running_loop()
        await anyio.to_thread.run_sync(store._open, loop, patience_seconds)
        hints.on_watch = store._start_watching
        return store

    def _open(self, loop: asyncio.AbstractEventLoop, patience_seconds: float) -> None:
        _prepare(self._path)
        self._writer = Writer(
            self._path, loop, patience_seconds=patience_seconds, heard=self.hints.ring_all
        )

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._close, writer)

    def _close(self, writer: Writer) -> None:
        if self._watcher:
            self._watcher.close()
        while self._readers:
            self._readers.pop().close()
        writer.close()
        self._presence.vanish_all()

    # -- agents and sessions

    async def add_agent(self, agent: Agent) -> None:
        await self._accept(partial(_add_agent, agent=agent), agent.id)

    async def agent(self, name: str) -> Agent:
        return await self._read(lambda c: reads.agent(c, name))

    async def agents(self) -> list[Agent]:
        return await self._read(reads.agents)

    async def token(self, provider: str, token: str) -> ResumeToken | None:
        return await self._read(lambda c: reads.token(c, provider, token))

    async def session(self, agent: AgentId, provider: str) -> Session | None:
        return await self._read(lambda c: rows.maybe_session(c, agent, provider))

    # -- items

    async def accept(self, message: Message) -> Accepted:
        now, item = self._clock.now(), self._ids.item()
        return await self._accept(lambda c: lanes.accept(c, item, message, now), message.agent)

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
        return await self._read(lambda c: reads.items(c, agent, include_settled, before, limit))

    async def cancel(self, item: ItemId) -> Item:
        now = self._clock.now()
        cancelled = await self._accept(lambda c: lanes.cancel(c, item, now))
        self.hints.ring([cancelled.agent])
        return cancelled

    # -- lanes

    async def lane(self, agent: AgentId) -> Lane:
        return await self._read(lambda c: rows.lane(c, agent))

    async def pause(self, agent: AgentId) -> None:
        await self._accept(lambda c: lanes.set_paused(c, agent, True), agent)

    async def resume(self, agent: AgentId) -> None:
        await self._accept(lambda c: lanes.set_paused(c, agent, False), agent)

    async def join(self, kind: str) -> Holder:
        now = self._clock.now()
        holder = Holder(self._ids.holder(), kind, platform.node(), __version__, now)
        with translated(self._path):
            self._presence.appear(holder.id)
        await self._accept(partial(_add_holder, holder=holder))
        return holder

    async def leave(self, holder: HolderId) -> None:
        await self._accept(partial(_remove_holder, holder=holder))
        self._presence.vanish(holder)

    async def holders(self) -> list[Holder]:
        return await self._read(reads.holders)

    async def claim(
        self, holder: HolderId, limit: int = 1, *, agent: AgentId | None = None
    ) -> list[Claim]:
        now = self._clock.now()
        claims = await self._accept(lambda c: lanes.claim(c, holder, limit, agent, now))
        self.hints.ring(claim.agent for claim in claims)
        return claims

    async def take(self, claim: Claim, limit: int = 1) -> list[Item]:
        now = self._clock.now()
        return await self._accept(lambda c: lanes.take(c, claim, limit, now), claim.agent)

    async def absorb(self, claim: Claim, item: ItemId) -> None:
        await self._accept(lambda c: lanes.absorb(c, claim, item), claim.agent)

    async def give_back(self, claim: Claim, item: ItemId) -> None:
        now = self._clock.now()
        await self._accept(lambda c: lanes.give_back(c, claim, item, now), claim.agent)

    async def release(self, claim: Claim) -> Item:
        now = self._clock.now()
        return await self._accept(lambda c: lanes.release(c, claim, now), claim.agent)

    async def go_on(self, claim: Claim, to: ItemId | Message) -> Claim:
        now, new = self._clock.now(), self._ids.item()
        return await self._accept(lambda c: lanes.go_on(c, claim, to, new, now), claim.agent)

    async def settle(
        self, claim: Claim, change: Change | None = None, batch: Batch | None = None
    ) -> Item:
        now, scrubber = self._clock.now(), self._scrubber
        written = Written.of(batch, scrubber) if batch else None
        return await self._accept(
            lambda c: runs.settle(c, claim, change, written, now, scrubber), claim.agent
        )

    async def reap(self, holder: HolderId) -> list[Claim]:
        claims = await self._accept(lambda c: lanes.reap(c, holder, self._presence))
        self.hints.ring(claim.agent for claim in claims)
        return claims

    # -- runs, processes, events

    async def change(self, claim: Claim, run: RunId, change: Change) -> Run:
        return await self._accept(
            lambda c: runs.change(c, claim, run, change, self._scrubber), claim.agent
        )

    async def run(self, run: RunId) -> Run:
        return await self._read(lambda c: rows.run(c, run))

    async def runs(
        self, agent: AgentId | None = None, *, before: RunId | None = None, limit: int = 50
    ) -> list[Run]:
        return await self._read(lambda c: reads.runs(c, agent, before, limit))

    async def runs_like(self, prefix: str, limit: int = 2) -> list[Run]:
        return await self._read(lambda c: reads.runs_like(c, prefix, limit))

    async def open_process(self, claim: Claim, process: Process) -> None:
        await self._accept(lambda c: runs.open_process(c, claim, process), claim.agent)

    async def close_process(self, claim: Claim, process: ProcessId) -> None:
        now = self._clock.now()
        await self._accept(lambda c: runs.close_process(c, claim, process, now), claim.agent)

    async def process(self, process: ProcessId) -> Process:
        return await self._read(lambda c: rows.process(c, process))

    async def open_processes(self, agent: AgentId | None = None) -> list[Process]:
        return await self._read(lambda c: reads.open_processes(c, agent))

    async def append(self, claim: Claim, batch: Batch) -> Appended:
        written = Written.of(batch, self._scrubber)
        appended = await self._writing().write(
            lambda c: runs.append(c, claim, written, self._scrubber),
            is_durable=False,
            lane=claim.agent,
        )
        self.hints.ring([claim.agent], only_events=True)
        return appended

    async def events(
        self,
        after: int = 0,
        *,
        agent: AgentId | None = None,
        run: RunId | None = None,
        limit: int = PAGE,
    ) -> list[StoredEvent]:
        return await self._read(lambda c: reads.events(c, after, agent, run, limit))

    async def last_events(
        self, *, agent: AgentId | None = None, run: RunId | None = None, limit: int = 50
    ) -> list[StoredEvent]:
        return await self._read(lambda c: reads.last_events(c, agent, run, limit))

    async def usage(
        self,
        *,
        agent: AgentId | None = None,
        provider: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> UsageSum:
        return await self._read(lambda c: reads.usage(c, agent, provider, since, until))

    # -- gates

    async def set_gate(self, gate: Gate) -> None:
        await self._accept(partial(_set_gate, gate=gate))
        self.hints.ring_all()

    async def gates(self) -> list[Gate]:
        return await self._read(reads.gates)

    async def check(self) -> list[str]:
        """What SQLite finds wrong with its file; nothing is wrong when the list is empty."""
        return await self._read(_quick_check)

    # -- how verbs reach the database

    async def _accept(self, work: Callable[[Connection], T], agent: AgentId | None = None) -> T:
        """Write what somebody relies on from now on, then tell those who wait for it."""
        result = await self._writing().write(work, is_durable=True, lane=agent)
        if agent is not None:
            self.hints.ring([agent])
        return result

    async def _read(self, query: Callable[[Connection], T]) -> T:
        self._writing()
        return await anyio.to_thread.run_sync(self._query, query, limiter=self._reading)

    def _query(self, query: Callable[[Connection], T]) -> T:
        with translated(self._path):
            connection = self._readers.pop() if self._readers else schema.connect_reader(self._path)
            try:
                return query(connection)
            finally:
                self._readers.append(connection)

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StoreFailed("the store has been closed", path=self._path)
        return self._writer

    def _start_watching(self) -> None:
        """Listen to other processes from the first watch on: a quick command pays nothing."""
        if self._watcher is None:
            log = self._path.with_name(self._path.name + "-wal")
            writer = self._writing()
            self._watcher = Watcher(log, writer.look, lambda: writer.commits)


def _prepare(path: Path) -> None:
    with translated(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(path)
        schema.prepare(path)


def _make_private(path: Path) -> None:
    """Make the file: nobody else may read what agents were told; its log gets the same mode.

    One that exists is never opened here. Closing it would end every lock this process has on it
    (POSIX), and another process could then remove the log while we write to it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None


_NAME_IN_USE = """
    SELECT 1 FROM agents WHERE name = :name OR agent_id = :name OR agent_id = :agent
"""
_ADD_AGENT = "INSERT INTO agents VALUES (:agent, :name, :provider, :body)"
_ADD_LANE = "INSERT INTO lanes VALUES (:agent, 'idle', 0, NULL, NULL, 0, 0, 0)"


def _add_agent(connection: Connection, agent: Agent) -> None:
    values = {"agent": agent.id, "name": agent.name}
    if rows.one(connection, _NAME_IN_USE, values):
        raise NameTaken(agent.name)
    body = rows.encode(agent)
    connection.execute(_ADD_AGENT, {**values, "provider": agent.provider, "body": body})
    connection.execute(_ADD_LANE, {"agent": agent.id})


_ADD_HOLDER = "INSERT INTO holders VALUES (:holder, :kind, :machine, :version, :now)"
_REMOVE_HOLDER = "DELETE FROM holders WHERE holder_id = :holder"


def _add_holder(connection: Connection, holder: Holder) -> None:
    values = {
        "holder": holder.id,
        "kind": holder.kind,
        "machine": holder.machine,
        "version": holder.version,
        "now": micros(holder.joined_at),
    }
    connection.execute(_ADD_HOLDER, values)


def _remove_holder(connection: Connection, holder: HolderId) -> None:
    connection.execute(_REMOVE_HOLDER, {"holder": holder})


_SET_GATE = "INSERT OR REPLACE INTO gates VALUES (:provider, :account, :until, :reason)"


def _set_gate(connection: Connection, gate: Gate) -> None:
    values = {
        "provider": gate.provider,
        "account": gate.account,
        "until": maybe_micros(gate.closed_until),
        "reason": gate.reason,
    }
    connection.execute(_SET_GATE, values)


def _quick_check(connection: Connection) -> list[str]:
    found = [str(row[0]) for row in connection.execute("PRAGMA quick_check")]
    return [] if found == ["ok"] else found
