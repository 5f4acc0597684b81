"""Runs a daemon in the process of the test, with real keepers and scripted CLIs.

async with running_daemon(tmp_path) as harness:
    ada = await harness.add_agent("ada")
    item = await harness.send_and_wait(ada, say("hello"))
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec

from steadyrun.app.runtime import open_runtime
from steadyrun.config import load
from steadyrun.drivers import keeper
from steadyrun.drivers.keeper_client import read_sent
from steadyrun.lib.clock import Clock, SystemClock
from steadyrun.lib.task_group import task_group
from steadyrun.model import event as ev
from steadyrun.model.agent import Agent
from steadyrun.model.event import StoredEvent
from steadyrun.model.ids import AgentId, Ids, ItemId
from steadyrun.model.item import Item, Message
from steadyrun.model.run import Run
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.agent.worker import AgentWorker
from steadyrun.runtime.daemon import Daemon
from steadyrun.runtime.log import JsonLogFormatter
from steadyrun.runtime.process_pool import Capacity
from steadyrun.store import MaintainedStore
from steadyrun.stores.sqlite import SqliteStore
from tests.children.keeper_driver import eventually
from tests.support.real_cli_harness import find_processes_of

# Generous: the tests also pass on a busy machine.
TIMEOUT_SECONDS = 120.0
KEY = b"k" * 32
ALL = 100_000
_DAEMON = Path(__file__).parents[1] / "children" / "killable_daemon.py"
DEFAULT_CAPACITY = Capacity()

Event = TypeVar("Event")


def script(*steps: object) -> str:
    return "script:" + msgspec.json.encode(steps).decode()


def say(text: str) -> str:
    return script({"text": text})


class FileGates:
    """Files that a script waits for."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def wait_step(self, name: str) -> dict[str, str]:
        """The step that waits for it."""
        return {"until": str(self._place / f"gate-{name}")}

    def open(self, name: str) -> None:
        (self._place / f"gate-{name}").touch()


@dataclass
class HomeHarness:
    """A home with agents, and the actions of its users; a daemon may run in another process."""

    place: Path
    store: MaintainedStore
    gates: FileGates = field(init=False)

    def __post_init__(self) -> None:
        self.gates = FileGates(self.place)

    async def add_agent(self, name: str, provider: str = "scripted", **fields: Any) -> AgentId:
        home = self.place / name
        home.mkdir(exist_ok=True)
        agent = Agent(Ids(SystemClock().now).make_agent(), name, (provider,), str(home))
        await self.store.add_agent(msgspec.structs.replace(agent, **fields))
        return agent.id

    async def set_agent(self, agent: AgentId, **fields: Any) -> None:
        was = await self.store.agent(agent)
        await self.store.set_agent(msgspec.structs.replace(was, **fields), was=was)

    async def send(self, agent: AgentId, text: str, **fields: Any) -> ItemId:
        return (await self.store.accept(Message(agent, text, **fields))).item.id

    async def send_and_wait(self, agent: AgentId, text: str, **fields: Any) -> Item:
        """An item that was sent and is settled."""
        return await self.wait_until_settled(await self.send(agent, text, **fields))

    async def send_waiting(self, agent: AgentId, *after: object) -> ItemId:
        """An item whose turn has begun and waits for the gate "go" in its first step. The scripted
        CLI absorbs messages only between two steps, so it absorbs none before the gate is open."""
        before = len(await self.events_of(agent, ev.RunStarted))
        item = await self.send(agent, script(self.gates.wait_step("go"), *after))
        await self.wait_for_event(agent, ev.RunStarted, before + 1)
        return item

    async def wait_until_settled(self, item: ItemId) -> Item:
        agent = (await self.store.item(item)).agent
        await self.wait_until(agent, self._is_settled(item))
        return await self.store.item(item)

    def _is_settled(self, item: ItemId) -> Callable[[], Awaitable[bool]]:
        async def is_it() -> bool:
            return (await self.store.item(item)).is_settled

        return is_it

    async def wait_until(self, agent: AgentId | None, is_it: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a condition about an agent, or all agents, holds in the store."""
        with self.store.hints.watch(agent) as watch:
            while not await is_it():
                await watch.wait(0.5)

    async def wait_for_lane(self, agent: AgentId, status: str) -> None:
        async def is_it() -> bool:
            return (await self.store.lane(agent)).status == status

        await self.wait_until(agent, is_it)

    async def wait_for_event(self, agent: AgentId, kind: type[ev.Event], count: int = 1) -> None:
        """So many events of a kind are in the agent's record."""

        async def is_it() -> bool:
            return len(await self.events_of(agent, kind)) >= count

        await self.wait_until(agent, is_it)

    async def wait_for_text(self, agent: AgentId, text: str) -> None:
        async def is_it() -> bool:
            return text in await self.texts(agent)

        await self.wait_until(agent, is_it)

    async def wait_until_idle(self, agent: AgentId) -> None:
        """Nothing runs, and nothing is queued."""

        async def is_it() -> bool:
            lane = await self.store.lane(agent)
            return lane.status in {"idle", "warm"} and not lane.queued

        await self.wait_until(agent, is_it)

    async def runs(self, agent: AgentId) -> list[Run]:
        """In the order in which they were begun."""
        return sorted(await self.store.runs(agent), key=lambda run: run.id)

    async def events(self, agent: AgentId) -> list[StoredEvent]:
        return await self.store.events(agent=agent, limit=ALL, newest=True)

    async def events_of(self, agent: AgentId, kind: type[Event]) -> list[Event]:
        return [seen.event for seen in await self.events(agent) if isinstance(seen.event, kind)]

    async def texts(self, agent: AgentId) -> list[str]:
        return [each.text for each in await self.events_of(agent, ev.TextFinal)]

    async def notes(self, agent: AgentId) -> list[str]:
        return [each.text for each in await self.events_of(agent, ev.Note)]

    async def find_process(self, agent: AgentId) -> str:
        [process] = [each for each in await self.store.processes() if each.agent == agent]
        return process.id


@dataclass
class DaemonHarness(HomeHarness):
    """A home whose daemon is in this process."""

    daemon: Daemon
    log: "CapturedLog"

    def find_worker(self, agent: AgentId) -> AgentWorker:
        """The worker of an agent whose lane the daemon holds."""
        worker = self.daemon.workers.find(agent)
        assert worker
        return worker


@asynccontextmanager
async def count_most_processes(home: HomeHarness) -> AsyncIterator[list[int]]:
    """How many processes were open at most, all agents together: looked at whenever anything
    happens."""
    most = [0]

    async def look() -> None:
        with home.store.hints.watch(None) as watch:
            while True:
                most[0] = max(most[0], len(await home.store.processes()))
                await watch.wait(0.05)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        yield most
        tasks.cancel_scope.cancel()


def read_turns(place: Path) -> list[tuple[str, str]]:
    """Every turn that was sent to a process of this home: the run and the text, in order."""
    found = []
    for directory in (place / "home" / "processes").glob("*"):
        for frame in read_sent(directory, 0):
            if frame.key.startswith("begin:"):
                text = msgspec.json.decode(frame.raw)["text"]
                found.append((frame.key.removeprefix("begin:"), text))
    return sorted(found)


def count_sent(place: Path, words: str) -> int:
    return sum(words in text for _, text in read_turns(place))


def find_cli(process: str) -> int:
    """Find the CLI: the oldest process with its mark."""
    return min(keeper.find_marked(process))


async def wait_for(ask: Callable[[], Any], what: str) -> None:
    await anyio.to_thread.run_sync(eventually, ask, what)


class CapturedLog(logging.Handler):
    """Collects the log lines that an operator would read."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.facts: list[tuple[str, dict[str, Any]]] = []
        # Those with a field that an operator would not see.
        self.cut: list[str] = []
        self._formatter = JsonLogFormatter(Scrubber())

    def emit(self, record: logging.LogRecord) -> None:
        if "cut" in self._formatter.build_document(record):
            self.cut.append(record.getMessage())
        self.facts.append((record.getMessage(), getattr(record, "fields", {})))

    def facts_of(self, name: str) -> list[dict[str, Any]]:
        return [fields for each, fields in self.facts if each == name]


@contextmanager
def capture_log(*, has_bugs: bool = False) -> Iterator[CapturedLog]:
    """The facts of this process; none of them may be a bug, unless there is one."""
    log, found = logging.getLogger("steadyrun"), CapturedLog()
    level = log.level
    log.addHandler(found)
    log.setLevel(logging.INFO)
    try:
        yield found
        assert bool(found.facts_of("bug")) == has_bugs, found.facts_of("bug")
        assert found.cut == []
    finally:
        log.removeHandler(found)
        log.setLevel(level)


@asynccontextmanager
async def open_home(place: Path) -> AsyncIterator[HomeHarness]:
    """A home, for a process that is not a daemon."""
    with anyio.fail_after(TIMEOUT_SECONDS):
        store = await SqliteStore.open(place / "home")
        try:
            yield HomeHarness(place, store)
        finally:
            await store.close()


class KillableDaemon:
    """A daemon in a process of its own, to be killed."""

    def __init__(self, place: Path, step: str = "") -> None:
        """It kills itself at that step, if there is one."""
        argv = [sys.executable, str(_DAEMON), str(place / "home"), step]
        environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environ)

    async def wait_until_up(self) -> None:
        """It takes items in."""
        assert self._process.stdout
        said = await anyio.to_thread.run_sync(self._process.stdout.readline)
        assert said == b"up\n", said

    async def wait_until_killed(self) -> None:
        """Wait until the daemon has killed itself at its step."""
        code = await anyio.to_thread.run_sync(self._process.wait, TIMEOUT_SECONDS)
        assert code == -signal.SIGKILL

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()


@asynccontextmanager
async def killable_daemon(
    place: Path, step: str = ""
) -> AsyncIterator[tuple[HomeHarness, KillableDaemon]]:
    """A home, and a daemon that is killed at that step, or at the end of the block."""
    async with open_home(place) as home:
        daemon = KillableDaemon(place, step)
        try:
            yield home, daemon
        finally:
            daemon.kill()


@asynccontextmanager
async def running_daemon(
    place: Path,
    capacity: Capacity = DEFAULT_CAPACITY,
    *,
    config: str = "",
    clock: Clock | None = None,
    wrap_store: Callable[[MaintainedStore], MaintainedStore] = lambda store: store,
    drain: float = 10.0,
    has_bugs: bool = False,
    **limits: float,
) -> AsyncIterator[DaemonHarness]:
    """A daemon that is stopped at the end of the block; no process may be left then.

    The daemon uses the store that `wrap_store` returns.
    """
    home = place / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(config)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
    settings = load(home=home, cwd=place, environ=environ)
    with anyio.fail_after(TIMEOUT_SECONDS), capture_log(has_bugs=has_bugs) as log:
        async with (
            open_runtime(settings, kind="daemon", machine="here") as usual,
            task_group() as tasks,
        ):
            seconds = {f"{name}_seconds": limit for name, limit in limits.items()}
            deps = replace(usual, timeouts=msgspec.structs.replace(usual.timeouts, **seconds))
            store = wrap_store(deps.store)
            deps = replace(deps, clock=clock or deps.clock, store=store)
            daemon = Daemon(deps, tasks, capacity=capacity, key=KEY)
            await daemon.recover()
            tasks.start_soon(daemon.serve)
            yield DaemonHarness(place, usual.store, daemon, log)
            await daemon.shut_down(drain_seconds=drain, keep=False)
            tasks.cancel_scope.cancel()
    # A keeper reports the end of its CLI shortly before it exits itself.
    eventually(lambda: not find_processes_of(place), "the end of all that was started")
