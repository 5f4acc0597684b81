"""A replacement of the database that was cut off at any step is finished by the next opener."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from steadyrun.errors import StoreBusy
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.stores.sqlite import DATABASE, SqliteStore
from steadyrun.stores.sqlite.backup import copy_store, open_replacement


async def make_store(home: Path, name: str) -> None:
    store = await SqliteStore.open(home)
    await store.add_agent(Agent(AgentId(f"agt_{name}"), name, ("scripted",), "/"))
    await store.close()


async def read_names(home: Path) -> list[str]:
    store = await SqliteStore.open(home)
    try:
        return [agent.name for agent in await store.agents()]
    finally:
        await store.close()


def leave_log(home: Path, name: str) -> None:
    """Write to the store so that the write is in its log only, as after a kill."""
    database = home / DATABASE
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE agents SET name = ?", (name,))
        connection.commit()
        for suffix in ("", "-wal"):
            file = f"{database}{suffix}"
            shutil.copy(file, f"{file}.copy")
    for suffix in ("", "-wal"):
        Path(f"{database}{suffix}.copy").replace(f"{database}{suffix}")


async def make_decided(home: Path, new: Path) -> Path:
    """A home whose replacement was decided; return the place of the old file."""
    await make_store(home, "old")
    await make_store(new, "new")
    draft = home / "steadyrun.restored"
    draft.touch(mode=0o600)
    copy_store(new, draft)
    leave_log(home, "changed")
    os.utime(draft, (0, 0))
    return home / "steadyrun.db.replaced-19700101T000000"


def has_draft(home: Path) -> bool:
    return any(home.glob(".restore-*"))


def do_steps(steps: Sequence[Callable[[], None]]) -> None:
    for step in steps:
        step()


@pytest.mark.parametrize("steps", range(4))
async def test_decided_replacement_is_finished_by_the_next_opener(
    tmp_path: Path, steps: int
) -> None:
    home = tmp_path / "home"
    kept = await make_decided(home, tmp_path / "new")
    wal = home / "steadyrun.db-wal"
    do_steps(
        [
            lambda: os.link(home / DATABASE, kept),
            lambda: os.link(wal, f"{kept}-wal"),
            wal.unlink,
        ][:steps]
    )

    assert await read_names(home) == ["new"]

    assert not (home / "steadyrun.restored").exists()
    with closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("SELECT name FROM agents").fetchall() == [("changed",)]


async def test_store_that_is_open_is_not_replaced(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    try:
        with pytest.raises(StoreBusy), open_replacement(tmp_path):
            raise AssertionError
    finally:
        await store.close()


async def test_store_that_is_being_replaced_is_not_opened(tmp_path: Path) -> None:
    await make_store(tmp_path, "old")

    with open_replacement(tmp_path), pytest.raises(StoreBusy):
        await SqliteStore.open(tmp_path, busy_seconds=0.1)

    assert await read_names(tmp_path) == ["old"]


async def test_draft_that_is_not_put_in_place_is_removed(tmp_path: Path) -> None:
    await make_store(tmp_path, "old")

    with open_replacement(tmp_path) as replacement:
        shutil.copy(tmp_path / DATABASE, replacement.draft)
        replacement.prepare("two")

    assert not has_draft(tmp_path)
    assert await read_names(tmp_path) == ["old"]
