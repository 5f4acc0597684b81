"""Runs a daemon for benchmarks, as any program would, with agents that all play the same lines.

`python -m bench.daemon_process ROLE HOME COUNT` runs one in a process of its own: it takes its next
step for each line it reads, and prints a line when that step is done.
"""

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from bench.measure import expect
from steadyrun.app.runtime import open_runtime
from steadyrun.config import Config, load
from steadyrun.lib.task_group import task_group
from steadyrun.model.agent import Agent
from steadyrun.model.item import Item, Message
from steadyrun.runtime.daemon import Daemon
from steadyrun.runtime.process_pool import Capacity
from steadyrun.store import Store

_KEY = b"k" * 32
# How often runs are checked before and after a measurement.
_LOOK_SECONDS = 0.5
_DRAIN_SECONDS = 60.0


@asynccontextmanager
async def run_daemon(config: Config, room: Capacity) -> AsyncIterator[Daemon]:
    """A daemon that runs items, and ends its processes at the end."""
    async with (
        open_runtime(config, kind="daemon", machine="here") as around,
        task_group() as tasks,
    ):
        daemon = Daemon(around, tasks, capacity=room, key=_KEY)
        await daemon.recover()
        tasks.start_soon(daemon.serve)
        yield daemon
        await daemon.shut_down(drain_seconds=_DRAIN_SECONDS, keep=False)
        tasks.cancel_scope.cancel()


async def add_agents(daemon: Daemon, folder: Path, count: int) -> list[Agent]:
    around = daemon.direct_runs.deps
    agents = []
    for number in range(count):
        home = folder / f"agent-{number}"
        home.mkdir(parents=True)
        agents.append(Agent(around.ids.make_agent(), home.name, ("scripted",), str(home)))
        await around.store.add_agent(agents[-1])
    return agents


async def send_and_wait(daemon: Daemon, agent: Agent, message: Message) -> Item:
    """Send a message and wait until its item is settled. The store is read only when the agent is
    idle: waiting must not disturb the work."""
    store, was_busy = daemon.direct_runs.deps.store, False
    with store.hints.watch(agent.id) as watch:
        found = (await daemon.accept(message)).item
        while not found.is_settled:
            is_news = await watch.wait(_LOOK_SECONDS)
            is_busy = daemon.find_process_state(agent.id) == "busy"
            if not is_news or (was_busy and not is_busy):
                found = await store.item(found.id)
            was_busy = was_busy or is_busy
    return found


# -- in a process of its own


async def wait_for_line() -> None:
    """Wait for a line; without one, the parent process is gone, and this process ends."""
    if not await anyio.to_thread.run_sync(sys.stdin.readline):
        sys.exit(1)


def print_line(word: object) -> None:
    print(word, flush=True)


async def _drive(home: Path, count: int) -> None:
    """Print that the daemon works; start the runs and print so; print when all have ended."""
    async with run_daemon(load(home, cwd=home), Capacity(runs=count, processes=count)) as daemon:
        print_line("ready")
        await wait_for_line()
        store = daemon.direct_runs.deps.store
        for agent in await add_agents(daemon, home / "agents", count):
            await store.accept(Message(agent.id, "Go."))
        while await _count_runs(store, count, "running") < count:  # noqa: ASYNC110
            await anyio.sleep(_LOOK_SECONDS)
        print_line("running")
        await _wait_until_ended(store, count)


async def _adopt(home: Path, count: int) -> None:
    """Print when everything is imported; take over the runs; print when all have ended."""
    print_line(time.monotonic_ns())
    async with run_daemon(load(home, cwd=home), Capacity(runs=count, processes=count)) as daemon:
        await _wait_until_ended(daemon.direct_runs.deps.store, count)


async def _wait_until_ended(store: Store, count: int) -> None:
    await wait_for_line()
    while await store.items(limit=1):  # noqa: ASYNC110 (the measurement is over)
        await anyio.sleep(_LOOK_SECONDS)
    ended = await _count_runs(store, count, "completed")
    expect(ended == count, f"{ended} of {count} runs are completed")
    print_line("ended")


async def _count_runs(store: Store, count: int, status: str) -> int:
    return sum(run.status == status for run in await store.runs(limit=count))


_ROLES: dict[str, Callable[[Path, int], Awaitable[None]]] = {"drive": _drive, "adopt": _adopt}

if __name__ == "__main__":
    anyio.run(_ROLES[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]))
