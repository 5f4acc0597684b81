"""A file that an earlier version has made is brought up to date with all that is in it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from steadyrun.errors import StoreForeign
from steadyrun.model.agent import Agent
from steadyrun.model.event import Emitted, Note
from steadyrun.model.event_codec import encode_events
from steadyrun.model.gate import Closed
from steadyrun.model.ids import AgentId, HolderId, ItemId, RunId
from steadyrun.model.item import Item, Message
from steadyrun.model.run import Created
from steadyrun.model.secret import Scrubber
from steadyrun.model.session import ResumeToken, Session
from steadyrun.store import Lane
from steadyrun.stores.sqlite import DATABASE, SqliteStore
from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.sql.rows import from_micros

_FIRST = """
    INSERT INTO agents VALUES ('agt_held', 'run_1', 'claude', CAST('
        {"id":"agt_held","name":"run_1","providers":["claude"],"home":"/"}
    ' AS BLOB));
    INSERT INTO sessions VALUES ('agt_held', 'claude', 'one', CAST('
        {"provider":"claude","current":{"token":"one","machine":"here","cwd":"/","model":null,
         "bound_at":"1970-01-01T00:00:01Z"},"history":[]}
    ' AS BLOB));
    INSERT INTO lanes VALUES ('agt_held', 'held', 0, NULL, 'hld_1', 3, 2, 1);
    INSERT INTO lanes VALUES ('agt_ready', 'ready', 1, 1000000, NULL, 0, 1, 1);
    INSERT INTO items VALUES ('itm_1', 'agt_ready', 1, 'message', 'go', 'resume', 1000000,
                              'queued', 'none', 0, 0, NULL, NULL, NULL, NULL);
"""


_SECOND = """
    INSERT INTO agents VALUES ('agt_ada', 'ada', 'claude', 0, NULL, CAST('
        {"id":"agt_ada","name":"ada","providers":["claude","codex"],"home":"/"}
    ' AS BLOB));
    INSERT INTO lanes VALUES ('agt_ada', 'idle', 0, NULL, NULL, 0, 0, 0);
"""
_EVENTS = "INSERT INTO event_batches VALUES (1, 'agt_held', NULL, 'prc_1', 1, 2, 0, :body)"
SAID = [Emitted(n, 0, from_micros(1000000), Note(text)) for n, text in ((1, "one"), (2, "two"))]


async def test_database_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    _make_early(tmp_path)

    store = await SqliteStore.open(tmp_path)
    try:
        held = await store.lane(AgentId("agt_held"))
        assert held == Lane(held.agent, "held", False, None, HolderId("hld_1"), 3, 2, 1, 2)
        ready = await store.lane(AgentId("agt_ready"))
        assert ready == Lane(ready.agent, "ready", True, from_micros(1000000), None, 0, 1, 1)
        item = await store.item(ItemId("itm_1"))
        at = from_micros(1000000)
        assert item == Item(item.id, ready.agent, 1, "message", "go", "resume", at)
        agent = await store.agent("run_1")
        assert agent == Agent(held.agent, "run_1", ("claude",), "/", is_direct=True)
        assert await store.agents() == []
        token = ResumeToken("one", "here", "/", None, at)
        assert (await store.sessions(agent.id)).get("claude") == Session("claude", token)
        found = await store.sessions(provider="claude", token="one")
        assert found == {"claude": Session("claude", token)}
        assert held.event_seq == 2
        [first, second] = await store.events(agent=agent.id)
        assert (first.event, second.event) == (Note("one"), Note("two"))
        assert (first.cursor, second.seq, second.agent) == (1, 2, "run_1")
        assert await store.check() == []
    finally:
        await store.close()


async def test_provider_chain_of_an_earlier_version_is_used(tmp_path: Path) -> None:
    _make_early(tmp_path, 2, _SECOND)

    store = await SqliteStore.open(tmp_path)
    try:
        await store.update_gate("claude", Closed(None, "by hand"))
        holder = (await store.join("worker")).id
        await store.accept(Message(AgentId("agt_ada"), "work"))
        [started] = await store.start(holder, _opened)
        assert started.agent.providers == ("codex", "claude")
    finally:
        await store.close()


def test_listed_columns_are_those_that_the_migrations_make() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for step in schema.read_migrations():
            connection.executescript(step)
        found = {
            f"{table}.{column}"
            for [table] in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            for [_, column, *_] in connection.execute(f"PRAGMA table_info({table})")
        }

    assert found == schema.COLUMNS


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("ALTER TABLE agents DROP COLUMN chain", "missing: agents.chain"),
        ("ALTER TABLE items ADD COLUMN draft TEXT", "unknown: items.draft"),
        ("DROP TABLE kv", "missing: kv.key, kv.value"),
        ("ALTER TABLE gates RENAME TO doors", "unknown: doors.account"),
    ],
)
async def test_store_of_an_unreleased_version_is_refused_by_name_and_unchanged(
    tmp_path: Path, change: str, found: str
) -> None:
    await (await SqliteStore.open(tmp_path)).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.execute(change)
        connection.commit()
    before = (tmp_path / DATABASE).read_bytes()

    with pytest.raises(StoreForeign, match="never released") as refused:
        await SqliteStore.open(tmp_path)

    assert found in refused.value.message
    assert "move the file away" in refused.value.hint
    assert (tmp_path / DATABASE).read_bytes() == before


async def test_early_store_of_an_unreleased_version_is_not_migrated(tmp_path: Path) -> None:
    _make_early(tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.execute("ALTER TABLE items ADD COLUMN followup TEXT")
        connection.commit()

    with pytest.raises(StoreForeign, match="migration 2 failed: duplicate column"):
        await SqliteStore.open(tmp_path)

    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)


async def test_value_that_the_tables_of_an_unreleased_version_refuse_is_reported_by_name(
    tmp_path: Path,
) -> None:
    await (await SqliteStore.open(tmp_path)).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, '''ready'', ', '') WHERE name = 'lanes'"
        )
        connection.commit()
    store = await SqliteStore.open(tmp_path)
    try:
        agent = Agent(AgentId("agt_1"), "ada", ("scripted",), "/")
        await store.add_agent(agent)
        with pytest.raises(StoreForeign, match="never released"):
            await store.accept(Message(agent.id, "work"))
    finally:
        await store.close()


def _opened(agent: Agent, item: Item) -> Created:
    return Created(RunId("run_1"), agent.id, item.id, agent.provider, item.created_at)


def _make_early(home: Path, steps: int = 1, rows: str = _FIRST) -> None:
    """The file as an early version made it: its steps, and some rows."""
    with closing(sqlite3.connect(home / DATABASE)) as connection:
        for step in schema.read_migrations()[:steps]:
            connection.executescript(step)
        connection.executescript(rows)
        connection.execute(_EVENTS, {"body": encode_events(SAID, Scrubber())})
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {steps}")
        connection.commit()
