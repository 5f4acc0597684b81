"""Do lasting agents work? A worker in this process, real keepers, scripted CLIs."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from steadyrun.assemble.runtime import open_runtime
from steadyrun.config import load
from steadyrun.model.agent import Agent
from steadyrun.model.event import TextFinal
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Item, Message
from steadyrun.runtime.daemon import Daemon
from steadyrun.runtime.worker import Room
from steadyrun.store import Store
from steadyrun.tasks import task_group

PATIENCE_SECONDS = 30.0
KEY = b"k" * 32
ALL = 100_000
USUAL = Room()

T = TypeVar("T")


def _is_settled(item: Item) -> bool:
    return item.is_settled


def script(*steps: object) -> str:
    return "script:" + msgspec.json.encode(steps).decode()


def says(text: str) -> str:
    return script({"text": text})


@dataclass
class Team:
    """A home with a daemon in it, and what a person would do there."""

    place: Path
    store: Store
    daemon: Daemon

    async def hire(self, name: str, **fields: Any) -> AgentId:
        home = self.place / name
        home.mkdir(exist_ok=True)
        agent = Agent(self.daemon.holding.around.ids.agent(), name, ("scripted",), str(home))
        await self.store.add_agent(msgspec.structs.replace(agent, **fields))
        return agent.id

    async def send(self, agent: AgentId, text: str, **fields: Any) -> ItemId:
        return (await self.store.accept(Message(agent, text, **fields))).item.id

    async def settled(self, item: ItemId) -> Item:
        agent = (await self.store.item(item)).agent
        found: Item = await self.until(agent, lambda: self.store.item(item), _is_settled)
        return found

    async def until(
        self, agent: AgentId, look: Callable[[], Any], is_it: Callable[[Any], bool]
    ) -> Any:
        with self.store.hints.watch(agent) as watch:
            while not is_it(found := await look()):
                await watch.wait(1.0)
        return found

    async def texts(self, agent: AgentId) -> list[str]:
        seen = await self.store.last_events(agent=agent, limit=ALL)
        return [each.event.text for each in seen if isinstance(each.event, TextFinal)]


@asynccontextmanager
async def working(place: Path, room: Room = USUAL, **limits: float) -> AsyncIterator[Team]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
    config = load(home=place / "home", cwd=place, environ=environ)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with (
            open_runtime(config, kind="daemon", machine="here") as usual,
            task_group() as tasks,
        ):
            around = replace(usual, limits=msgspec.structs.replace(usual.limits, **limits))
            daemon = Daemon(around, tasks, room=room, key=KEY)
            await daemon.recover()
            tasks.start_soon(daemon.serve)
            yield Team(place, around.store, daemon)
            await daemon.stop(drain_seconds=10, keep=False)
            tasks.cancel_scope.cancel()


def test_two_items_are_done_by_one_process_in_one_conversation(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            first = await team.settled(await team.send(ada, says("one")))
            second = await team.settled(await team.send(ada, says("two")))

            assert [first.status, second.status] == ["completed", "completed"]
            assert [first.reply, second.reply] == ["one", "two"]
            runs = await team.store.runs(ada)
            assert len({run.process for run in runs}) == 1
            assert (await team.store.lane(ada)).status == "warm"

    anyio.run(main)
