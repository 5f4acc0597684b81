"""What is offered to a turn, and wanted back before it was told?"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anyio

from steadyrun.dialect import Ability, Offer, Refused
from steadyrun.driver import Driver
from steadyrun.model.agent import Agent
from steadyrun.model.event import Event, FollowupReturned
from steadyrun.model.ids import Ids
from steadyrun.model.item import Item, Message
from steadyrun.model.run import Created
from steadyrun.runtime.agent.offers import OpenOffers
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.testing.clock import FakeClock


class Turn:
    """A driver whose CLI takes its time: an offer is known when it may be told."""

    is_open = True

    def __init__(self) -> None:
        self.asked, self.told = list[str](), list[str]()
        self.recalled = list[str]()
        self.may_tell = anyio.Event()

    async def steer(self, offer: Offer) -> Refused | None:
        self.asked.append(offer.id)
        await self.may_tell.wait()
        self.told.append(offer.id)
        return None

    async def recall(self, offer: str) -> bool:
        if offer in self.told:
            self.recalled.append(offer)
        return offer in self.told


class Process:
    """A process with such a driver."""

    abilities: frozenset[Ability] = frozenset({"steer", "recall"})

    def __init__(self) -> None:
        self.turn = Turn()
        self.noted: list[Event] = []

    @property
    def driver(self) -> Driver:
        return cast("Driver", self.turn)

    async def say(self, verb: Callable[[Driver], Awaitable[Any]]) -> Any:
        return await verb(self.driver)

    async def note(self, *events: Event) -> None:
        self.noted += events


async def _offering() -> tuple[MemoryStore, Process, OpenOffers, list[Item]]:
    """A run, and two messages that have come since."""
    clock = FakeClock()
    ids, store = Ids(clock.now), MemoryStore(clock)
    agent = Agent(ids.new_agent(), "ada", ("scripted",), "/")
    holder = await store.join("worker")
    started = await store.start_direct(
        holder.id,
        agent,
        Message(agent.id, "work"),
        lambda agent, item: Created(ids.new_run(), agent.id, item.id, "scripted", clock.now()),
    )
    process = Process()
    offers = OpenOffers(store, process, home=Path("/"), is_direct=False)
    offers.claim = started.claim
    items = [(await store.accept(Message(agent.id, text))).item for text in ("one", "two")]
    return store, process, offers, items


def test_what_is_wanted_back_before_it_was_told_is_not_told() -> None:
    async def main() -> None:
        store, process, offers, [one, two] = await _offering()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offers.look)
            await anyio.wait_all_tasks_blocked()
            await store.cancel(two.id)
            await offers.take_back(two.id)
            process.turn.may_tell.set()

        assert process.turn.asked == [one.id]
        assert process.noted == [FollowupReturned(two.id, "two", "it was taken back")]
        assert (await store.item(two.id)).status == "cancelled"
        assert list(offers.open) == [one.id]

    anyio.run(main)


def test_what_is_wanted_back_while_it_is_told_is_taken_back_then() -> None:
    async def main() -> None:
        _, process, offers, [one, two] = await _offering()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offers.look)
            await anyio.wait_all_tasks_blocked()
            await offers.take_back(one.id)
            assert process.turn.recalled == []
            process.turn.may_tell.set()

        assert process.turn.told == [one.id, two.id]
        assert process.turn.recalled == [one.id]
        await offers.note(FollowupReturned(one.id, "one", "it was taken back"))
        assert list(offers.open) == [two.id]

    anyio.run(main)
