"""The store contract over one SQLite file.

Writes go through one thread (`Writer`), reads through a few connections in worker threads; the
event loop never touches the database. What the store acknowledges to a caller is committed with
synchronous=FULL, event batches with NORMAL: their journal is on disk already.
"""

import asyncio
import errno
import os
import platform
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Self, TypeVar

import anyio
import anyio.to_thread
from msgspec.structs import replace

from steadyrun.errors import ChangeRefused
from steadyrun.lib.clock import Clock, SystemClock
from steadyrun.lib.notifier import Hint, Notifier
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval, ApprovalAnswer
from steadyrun.model.batch import AppendResult, Batch
from steadyrun.model.gate import Accounts, Gate, GateReport, GateRules
from steadyrun.model.ids import AgentId, ApprovalId, HolderId, Ids, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Lease, Message, build_cancel_fact
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Run, RunChange
from steadyrun.model.secret import Scrubber
from steadyrun.store import MAX_OFFER_BYTES, AbandonedLane, Accepted, Holder, Start, Started
from steadyrun.stores import rules
from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.db.change_watcher import ChangeWatcher
from steadyrun.stores.sqlite.db.errors import translate_errors
from steadyrun.stores.sqlite.db.liveness import Liveness
from steadyrun.stores.sqlite.db.settings import StoreSettings
from steadyrun.stores.sqlite.db.write_lock import PATIENCE_SECONDS
from steadyrun.stores.sqlite.db.writer import Writer
from steadyrun.stores.sqlite.reads import SqliteReads
from steadyrun.stores.sqlite.sql import (
    agents,
    approvals,
    claims,
    gates,
    holders,
    items,
    kv,
    offers,
    runs,
)
from steadyrun.stores.sqlite.sql.rows import Connection
from steadyrun.stores.sqlite.sql.runs import EncodedBatch, LastWrites
from steadyrun.version import __version__

T = TypeVar("T")

DATABASE = "steadyrun.db"


class SqliteBase(SqliteReads):
    """One process's view of the record in `home`, and how its verbs write."""

    def __init__(
        self, home: Path, clock: Clock, ids: Ids, hints: Notifier, settings: StoreSettings
    ) -> None:
        super().__init__(home / DATABASE, Liveness(home / "holders"), settings.accounts)
        self.hints = hints
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._writer: Writer | None = None
        self._watcher: ChangeWatcher | None = None

    @classmethod
    async def open(  # noqa: PLR0913 (each has a default but the home)
        cls,
        home: Path,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        hints: Notifier | None = None,
        scrubber: Scrubber | None = None,
        rules: GateRules | None = None,
        accounts: Accounts | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> Self:
        """Open the store of a home directory on the event loop that uses it. Missing files are
        created.

        A write waits up to `patience_seconds` for other processes, then raises `StoreBusy`.
        """
        clock = clock or SystemClock()
        ids, hints = ids or Ids(clock.now), hints or Notifier()
        accounts = {} if accounts is None else accounts
        settings = StoreSettings(scrubber or Scrubber(), rules or GateRules(), accounts)
        store = cls(home, clock, ids, hints, settings)
        loop = asyncio.get_running_loop()
        await anyio.to_thread.run_sync(store._open, loop, patience_seconds)
        hints.on_watch = store._start_watching
        return store

    def _open(self, loop: asyncio.AbstractEventLoop, patience_seconds: float) -> None:
        _prepare(self._path)
        self._writer = Writer(
            self._path, loop, patience_seconds=patience_seconds, on_change=self.hints.notify_all
        )
        self._is_open = True

    async def close(self) -> None:
        writer, self._writer, self._is_open = self._writer, None, False
        if writer is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._close, writer)

    def _close(self, writer: Writer) -> None:
        if self._watcher:
            self._watcher.close()
        self._close_readers()
        writer.close()
        self._liveness.release_all()

    async def _write(
        self,
        work: Callable[[Connection], T],
        agent: AgentId | None = None,
        hint: Hint = Hint.WORK,
    ) -> T:
        """Write durably, then notify those that wait for news of the agent."""
        result = await self._require_writer().write(work, is_durable=True, lane=agent)
        if agent is not None:
            self.hints.notify([agent], hint)
        return result

    def _require_writer(self) -> Writer:
        self._require_open()
        assert self._writer
        return self._writer

    def _start_watching(self) -> None:
        """Watch for writes of other processes from the first watch on: a quick command pays
        nothing for it."""
        if self._watcher is None:
            log = self._path.with_name(self._path.name + "-wal")
            writer = self._require_writer()
            self._watcher = ChangeWatcher(log, writer.check_for_changes, lambda: writer.commits)


class SqliteAgents(SqliteBase):
    """The writing verbs of `AgentStore`."""

    async def add_agent(self, agent: Agent) -> None:
        await self._write(lambda c: agents.add(c, agent), agent.id)

    async def set_agent(self, agent: Agent, *, was: Agent) -> None:
        await self._write(lambda c: agents.change(c, agent, was), agent.id)

    async def remove_agent(self, agent: AgentId) -> None:
        now = self._clock.now()
        await self._write(lambda c: agents.remove(c, agent, now), agent)

    async def retire_token(self, lease: Lease, provider: str, reason: str) -> None:
        await self._write(
            lambda c: runs.retire_token(c, lease, provider, reason, self._settings),
            lease.agent,
            Hint.STATE,
        )

    async def pause(self, agent: AgentId) -> None:
        await self._write(lambda c: approvals.pause(c, agent), agent)

    async def resume(self, agent: AgentId) -> None:
        await self._write(lambda c: items.set_paused(c, agent, False), agent)


class SqliteQueue(SqliteBase):
    """The writing verbs of `QueueStore`."""

    async def accept(self, message: Message, start: Start | None = None) -> Accepted:
        now, item = self._clock.now(), self._ids.make_item()

        def accept(connection: Connection) -> Accepted:
            accepted = items.accept(connection, item, message, now)
            if start is None:
                return accepted
            started = self._start_ready(connection, start, 1, message.agent, now)
            return accepted.with_started(started[0]) if started else accepted

        accepted = await self._write(accept)
        # An item that is started already is no work for another holder.
        self.hints.notify([message.agent], Hint.STATE if accepted.started else Hint.WORK)
        return accepted

    async def cancel(self, item: ItemId, reason: str | None = None) -> Item:
        now, why = (
            self._clock.now(),
            build_cancel_fact(reason and self._settings.scrubber.clean(reason)),
        )
        cancelled = await self._write(lambda c: items.cancel(c, item, why, now))
        self.hints.notify([cancelled.agent])
        return cancelled

    async def join(self, kind: str) -> Holder:
        now = self._clock.now()
        holder = Holder(self._ids.make_holder(), kind, platform.node(), __version__, now)
        with translate_errors(self._path):
            self._liveness.acquire(holder.id)
        await self._write(lambda c: holders.add(c, holder))
        return holder

    async def leave(self, holder: HolderId) -> None:
        await self._write(lambda c: holders.remove(c, holder))
        self._liveness.release(holder)

    async def reap(self, holder: HolderId, *, lasting: bool = True) -> list[AbandonedLane]:
        liveness = self._liveness
        abandoned = await self._write(lambda c: holders.reap(c, holder, liveness, lasting=lasting))
        self.hints.notify((each.agent.id for each in abandoned), Hint.STATE)
        return abandoned

    async def start(
        self,
        holder: HolderId,
        create_run: Callable[[Agent, Item], Created],
        limit: int = 1,
        *,
        agent: AgentId | None = None,
        excluded: Collection[str] = (),
    ) -> list[Started]:
        now, start = self._clock.now(), Start(holder, create_run, excluded)
        started = await self._write(lambda c: self._start_ready(c, start, limit, agent, now))
        self.hints.notify((each.agent.id for each in started), Hint.STATE)
        return started

    async def start_direct(
        self,
        holder: HolderId,
        agent: Agent,
        message: Message,
        create_run: Callable[[Agent, Item], Created],
    ) -> Started:
        now, item = self._clock.now(), self._ids.make_item()

        def start_direct(connection: Connection) -> Started:
            holders.require(connection, holder)
            rules.require_message_for(agent.id, message, "start_direct")
            agents.add(connection, agent)
            items.accept(connection, item, message, now)
            start = Start(holder, create_run)
            started = claims.start(connection, start, 1, agent.id, now, self._settings)
            if not started:
                found = f"the gate of {agent.provider} is closed"
                raise ChangeRefused("start_direct", found=found)
            return started[0]

        return await self._write(start_direct, agent.id, Hint.STATE)

    def _start_ready(
        self,
        connection: Connection,
        start: Start,
        limit: int,
        agent: AgentId | None,
        now: datetime,
    ) -> list[Started]:
        holders.require(connection, start.holder)
        return claims.start(connection, start, limit, agent, now, self._settings)

    async def start_unprompted(self, lease: Lease, message: Message) -> Claim:
        now, new = self._clock.now(), self._ids.make_item()
        return await self._write(
            lambda c: claims.start_unprompted(c, lease, message, new, now), lease.agent
        )

    async def release_lane(self, lease: Lease) -> None:
        now = self._clock.now()
        await self._write(lambda c: claims.release_lane(c, lease, now), lease.agent)


class SqliteRuns(SqliteBase):
    """The writing verbs of `RunStore`."""

    async def change(self, claim: Claim, run: RunId, change: RunChange) -> Run:
        return await self._write(
            lambda c: runs.change(c, claim, run, change, self._settings), claim.agent, Hint.STATE
        )

    async def open_process(self, lease: Lease, process: Process) -> None:
        await self._write(lambda c: runs.open_process(c, lease, process), lease.agent, Hint.STATE)

    async def close_process(self, lease: Lease, process: ProcessId) -> None:
        now = self._clock.now()
        await self._write(
            lambda c: runs.close_process(c, lease, process, now), lease.agent, Hint.STATE
        )

    async def offer_followups(
        self, claim: Claim, limit: int = 1, *, max_bytes: int = MAX_OFFER_BYTES
    ) -> list[Item]:
        now = self._clock.now()
        return await self._write(
            lambda c: offers.offer_followups(c, claim, limit, max_bytes, now),
            claim.agent,
            Hint.STATE,
        )

    async def absorb(self, claim: Claim, item: ItemId) -> None:
        await self._write(lambda c: offers.absorb(c, claim, item), claim.agent, Hint.STATE)

    async def return_offer(self, claim: Claim, item: ItemId) -> None:
        now = self._clock.now()
        await self._write(lambda c: offers.return_offer(c, claim, item, now), claim.agent)

    async def continue_with(self, claim: Claim, to: ItemId | Message) -> Claim:
        now, new = self._clock.now(), self._ids.make_item()
        return await self._write(
            lambda c: claims.continue_with(c, claim, to, new, now), claim.agent
        )

    async def retry(self, claim: Claim, *, spends: bool) -> Claim:
        now = self._clock.now()
        return await self._write(lambda c: claims.retry(c, claim, now, spends=spends), claim.agent)

    async def settle(
        self,
        claim: Claim,
        change: RunChange | None = None,
        batch: Batch | None = None,
        *,
        keep_warm: bool = False,
    ) -> Item:
        now, settings = self._clock.now(), self._settings
        encoded = EncodedBatch.from_batch(batch, settings.scrubber) if batch else None
        last = LastWrites(change, encoded)
        return await self._write(
            lambda c: claims.settle(c, claim, last, now, settings, keep_warm=keep_warm),
            claim.agent,
        )


class SqliteStore(SqliteAgents, SqliteQueue, SqliteRuns):
    """The store of one process over the SQLite file in its home directory."""

    async def append(self, lease: Lease, batch: Batch) -> AppendResult:
        encoded = EncodedBatch.from_batch(batch, self._settings.scrubber)
        appended = await self._require_writer().write(
            lambda c: runs.append(c, lease, encoded, self._settings),
            is_durable=False,
            lane=lease.agent,
        )
        self.hints.notify([lease.agent], Hint.EVENTS)
        return appended

    async def answer(self, approval: ApprovalId, answer: ApprovalAnswer) -> Approval:
        settings = self._settings
        clean = replace(answer, reason=settings.scrubber.clean(answer.reason))
        answered = await self._write(lambda c: approvals.answer(c, approval, clean, settings))
        self.hints.notify([answered.agent])
        return answered

    async def update_gate(
        self, provider: str, news: GateReport, *, account: str | None = None
    ) -> Gate:
        now = self._clock.now()
        gate = await self._write(
            lambda c: gates.update(c, provider, account, news, now, self._settings)
        )
        self.hints.notify_all()
        return gate

    async def put(self, key: str, value: bytes) -> None:
        await self._write(lambda c: kv.put(c, key, value))


def _prepare(path: Path) -> None:
    with translate_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(path)
        schema.prepare(path)


def _make_private(path: Path) -> None:
    """Make the file readable by its owner only, because it has what agents were sent. Its log gets
    the same mode.

    A file that exists is never opened here. Closing it would end every lock this process has on it
    (POSIX), and another process could then remove the log while this process writes to it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None
