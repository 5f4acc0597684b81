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
from steadyrun.runtime.agent.lane import AgentLane
from steadyrun.runtime.agent.offers import OpenOffers
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


class SlowConnection(ProcessConnection):
    """A connection to a process with such a driver. What is noted is kept."""

    def __init__(self, lane: AgentLane) -> None:
        super().__init__(lane.outage, frozenset({"steer", "recall"}))
        self.slow = SlowDriver()
        self.open(cast("Driver", self.slow))
        self.noted: list[Event] = []

    async def note(self, *events: Event) -> None:
        self.noted += events


def _make_lane(store: MemoryStore, clock: FakeClock, agent: Agent) -> AgentLane:
    deps = SimpleNamespace(
        store=store, clock=clock, home=Path("/"), scrubber=Scrubber(()), bus=EventBus()
    )
    return AgentLane(cast("Deps", deps), agent, lambda _: None, waits_for_store=False)


async def _offering() -> tuple[MemoryStore, SlowConnection, OpenOffers, list[Item]]:
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
    connection = SlowConnection(lane)
    offers = OpenOffers(lane, connection)
    items = [(await store.accept(Message(agent.id, text))).item for text in ("one", "two")]
    return store, connection, offers, items


async def test_offer_that_is_withdrawn_before_it_was_sent_is_not_sent() -> None:
    store, connection, offers, [one, two] = await _offering()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(offers.send_waiting)
        await anyio.wait_all_tasks_blocked()
        await store.cancel(two.id)
        await offers.withdraw(two.id)
        connection.slow.may_send.set()

    assert connection.slow.asked == [one.id]
    assert connection.noted == [FollowupReturned(two.id, "two", "it was withdrawn")]
    assert (await store.item(two.id)).status == "cancelled"
    assert list(offers.open) == [one.id]


async def test_offer_that_is_withdrawn_while_it_is_sent_is_recalled_afterwards() -> None:
    _, connection, offers, [one, two] = await _offering()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(offers.send_waiting)
        await anyio.wait_all_tasks_blocked()
        await offers.withdraw(one.id)
        assert connection.slow.recalled == []
        connection.slow.may_send.set()

    assert connection.slow.sent == [one.id, two.id]
    assert connection.slow.recalled == [one.id]
    await offers.settle(FollowupReturned(one.id, "one", "it was withdrawn"))
    assert list(offers.open) == [two.id]
