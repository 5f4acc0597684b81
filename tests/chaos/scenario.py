"""A home whose daemon is killed repeatedly, with the actions of its users.

A scenario is a home of its own. Everything in it follows from a seed but the moments at which
processes get their turn.
"""

import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec import Struct

from steadyrun.api import client
from steadyrun.drivers import keeper
from steadyrun.errors import (
    ChangeRefused,
    Conflict,
    DaemonUnreachable,
    NotFound,
    RpcFailed,
    SteadyrunError,
)
from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId, Ids, ItemId
from steadyrun.model.item import Followup, Item, Message, OnLost
from steadyrun.operations import spool
from steadyrun.operations.agents import (
    AddAgentRequest,
    AgentRequest,
    AgentSelection,
    SetAgentRequest,
)
from steadyrun.operations.daemon import StopDaemonRequest
from steadyrun.operations.items import SendRequest
from steadyrun.operations.registry import BY_NAME
from steadyrun.operations.runs import CancelRequest
from steadyrun.stores.sqlite import SqliteStore
from tests.chaos import prompts
from tests.chaos.forked_daemons import DaemonForker, ForkedDaemon
from tests.children.keeper_driver import parent

CONFIG = """
[daemon]
runs = 6
processes = 3
idle_seconds = 2.0
drain_seconds = 20.0

[clocks]
interrupt_seconds = 1.0
close_seconds = 2.0
offer_seconds = 2.0
approval_seconds = 0.3
"""
SCRIPTED = ("ada", "bea", "cem", "dov")
SHELL = "sol"
# The agent whose directory is removed at times.
HOMELESS = "eva"
QUIET_SECONDS = 60.0
CALL_SECONDS = 30.0
STOPPED_CALL_SECONDS = 5.0
_LOOK_SECONDS = 0.25
_ON_LOST: tuple[OnLost, ...] = ("resume", "resume", "retry", "fail")

Prompt = Callable[[str], prompts.Steps]


@dataclass
class Sent:
    """A message that was sent. Without an item it is unknown whether the message has arrived."""

    mark: str
    agent: AgentId
    text: str
    on_lost: OnLost = "resume"
    key: str | None = None
    item: ItemId | None = None
    is_cancelled: bool = False
    # Without an action of the test it does not end, or fails.
    is_endless: bool = False
    may_fail: bool = False


@dataclass
class Scenario:
    """One home with its agents, and at most one daemon at a time.

    The chaos tests create it with `begin`, act on it, and let `checks` compare `sent` with the
    record. `daemon` is None until the first start.
    """

    place: Path
    seed: int
    forker: DaemonForker
    store: SqliteStore
    dice: random.Random
    agents: dict[str, AgentId] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    daemon: ForkedDaemon | None = None

    @property
    def home(self) -> Path:
        return self.place / "home"

    @property
    def trace(self) -> Path:
        """Where the shell leaves its traces."""
        return self.place / "trace"

    @classmethod
    async def begin(
        cls, place: Path, seed: int, forker: DaemonForker, config: str = CONFIG
    ) -> "Scenario":
        (place / "home").mkdir(parents=True)
        (place / "home" / "config.toml").write_text(config)
        (place / "work").mkdir()
        store = await SqliteStore.open(place / "home")
        # Chance decides what is done, and is to be the same each time.
        scenario = cls(place, seed, forker, store, random.Random(seed))
        for name in (*SCRIPTED, SHELL, HOMELESS):
            await scenario._add_agent(name)
        return scenario

    async def _add_agent(self, name: str) -> None:
        folder = self.place / name
        folder.mkdir()
        provider = "shell" if name == SHELL else "scripted"
        agent = Agent(Ids(SystemClock().now).make_agent(), name, (provider,), str(folder))
        await self.store.add_agent(agent)
        self.agents[name] = agent.id

    # -- a daemon

    async def up(self, **order: object) -> ForkedDaemon:
        """Start a daemon; wait until it answers, unless it is killed before."""
        self.daemon = await self.forker.start(self.home, **order)
        await self.daemon.is_up()
        return self.daemon

    async def call(self, operation: str, given: Struct) -> bool:
        """Call the daemon; False if the outcome is unknown."""
        # A daemon that may be stopped does not answer after that.
        may_stop = self.daemon is not None and self.daemon.order.then == "stop"
        try:
            seconds = STOPPED_CALL_SECONDS if may_stop else CALL_SECONDS
            await client.call(self.home, BY_NAME[operation], given, seconds=seconds)
        except (DaemonUnreachable, RpcFailed):
            return False
        except (Conflict, ChangeRefused, NotFound):
            return True
        return True

    async def stop_daemon(self) -> None:
        """Ask it to end; it may be killed over that."""
        await self.call("daemon.stop", StopDaemonRequest(drain=20.0))

    async def down(self) -> None:
        """End the daemon as a person would."""
        assert self.daemon
        assert await self.call("daemon.stop", StopDaemonRequest(drain=20.0))
        await self.daemon.end()

    async def run_directly(self, **order: object) -> ForkedDaemon:
        """Make a run without an agent, by a process that may be killed during it."""
        prompt = prompts.written(prompts.works("direct"))
        owner = await self.forker.start(self.home, kind="direct", prompt=prompt, **order)
        await owner.end()
        return owner

    # -- messages

    async def send(
        self,
        prompt: Prompt,
        agent: str | None = None,
        *,
        on_lost: OnLost | None = None,
        followup: Followup = "steer",
        way: str | None = None,
        is_endless: bool = False,
        may_fail: bool = False,
    ) -> Sent:
        """Send a message through the store, the socket or the spool, with or without a key."""
        dice = self.dice
        name = agent or dice.choice(SCRIPTED)
        mark = f"m{len(self.sent)}"
        text = prompts.written(prompt(mark))
        if name == SHELL:
            text = prompts.shell(mark, str(self.trace))
        chosen = dice.choice(_ON_LOST) if on_lost is None else on_lost
        key = f"key-{mark}" if dice.random() < 0.5 else None
        sent = Sent(
            mark,
            self.agents[name],
            text,
            chosen,
            key,
            is_endless=is_endless,
            may_fail=may_fail,
        )
        self.sent.append(sent)
        if (way or dice.choice(("store", "store", "socket"))) == "socket":
            await self._send_by_socket(name, sent, followup)
        else:
            await self._accept(sent, followup)
        return sent

    async def _accept(self, sent: Sent, followup: Followup = "steer") -> None:
        message = Message(
            sent.agent, sent.text, key=sent.key, on_lost=sent.on_lost, followup=followup
        )
        sent.item = (await self.store.accept(message)).item.id

    async def _send_by_socket(self, name: str, sent: Sent, followup: Followup) -> None:
        """Send by the socket. The answer shows whether the message was accepted. A message with a
        key is sent again; one without a key may be lost with the daemon."""
        sent.on_lost = "resume"
        given = SendRequest(agent=name, text=sent.text, key=sent.key, followup=followup)
        try:
            answer = await client.call(self.home, BY_NAME["item.send"], given, seconds=30)
            sent.item = ItemId(answer.id)
        except (DaemonUnreachable, RpcFailed):
            if sent.key:
                await self._accept(sent, followup)

    async def spool_message(self) -> None:
        """Spool a message for the next daemon."""
        sent = Sent(f"m{len(self.sent)}", self.agents["ada"], "", key=f"key-m{len(self.sent)}")
        sent.text = prompts.written(prompts.says(sent.mark))
        self.sent.append(sent)
        given = {"agent": "ada", "text": sent.text}
        ids = Ids(SystemClock().now)
        assert sent.key
        await spool.spool_call(self.home, ids, "item.send", given, key=sent.key)

    async def cancel(self, sent: Sent, *, by_socket: bool = False) -> None:
        if sent.item is None:
            return
        sent.is_cancelled = True
        if by_socket:
            await self.call("item.cancel", CancelRequest(id=sent.item, wait_seconds=0.0))
        else:
            await self.store.cancel(sent.item)

    # -- what others see

    async def until(
        self, agent: AgentId, is_so: Callable[[], Awaitable[bool]], seconds: float = 10.0
    ) -> bool:
        """Wait for something in an agent's record; False if it does not come."""
        with anyio.move_on_after(seconds), self.store.hints.watch(agent) as watch:
            while not await is_so():
                if self.daemon and self.daemon.is_over:
                    await self.daemon.end()
                    return False
                if self.daemon and self.daemon.is_stopped:
                    return False
                await watch.wait(_LOOK_SECONDS)
            return True
        return False

    async def until_running(self, sent: Sent) -> bool:
        """Its run has begun."""

        async def is_running() -> bool:
            item = await self._item(sent)
            if item is None or item.is_settled:
                return True
            return item.run is not None and (await self.store.run(item.run)).status == "running"

        return await self.until(sent.agent, is_running)

    async def until_offered(self, sent: Sent) -> bool:
        """It was, or comes too late for that."""

        async def is_offered() -> bool:
            item = await self._item(sent)
            return item is None or item.delivery != "none" or item.is_settled

        return await self.until(sent.agent, is_offered)

    async def until_delivered(self, sent: Sent, delivery: str) -> bool:
        async def is_delivered() -> bool:
            item = await self._item(sent)
            return item is not None and item.delivery == delivery

        return await self.until(sent.agent, is_delivered)

    async def until_tried(self, sent: Sent) -> bool:
        """It was begun more than once."""

        async def is_tried() -> bool:
            item = await self._item(sent)
            return item is None or item.attempt > 1 or item.is_settled

        return await self.until(sent.agent, is_tried)

    async def until_settled(self, sent: Sent, seconds: float = 10.0) -> bool:
        async def is_settled() -> bool:
            item = await self._item(sent)
            return item is None or item.is_settled

        return await self.until(sent.agent, is_settled, seconds)

    async def _item(self, sent: Sent) -> Item | None:
        return await self.store.item(sent.item) if sent.item else None

    async def settle_down(self) -> None:
        """An undisturbed daemon does what is left to do, and ends."""
        for agent in self.agents.values():
            await self.store.set_paused(agent, is_paused=False)
        if self.daemon is None or self.daemon.is_over:
            await self.up()
        for sent in self.sent:
            if sent.is_endless and sent.item is None:
                await self._find_accepted(sent)
            item = await self._item(sent)
            if sent.is_endless and item and not item.is_settled:
                await self.cancel(sent)
        limit = anyio.current_time() + QUIET_SECONDS
        for agent in await self.all_agents():
            left = limit - anyio.current_time()
            assert await self.until(agent, partial(self._is_quiet, agent), left), (
                f"{agent} does not come to rest: {await self.store.lane(agent)}, "
                f"{await self.store.items(agent)}"
            )
        await self.down()

    async def _find_accepted(self, sent: Sent) -> None:
        """A daemon may have accepted the message and died before it answered."""
        for item in await self.store.items(sent.agent):
            if item.text == sent.text:
                sent.item = item.id

    async def _is_quiet(self, agent: AgentId) -> bool:
        lane = await self.store.lane(agent)
        return lane.status in {"idle", "warm"} and lane.queued == 0

    async def all_agents(self) -> list[AgentId]:
        """The lasting agents, and those of direct runs."""
        items = await self.store.items(include_settled=True, limit=1_000_000)
        return sorted({*self.agents.values(), *(item.agent for item in items)})

    # -- processes

    async def kill_one(self, target: str) -> bool:
        """Kill a keeper, its outer process, both or a CLI; False if there is none."""
        found = list(await self.store.processes())
        self.dice.shuffle(found)
        for process in found:
            pids = await anyio.to_thread.run_sync(find_pids, process.id)
            chosen = [pids[each] for each in target.split(" and ") if each in pids]
            if len(chosen) == len(target.split(" and ")):
                if process.provider == "shell" and "cli" in target:
                    self._allow_failures(process.agent)
                for number in (signal.SIGSTOP, signal.SIGKILL):
                    for pid in chosen:
                        with suppress(ProcessLookupError):
                            os.kill(pid, number)
                return True
        return False

    def _allow_failures(self, agent: AgentId) -> None:
        """The CLI of a shell agent is the command: that it was killed is its result."""
        for sent in self.sent:
            sent.may_fail |= sent.agent == agent

    async def stop_keeper(self) -> int | None:
        """Stop a keeper until it gets SIGCONT; its pid, if there is one."""
        for process in await self.store.processes():
            pids = await anyio.to_thread.run_sync(find_pids, process.id)
            if "keeper" in pids:
                os.kill(pids["keeper"], signal.SIGSTOP)
                return pids["keeper"]
        return None

    async def add_and_remove_agent(self) -> None:
        name = f"x{self.dice.randrange(10**9)}"
        folder = str(self.place / "work")
        await self.call("agent.add", AddAgentRequest(name=name, provider="scripted", home=folder))
        await self.call("agent.rm", AgentRequest(name=name))

    async def change_agent(self, name: str) -> None:
        """Change the agent: its present process must be replaced."""
        await self.call("agent.set", SetAgentRequest(name=name, system=f"Be {self.dice.random()}."))

    async def pause_and_resume(self) -> None:
        name = self.dice.choice(SCRIPTED)
        await self.call("agent.pause", AgentSelection(name=name))
        await self.send(prompts.says, name, way="store")
        await self.call("agent.resume", AgentSelection(name=name))

    async def forget(self, name: str) -> None:
        """The conversation of an agent is not there any more."""
        with suppress(SteadyrunError):
            session = (await self.store.sessions(self.agents[name])).get("scripted")
            if session and session.current:
                file = self.home / "scripted" / f"{session.current.token}.json"
                await anyio.to_thread.run_sync(lambda: file.unlink(missing_ok=True))


def find_pids(process: str) -> dict[str, int]:
    """The pids of the CLI, its keeper and its outer process, as far as they run."""
    try:
        marked = keeper.find_marked(process)
        [cli] = {pid for pid in marked if parent(pid) not in marked and parent(parent(pid)) > 1}
        return {"cli": cli, "keeper": parent(cli), "outer": parent(parent(cli))}
    except (OSError, ValueError):
        return {}
