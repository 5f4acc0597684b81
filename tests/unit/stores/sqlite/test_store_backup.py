"""A copy that was made while the store was in use is a store, with all that was acknowledged."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Message
from steadyrun.stores.sqlite import DATABASE, SqliteStore

AGENT = Agent(AgentId("agt_1"), "ada", ("scripted",), "/")
Copy = Callable[[Path, Path], None]


def by_vacuum(source: Path, copy: Path) -> None:
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))


def by_backup(source: Path, copy: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(copy)) as new:
        old.backup(new)


@pytest.mark.parametrize("copy", [by_vacuum, by_backup])
def test_copy_of_a_store_in_use_is_complete_and_usable(tmp_path: Path, copy: Copy) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()

    async def write() -> None:
        store = await SqliteStore.open(first)
        try:
            await store.add_agent(AGENT)
            await store.accept(Message(AGENT.id, "before"))
            copy(first / DATABASE, second / DATABASE)
            await store.accept(Message(AGENT.id, "after"))
        finally:
            await store.close()

    async def look() -> None:
        store = await SqliteStore.open(second)
        try:
            assert await store.check() == []
            await store.accept(Message(AGENT.id, "anew"))
            items = await store.items(agent=AGENT.id)
            assert sorted(item.text for item in items) == ["anew", "before"]
        finally:
            await store.close()

    anyio.run(write)
    anyio.run(look)
    with closing(sqlite3.connect(second / DATABASE)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
