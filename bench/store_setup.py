"""Prepares a store for a measurement: agents, items, a claim, a run."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio

from bench.corpus import PROCESS, SECRETS
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId, Ids, RunId
from steadyrun.model.item import Claim, Item, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created
from steadyrun.model.secret import Scrubber
from steadyrun.stores.sqlite import SqliteStore

PROVIDER = "scripted"
# This many concurrent callers fill the commits of the preparation.
_CALLERS = 64

ids = Ids(lambda: datetime.now(UTC))


@asynccontextmanager
async def open_store(home: Path) -> AsyncIterator[SqliteStore]:
    """A store as steadyrun opens it, with secrets to scrub."""
    store = await SqliteStore.open(home, scrubber=Scrubber(SECRETS))
    try:
        yield store
    finally:
        await store.close()


async def begin_run(store: SqliteStore) -> tuple[Claim, RunId]:
    """Prepare an agent whose process prints: item claimed, run created, process open."""
    [agent] = await add_agents(store, 1)
    holder = await store.join("bench")
    await store.accept(Message(agent.id, "Go."))
    [started] = await store.start(holder.id, create_run)
    await store.open_process(started.claim, make_process(agent.id))
    return started.claim, started.run.id


async def add_agents(store: SqliteStore, count: int) -> list[Agent]:
    agents = [make_agent(n) for n in range(count)]
    async with anyio.create_task_group() as group:
        for agent in agents:
            group.start_soon(store.add_agent, agent)
    return agents


async def accept_all(store: SqliteStore, messages: Sequence[Message]) -> None:
    """Accept the messages in order for each agent: each agent has one caller."""
    by_agent: dict[AgentId, list[Message]] = {}
    for message in messages:
        by_agent.setdefault(message.agent, []).append(message)
    limiter = anyio.CapacityLimiter(_CALLERS)

    async def accept(some: Iterable[Message]) -> None:
        async with limiter:
            for message in some:
                await store.accept(message)

    async with anyio.create_task_group() as group:
        for some in by_agent.values():
            group.start_soon(accept, some)


def make_agent(number: int) -> Agent:
    return Agent(ids.make_agent(), f"agent-{number}", (PROVIDER,), "/home/agent")


def make_process(agent: AgentId) -> Process:
    return Process(PROCESS, agent, PROVIDER, "here", "keeper", datetime.now(UTC))


def create_run(agent: Agent, item: Item) -> Created:
    return Created(ids.make_run(), agent.id, item.id, PROVIDER, datetime.now(UTC))
