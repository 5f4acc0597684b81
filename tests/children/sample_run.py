"""Writes one made-up run through the verbs of the store: something to look at."""

from datetime import datetime

import anyio

from steadyrun.app.store import open_store
from steadyrun.config import load
from steadyrun.lib.clock import SystemClock
from steadyrun.model import event as ev
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import Emitted, Event
from steadyrun.model.ids import Ids, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Finished, Launched
from steadyrun.model.usage import Cost, Usage
from steadyrun.store import Store

REQUEST = "why does test_retry fail?"
REPLY = "The retry waits one second too little. I raised it and the test passes."
COMMAND = {"command": "pytest -q tests/test_retry.py"}
SEEN: tuple[Event, ...] = (
    ev.TextFinal("I'll look at the test first."),
    ev.ToolStarted("call_1", "Bash", COMMAND),
    ev.ToolCompleted("call_1", "Bash", COMMAND, "1 passed in 0.42s"),
    ev.TextFinal(REPLY),
)


async def main() -> None:
    """Write it into the home that the environment names."""
    async with open_store(load()) as store:
        await write_run(store)


async def write_run(store: Store) -> RunId:
    """Accept a message, claim it, and record a run the way the runtime does."""
    clock = SystemClock()
    ids = Ids(clock.now)
    run, process = ids.make_run(), ids.make_process()
    # A run that no agent was asked for belongs to an agent of its own name.
    agent = Agent(ids.make_agent(), run, ("scripted",), home=".", is_direct=True)
    holder, now = await store.join("first-run"), clock.now()

    def opened(agent: Agent, item: Item) -> Created:
        return Created(run, agent.id, item.id, agent.provider, now)

    claim = (await store.start_direct(holder.id, agent, Message(agent.id, REQUEST), opened)).claim
    await store.open_process(claim, Process(process, agent.id, agent.provider, "here", "none", now))
    await store.append(claim, _batch(process, run, now))
    await _settle(store, claim, clock.now())
    await store.leave(holder.id)
    return run


def _batch(process: ProcessId, run: RunId, now: datetime) -> Batch:
    events = tuple(Emitted(100 * n, 0, now, event) for n, event in enumerate(SEEN, 1))
    return Batch(process, run, 0, 100 * len(SEEN), events, Launched(now, process))


async def _settle(store: Store, claim: Claim, now: datetime) -> None:
    usage = Usage(input_tokens=1200, output_tokens=85, cache_read_tokens=900)
    ended = Finished(now, "completed", text=REPLY, usage=usage, cost=Cost(0.0031, "estimated"))
    await store.settle(claim, ended)


if __name__ == "__main__":
    anyio.run(main)
