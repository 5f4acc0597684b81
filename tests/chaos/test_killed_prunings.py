"""A process that prunes is killed at random moments: what remains is whole and has no gap."""

import random
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import anyio
import anyio.to_thread

from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import Emitted, StoredEvent, TextFinal
from steadyrun.model.ids import AgentId, HolderId, Ids
from steadyrun.model.item import Item, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Finished, Launched
from steadyrun.stores.sqlite import SqliteStore
from tests.chaos.settings import SEED
from tests.support.commands import ROOT

CHILD = ROOT / "tests" / "children" / "pruner.py"
RUNS = 150
KILLS = 12
ALL = 1_000_000
CLOCK = SystemClock()
IDS = Ids(CLOCK.now)


async def test_nothing_is_torn_when_a_pruning_is_killed(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    store = await SqliteStore.open(tmp_path)
    try:
        agents = [await _add_agent(store, name) for name in ("ada", "bo")]
        holder = (await store.join("test")).id
        for number in range(RUNS):
            await _run_once(store, holder, agents[number % 2])
        before = await store.events(limit=ALL)
        limit = CLOCK.now()
        for _ in range(KILLS):
            await anyio.to_thread.run_sync(_kill_pruning, tmp_path, limit, dice.uniform(0, 0.06))
            await _run_once(store, holder, agents[0])
            await _check(store, before, limit)
        await anyio.to_thread.run_sync(_kill_pruning, tmp_path, limit, None)
        kept = await store.events(limit=ALL)
        assert {event.agent for event in kept} == {"ada"}, f"seed {SEED}"
        assert len({event.run for event in kept}) == KILLS
    finally:
        await store.close()


async def _check(store: SqliteStore, before: list[StoredEvent], limit: datetime) -> None:
    """What is left of the old events is the end of each agent's record."""
    assert await store.check() == []
    events = await store.events(limit=ALL)
    for name in ("ada", "bo"):
        old = [event for event in before if event.agent == name]
        left = [event for event in events if event.agent == name and event.at < limit]
        assert left == old[len(old) - len(left) :], f"seed {SEED}"
        numbers = [event.seq for event in events if event.agent == name]
        last = (await store.lane((await store.agent(name)).id)).event_seq
        assert numbers == list(range(last - len(numbers) + 1, last + 1)), f"seed {SEED}"
    pruned_runs = {run.id for run in await store.runs(limit=ALL) if run.events_pruned}
    assert {event.run for event in before} - {event.run for event in events} <= pruned_runs


def _kill_pruning(home: Path, limit: datetime, seconds: float | None) -> None:
    """Let a process prune, and kill it after these seconds; without them, let it complete."""
    command = [sys.executable, str(CHILD), str(home), limit.isoformat()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        if seconds is not None:
            # No condition can be awaited: the moment itself is the fault.
            threading.Event().wait(seconds)
            child.kill()
    assert child.returncode in ({0, -9} if seconds is not None else {0})


async def _add_agent(store: SqliteStore, name: str) -> AgentId:
    agent = Agent(IDS.make_agent(), name, ("scripted",), "/")
    await store.add_agent(agent)
    return agent.id


async def _run_once(store: SqliteStore, holder: HolderId, agent: AgentId) -> None:
    """Run an item to its end: a run of four rows."""
    await store.accept(Message(agent, "work"))
    [started] = await store.start(holder, _create_run, agent=agent)
    claim, process = started.claim, IDS.make_process()
    await store.open_process(claim, Process(process, agent, "scripted", "here", "k", CLOCK.now()))
    for number in range(3):
        emitted = Emitted(number + 1, 0, CLOCK.now(), TextFinal("x" * 500))
        change = Launched(CLOCK.now(), process) if number == 0 else None
        batch = Batch(process, started.run.id, number, number + 1, (emitted,), change=change)
        await store.append(claim, batch)
    await store.settle(claim, Finished(CLOCK.now(), "completed", text="done"))


def _create_run(agent: Agent, item: Item) -> Created:
    return Created(IDS.make_run(), agent.id, item.id, agent.provider, CLOCK.now())
