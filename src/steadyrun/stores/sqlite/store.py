"""The store contract over one SQLite file.

Writes go through one thread (`Writer`), reads through a few connections in worker threads; the
event loop never touches the database. What is acknowledged to somebody outside is committed with
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
from steadyrun.store import MOST_TAKEN_BYTES, AbandonedLane, Accepted, Holder, Start, Started
from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.db.change_watcher import ChangeWatcher
from steadyrun.stores.sqlite.db.errors import translated
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
    warm,
)
from steadyrun.stores.sqlite.sql.rows import Connection
from steadyrun.stores.sqlite.sql.runs import Written
from steadyrun.version import __version__

T = TypeVar("T")

DATABASE = "steadyrun.db"


class SqliteStore(SqliteReads):
    """One process's view of the record in `home`. Open it on the event loop that uses it."""

    def __init__(
        self, home: Path, clock: Clock, ids: Ids, hints: Notifier, terms: StoreSettings
    ) -> None:
        super().__init__(home / DATABASE, Liveness(home / "holders"), terms.accounts)
        self.hints = hints
        self._clock = clock
        self._ids = ids
        self._terms = terms
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
        """Open the store of a home directory, making both if need be.

        A write waits up to `patience_seconds` for other processes, then raises `StoreBusy`.
        """
        clock = clock or SystemClock()
        ids, hints = ids or Ids(clock.now), hints or Notifier()
        accounts = {} if accounts is None else accounts
        terms = StoreSettings(scrubber or Scrubber(), rules or GateRules(), accounts)
        store = cls(home, clock, ids, hints, terms)
        loop = asyncio.get_running_loop()
        await anyio.to_thread.run_sync(store._open, loop, patience_seconds)
        hints.on_watch = store._start_watching
        return store

    def _open(self, loop: asyncio.AbstractEventLoop, patience_seconds: float) -> None:
        _prepare(self._path)
        self._writer = Writer(
            self._path, loop, patience_seconds=patience_seconds, heard=self.hints.notify_all
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
        self._liveness.vanish_all()

    # -- agents and sessions

    async def add_agent(self, agent: Agent) -> None:
        await self._accept(lambda c: agents.add(c, agent), agent.id)

    async def start_direct(
        self,
        holder: HolderId,
        agent: Agent,
        message: Message,
        opened: Callable[[Agent, Item], Created],
    ) -> Started:
        now, item = self._clock.now(), self._ids.new_item()

        def hire(connection: Connection) -> Started:
            holders.require(connection, holder)
            agents.hire(connection, agent, message, item, now)
            started = self._begin(connection, Start(holder, opened), 1, agent.id, now)
            if not started:
                raise ChangeRefused("hire", found=f"the gate of {agent.provider} is closed")
            return started[0]

        return await self._accept(hire, agent.id, Hint.STATE)

    async def set_agent(self, agent: Agent, *, was: Agent) -> None:
        await self._accept(lambda c: agents.change(c, agent, was), agent.id)

    async def remove_agent(self, agent: AgentId) -> None:
        now = self._clock.now()
        await self._accept(lambda c: agents.remove(c, agent, now), agent)

    async def retire_token(self, hold: Lease, provider: str, reason: str) -> None:
        await self._accept(
            lambda c: runs.retire_token(c, hold, provider, reason, self._terms),
            hold.agent,
            Hint.STATE,
        )

    # -- items

    async def accept(self, message: Message, start: Start | None = None) -> Accepted:
        now, item = self._clock.now(), self._ids.new_item()

        def accept(connection: Connection) -> Accepted:
            accepted = items.accept(connection, item, message, now)
            if start is None:
                return accepted
            started = self._begin(connection, start, 1, message.agent, now)
            return accepted.begun(started[0]) if started else accepted

        accepted = await self._accept(accept)
        # What is started already is nobody's work any more.
        self.hints.notify([message.agent], Hint.STATE if accepted.started else Hint.WORK)
        return accepted

    async def cancel(self, item: ItemId, reason: str | None = None) -> Item:
        now, why = (
            self._clock.now(),
            build_cancel_fact(reason and self._terms.scrubber.clean(reason)),
        )
        cancelled = await self._accept(lambda c: items.cancel(c, item, why, now))
        self.hints.notify([cancelled.agent])
        return cancelled

    # -- lanes

    async def pause(self, agent: AgentId) -> None:
        await self._accept(lambda c: approvals.pause(c, agent), agent)

    async def resume(self, agent: AgentId) -> None:
        await self._accept(lambda c: items.set_paused(c, agent, False), agent)

    async def join(self, kind: str) -> Holder:
        now = self._clock.now()
        holder = Holder(self._ids.new_holder(), kind, platform.node(), __version__, now)
        with translated(self._path):
            self._liveness.acquire(holder.id)
        await self._accept(lambda c: holders.add(c, holder))
        return holder

    async def leave(self, holder: HolderId) -> None:
        await self._accept(lambda c: holders.remove(c, holder))
        self._liveness.release(holder)

    async def claim(
        self, holder: HolderId, limit: int = 1, *, agent: AgentId | None = None
    ) -> list[Claim]:
        now = self._clock.now()

        def claim(connection: Connection) -> list[Claim]:
            holders.require(connection, holder)
            shut = gates.shut(connection, now, self._terms)
            chosen = items.claim(connection, holder, limit, agent, now, shut)
            return [each.claim for each in chosen]

        claims = await self._accept(claim)
        self.hints.notify((claim.agent for claim in claims), Hint.STATE)
        return claims

    async def start(
        self,
        holder: HolderId,
        opened: Callable[[Agent, Item], Created],
        limit: int = 1,
        *,
        agent: AgentId | None = None,
        but_not: Collection[str] = (),
    ) -> list[Started]:
        now, start = self._clock.now(), Start(holder, opened, but_not)
        started = await self._accept(lambda c: self._begin(c, start, limit, agent, now))
        self.hints.notify((each.agent.id for each in started), Hint.STATE)
        return started

    def _begin(
        self,
        connection: Connection,
        start: Start,
        limit: int,
        agent: AgentId | None,
        now: datetime,
    ) -> list[Started]:
        holders.require(connection, start.holder)
        return claims.start(connection, start, limit, agent, now, self._terms)

    async def offer_followups(
        self, claim: Claim, limit: int = 1, *, most_bytes: int = MOST_TAKEN_BYTES
    ) -> list[Item]:
        now = self._clock.now()
        return await self._accept(
            lambda c: offers.take(c, claim, limit, most_bytes, now), claim.agent, Hint.STATE
        )

    async def absorb(self, claim: Claim, item: ItemId) -> None:
        await self._accept(lambda c: offers.absorb(c, claim, item), claim.agent, Hint.STATE)

    async def return_offer(self, claim: Claim, item: ItemId) -> None:
        now = self._clock.now()
        await self._accept(lambda c: offers.give_back(c, claim, item, now), claim.agent)

    async def release(self, claim: Claim) -> Item:
        now = self._clock.now()
        return await self._accept(lambda c: items.release(c, claim, now), claim.agent)

    async def continue_with(self, claim: Claim, to: ItemId | Message) -> Claim:
        now, new = self._clock.now(), self._ids.new_item()
        return await self._accept(lambda c: offers.go_on(c, claim, to, new, now), claim.agent)

    async def retry(self, claim: Claim, *, spends: bool) -> Claim:
        now = self._clock.now()
        return await self._accept(lambda c: items.again(c, claim, spends, now), claim.agent)

    async def settle(
        self, claim: Claim, change: RunChange | None = None, batch: Batch | None = None
    ) -> Item:
        now, terms = self._clock.now(), self._terms
        written = Written.of(batch, terms.scrubber) if batch else None
        return await self._accept(
            lambda c: runs.settle(c, claim, change, written, now, terms), claim.agent
        )

    async def rest(
        self, claim: Claim, change: RunChange | None = None, batch: Batch | None = None
    ) -> Item:
        now, terms = self._clock.now(), self._terms
        written = Written.of(batch, terms.scrubber) if batch else None
        return await self._accept(
            lambda c: runs.rest(c, claim, change, written, now, terms), claim.agent
        )

    async def start_unprompted(self, hold: Lease, message: Message) -> Claim:
        now, new = self._clock.now(), self._ids.new_item()
        return await self._accept(lambda c: warm.wake(c, hold, message, new, now), hold.agent)

    async def release_lane(self, hold: Lease) -> None:
        await self._accept(lambda c: warm.let_go(c, hold), hold.agent)

    async def reap(self, holder: HolderId, *, lasting: bool = True) -> list[AbandonedLane]:
        liveness = self._liveness
        lost = await self._accept(lambda c: holders.reap(c, holder, liveness, lasting=lasting))
        self.hints.notify((each.agent.id for each in lost), Hint.STATE)
        return lost

    # -- runs, processes, events

    async def change(self, claim: Claim, run: RunId, change: RunChange) -> Run:
        return await self._accept(
            lambda c: runs.change(c, claim, run, change, self._terms), claim.agent, Hint.STATE
        )

    async def open_process(self, hold: Lease, process: Process) -> None:
        await self._accept(lambda c: runs.open_process(c, hold, process), hold.agent, Hint.STATE)

    async def close_process(self, hold: Lease, process: ProcessId) -> None:
        now = self._clock.now()
        await self._accept(
            lambda c: runs.close_process(c, hold, process, now), hold.agent, Hint.STATE
        )

    async def append(self, hold: Lease, batch: Batch) -> AppendResult:
        written = Written.of(batch, self._terms.scrubber)
        appended = await self._writing().write(
            lambda c: runs.append(c, hold, written, self._terms),
            is_durable=False,
            lane=hold.agent,
        )
        self.hints.notify([hold.agent], Hint.EVENTS)
        return appended

    # -- approvals

    async def answer(self, approval: ApprovalId, answer: ApprovalAnswer) -> Approval:
        clean = replace(answer, reason=self._terms.scrubber.clean(answer.reason))
        answered = await self._accept(lambda c: approvals.answer(c, approval, clean, self._terms))
        self.hints.notify([answered.agent])
        return answered

    # -- gates

    async def update_gate(
        self, provider: str, news: GateReport, *, account: str | None = None
    ) -> Gate:
        now = self._clock.now()
        told = await self._accept(
            lambda c: gates.tell(c, provider, account, news, now, self._terms)
        )
        self.hints.notify_all()
        return told

    # -- what else is to be remembered

    async def put(self, key: str, value: bytes) -> None:
        await self._accept(lambda c: kv.remember(c, key, value))

    # -- how verbs reach the database

    async def _accept(
        self,
        work: Callable[[Connection], T],
        agent: AgentId | None = None,
        hint: Hint = Hint.WORK,
    ) -> T:
        """Write what somebody relies on from now on, then tell those who wait for it."""
        result = await self._writing().write(work, is_durable=True, lane=agent)
        if agent is not None:
            self.hints.notify([agent], hint)
        return result

    def _writing(self) -> Writer:
        self._require_open()
        assert self._writer
        return self._writer

    def _start_watching(self) -> None:
        """Listen to other processes from the first watch on: a quick command pays nothing."""
        if self._watcher is None:
            log = self._path.with_name(self._path.name + "-wal")
            writer = self._writing()
            self._watcher = ChangeWatcher(log, writer.look, lambda: writer.commits)


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
