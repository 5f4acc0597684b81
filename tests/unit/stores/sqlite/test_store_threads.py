"""The event loop never touches the database: watched call by call."""

import sqlite3
import sys
from pathlib import Path
from types import FrameType

import anyio

from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Message
from steadyrun.model.run import Orphaned
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.store_conformance.fixtures import claim_lanes


def test_event_loop_makes_no_sqlite_calls(tmp_path: Path) -> None:
    calls: list[str] = []

    def watch(_frame: FrameType, event: str, called: object) -> None:
        owner = getattr(called, "__self__", None)
        if event == "c_call" and isinstance(owner, sqlite3.Connection | sqlite3.Cursor):
            calls.append(str(called))

    async def use() -> None:
        # A profile function sees the calls of its own thread only: the loop's.
        sys.setprofile(watch)
        try:
            store = await SqliteStore.open(tmp_path / "home")
            agent = Agent(AgentId("agt_1"), "ada", ("claude",), "/")
            await store.add_agent(agent)
            await store.accept(Message(agent.id, "go"))
            holder = await store.join("test")
            [claim] = await claim_lanes(store, holder.id)
            with store.hints.watch(agent.id) as watching:
                await watching.wait(0)
            await store.settle(claim, Orphaned(claim.item.created_at))
            assert await store.items(include_settled=True)
            await store.close()
        finally:
            sys.setprofile(None)

    anyio.run(use)

    assert calls == []
