"""Fills the disk its store is on, makes room, goes on, and says what happened in one line.

disk_filler.py HOME        HOME is on a small device of its own
"""

import os
import sys
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from steadyrun.errors import StoreFull
from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import Emitted, Note
from steadyrun.model.ids import AgentId, ItemId, ProcessId
from steadyrun.model.item import Claim, Message
from steadyrun.model.process import Process
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.store_conformance.fixtures import claim_lanes

AGENT = AgentId("agt_1")
PROCESS = ProcessId("prc_1")
BALLAST_BYTES = 24 << 20
MESSAGE_BYTES = 4000
SENDERS = 6
ALL = 1_000_000


class DiskReport(Struct):
    """What was acknowledged, what failed, and what was found in the end."""

    acked_before: list[ItemId] = []
    acked_after: list[ItemId] = []
    offset_before: int = 0
    errors: list[tuple[str, bool, str]] = []
    found_when_full: list[ItemId] = []
    found_at_the_end: list[ItemId] = []
    offset_at_the_end: int = 0
    events_at_the_end: int = 0
    problems: list[str] = []


async def main(home: Path) -> None:
    ballast = home.with_name("ballast")
    ballast.write_bytes(b"x" * BALLAST_BYTES)
    story = DiskReport()
    store = await SqliteStore.open(home)
    claim = await _claim(store, home)

    await _write_until_full(store, claim, story)
    story.found_when_full = [item.id for item in await store.items(limit=ALL)]
    ballast.unlink()
    for n in range(20):
        accepted = await store.accept(Message(AGENT, f"after {n}"))
        story.acked_after.append(accepted.item.id)
    await store.append(claim, _batch(story.offset_before))
    await store.close()

    store = await SqliteStore.open(home)
    story.found_at_the_end = [i.id for i in await store.items(limit=ALL)]
    [process] = await store.processes([PROCESS])
    story.offset_at_the_end = process.offset
    story.events_at_the_end = len(await store.events(limit=ALL))
    story.problems = await store.check()
    await store.close()
    os.write(1, msgspec.json.encode(story) + b"\n")


async def _claim(store: SqliteStore, home: Path) -> Claim:
    await store.add_agent(Agent(AGENT, "one", ("claude",), str(home)))
    await store.accept(Message(AGENT, "first"))
    [claim] = await claim_lanes(store, (await store.join("filler")).id)
    now = SystemClock().now()
    await store.open_process(claim, Process(PROCESS, AGENT, "claude", "here", "keeper", now))
    return claim


async def _write_until_full(store: SqliteStore, claim: Claim, story: DiskReport) -> None:
    """Several at once, so that a full disk meets whole groups."""
    async with anyio.create_task_group() as tasks:
        for _ in range(SENDERS):
            tasks.start_soon(_send_until_full, store, story)
        tasks.start_soon(_append_until_full, store, claim, story)


async def _send_until_full(store: SqliteStore, story: DiskReport) -> None:
    try:
        while True:
            accepted = await store.accept(Message(AGENT, "x" * MESSAGE_BYTES))
            story.acked_before.append(accepted.item.id)
    except StoreFull as error:
        story.errors.append((error.code, error.retryable, str(error)))


async def _append_until_full(store: SqliteStore, claim: Claim, story: DiskReport) -> None:
    try:
        while True:
            await store.append(claim, _batch(story.offset_before))
            story.offset_before += 1
    except StoreFull as error:
        story.errors.append((error.code, error.retryable, str(error)))


def _batch(offset: int) -> Batch:
    at = SystemClock().now()
    event = Emitted(offset + 1, 0, at, Note("y" * MESSAGE_BYTES))
    return Batch(PROCESS, None, offset, offset + 1, (event,))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
