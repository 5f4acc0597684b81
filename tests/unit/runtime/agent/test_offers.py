"""What becomes of an offer that is withdrawn before or while it is sent."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio

from steadyrun.dialect import Offer, Refused
from steadyrun.driver import Driver
from steadyrun.model.agent import Agent
from steadyrun.model.event import Event, FollowupReturned
from steadyrun.model.ids import Ids
from steadyrun.model.item import Item, Message
from steadyrun.model.run import Created
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.agent.connection import ProcessConnection
from steadyrun.runtime.agent.lane import Lane
from steadyrun.runtime.agent.offers import OpenOffers
from steadyrun.runtime.agent.process import LiveProcess
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.events.bus import EventBus
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.testing.clock import FakeClock


class SlowDriver:
    """A driver whose CLI takes its time: an offer is sent when the test allows it."""

    is_open = True

    def __init__(self) -> None:
        self.asked, self.sent = list[str](), list[str]()
        self.recalled = list[str]()
        self.may_send = anyio.Event()

    async def steer(self, offer: Offer) -> Refused | None:
        self.asked.append(offer.id)
        await self.may_send.wait()
        self.sent.append(offer.id)
        return None

    async def recall(self, offer: str) -> bool:
        if offer in self.sent:
            self.recalled.append(offer)
        return offer in self.sent


class Process:
    """A process that is connected to such a driver."""

    def __init__(self, lane: Lane) -> None:
        self.driver = SlowDriver()
        self.connection = ProcessConnection(lane.outage, frozenset({"steer", "recall"}))
        self.connection.open(cast("Driver", self.driver))
        self.noted: list[Event] = []

    async def note(self, *events: Event) -> None:
        self.noted += events


def _make_lane(store: MemoryStore, clock: FakeClock, agent: Agent) -> Lane:
    deps = SimpleNamespace(
        store=store, clock=clock, home=Path("/"), scrubber=Scrubber(()), bus=EventBus()
    )
    return Lane(cast("Deps", deps), agent, lambda _: None, is_patient=False)


async def _offering() -> tuple[MemoryStore, Process, OpenOffers, list[Item]]:
    """A run, and two messages that have come since."""
    clock = FakeClock()
    ids, store = Ids(clock.now), MemoryStore(clock)
    agent = Agent(ids.make_agent(), "ada", ("scripted",), "/")
    holder = await store.join("worker")
    started = await store.start_direct(
        holder.id,
        agent,
        Message(agent.id, "work"),
        lambda agent, item: Created(ids.make_run(), agent.id, item.id, "scripted", clock.now()),
    )
    lane = _make_lane(store, clock, agent)
    lane.lease.set(started.claim)
    process = Process(lane)
    offers = OpenOffers(lane, cast("LiveProcess", process))
    items = [(await store.accept(Message(agent.id, text))).item for text in ("one", "two")]
    return store, process, offers, items


def test_offer_that_is_withdrawn_before_it_was_sent_is_not_sent() -> None:
    async def main() -> None:
        store, process, offers, [one, two] = await _offering()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offers.send_waiting)
            await anyio.wait_all_tasks_blocked()
            await store.cancel(two.id)
            await offers.withdraw(two.id)
            process.driver.may_send.set()

        assert process.driver.asked == [one.id]
        assert process.noted == [FollowupReturned(two.id, "two", "it was taken back")]
        assert (await store.item(two.id)).status == "cancelled"
        assert list(offers.open) == [one.id]

    anyio.run(main)


def test_offer_that_is_withdrawn_while_it_is_sent_is_recalled_afterwards() -> None:
    async def main() -> None:
        _, process, offers, [one, two] = await _offering()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offers.send_waiting)
            await anyio.wait_all_tasks_blocked()
            await offers.withdraw(one.id)
            assert process.driver.recalled == []
            process.driver.may_send.set()

        assert process.driver.sent == [one.id, two.id]
        assert process.driver.recalled == [one.id]
        await offers.settle(FollowupReturned(one.id, "one", "it was taken back"))
        assert list(offers.open) == [two.id]

    anyio.run(main)
