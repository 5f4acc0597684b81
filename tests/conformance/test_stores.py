"""Every engine keeps every promise of the store."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.to_thread
import msgspec
import pytest

from steadyrun.lib.notifier import Notifier
from steadyrun.model.gate import Accounts
from steadyrun.model.ids import AgentId, Ids
from steadyrun.model.item import Claim
from steadyrun.model.secret import Scrubber, Secret
from steadyrun.store import MaintainedStore
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.stores.memory.tables import Tables
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.clock import FakeClock
from steadyrun.testing.store_conformance import DURABLE_PROMISES, PROMISES, Promise
from steadyrun.testing.store_conformance.fixtures import claim_lanes

CHILD = Path(__file__).parents[1] / "children" / "claim_one_lane.py"
# Quotes, a line break and letters beyond ASCII: every form of it in JSON is another.
CANARY = 'canary "7f3a"\n-ß-🐤'


class MemoryHarness:
    """Stores over the same tables, which share one notifier."""

    def __init__(self, home: Path) -> None:
        self.clock = FakeClock()
        self.ids = Ids(self.clock.now)
        self.secret = Secret(CANARY)
        self._tables = Tables()
        self._hints = Notifier()

    async def open(
        self, hints: Notifier | None = None, *, accounts: Accounts | None = None
    ) -> MaintainedStore:
        return MemoryStore(
            self.clock,
            tables=self._tables,
            hints=hints or self._hints,
            scrubber=Scrubber([self.secret]),
            accounts=accounts,
        )

    async def claim_and_exit(self, agent: AgentId | None = None) -> Claim:
        store = await self.open()
        holder = await store.join("child")
        [claim] = await claim_lanes(store, holder.id, agent=agent)
        self._tables.kill(holder.id)
        return claim

    @asynccontextmanager
    async def pause_writes(self) -> AsyncIterator[None]:
        yield

    async def close(self) -> None:
        """There is nothing to close."""


class SqliteHarness:
    """Stores on one home. A dead holder is a real process that was killed."""

    def __init__(self, home: Path) -> None:
        self.clock = FakeClock()
        self.ids = Ids(self.clock.now)
        self.secret = Secret(CANARY)
        self._home = home
        self._opened: list[SqliteStore] = []

    async def open(
        self, hints: Notifier | None = None, *, accounts: Accounts | None = None
    ) -> MaintainedStore:
        store = await SqliteStore.open(
            self._home,
            clock=self.clock,
            hints=hints,
            scrubber=Scrubber([self.secret]),
            accounts=accounts,
        )
        self._opened.append(store)
        return store

    async def claim_and_exit(self, agent: AgentId | None = None) -> Claim:
        now = self.clock.now()
        return await anyio.to_thread.run_sync(_claim_and_die, self._home, now, agent)

    @asynccontextmanager
    async def pause_writes(self) -> AsyncIterator[None]:
        connection = sqlite3.connect(self._home / "steadyrun.db", isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
        finally:
            connection.close()

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


Engine: TypeAlias = type[MemoryHarness] | type[SqliteHarness]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("engine", [MemoryHarness, SqliteHarness])
def test_store_keeps_its_promise(engine: Engine, promise: Promise, tmp_path: Path) -> None:
    anyio.run(_keep, engine, promise, tmp_path)


@pytest.mark.parametrize("promise", DURABLE_PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("engine", [SqliteHarness])
def test_durable_store_keeps_its_promise(engine: Engine, promise: Promise, tmp_path: Path) -> None:
    anyio.run(_keep, engine, promise, tmp_path)


@pytest.mark.parametrize("promise", [p for p in PROMISES if "secret" in p.__name__])
def test_no_file_of_the_sqlite_store_has_the_secret(promise: Promise, tmp_path: Path) -> None:
    anyio.run(_keep, SqliteHarness, promise, tmp_path)

    forms = CANARY.encode(), msgspec.json.encode(CANARY)[1:-1]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert not any(form in file.read_bytes() for form in forms), file


async def _keep(engine: Engine, promise: Promise, home: Path) -> None:
    harness = engine(home)
    try:
        await promise(harness)
    finally:
        with anyio.CancelScope(shield=True):
            await harness.close()


def _claim_and_die(home: Path, now: datetime, agent: AgentId | None) -> Claim:
    command = [sys.executable, str(CHILD), str(home), now.isoformat(), *filter(None, [agent])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        line = child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
    return msgspec.json.decode(line, type=Claim)
