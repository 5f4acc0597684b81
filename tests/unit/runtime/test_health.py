"""The largest value of the last minute, and the age of items that could run."""

from datetime import timedelta
from pathlib import Path
from typing import cast

from steadyrun.model.agent import Agent
from steadyrun.model.gate import Closed, Opened
from steadyrun.model.ids import Ids
from steadyrun.model.item import Message
from steadyrun.runtime.health import WINDOW_SECONDS, QueueAge, WindowMaximum
from steadyrun.store import Store
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.testing.clock import FakeClock

MINUTE = timedelta(minutes=1)


def test_maximum_is_that_of_the_window() -> None:
    window = WindowMaximum()
    values = ((0.0, 1.0), (1.0, 3.0), (2.0, 2.0))

    assert [window.add(now, value) for now, value in values] == [1.0, 3.0, 3.0]
    assert window.add(1.0 + WINDOW_SECONDS, 0.0) == 3.0
    assert window.add(1.5 + WINDOW_SECONDS, 0.0) == 2.0
    assert window.add(3.0 + 2 * WINDOW_SECONDS, 0.5) == 0.5


class WaitingItem:
    """An item that no daemon has claimed, and its age."""

    def __init__(self, home: Path) -> None:
        self.clock = FakeClock()
        self.store = cast("Store", MemoryStore(self.clock))
        self.agent = Agent(Ids(self.clock.now).make_agent(), "ada", ("scripted",), str(home))
        self._age = QueueAge(self.store, self.clock)

    async def send(self) -> None:
        await self.store.add_agent(self.agent)
        await self.store.accept(Message(self.agent.id, "hello"))

    async def measure_later(self) -> float:
        """The age after another minute."""
        self.clock.advance(MINUTE)
        return await self._age.measure()


async def test_age_of_a_waiting_item_grows(tmp_path: Path) -> None:
    item = WaitingItem(tmp_path)
    await item.send()

    assert [await item.measure_later() for _ in range(3)] == [0.0, 60.0, 120.0]


async def test_time_of_a_pause_does_not_count(tmp_path: Path) -> None:
    item = WaitingItem(tmp_path)
    await item.send()
    await item.measure_later()
    await item.store.set_paused(item.agent.id, is_paused=True)
    assert await item.measure_later() == 0.0

    await item.store.set_paused(item.agent.id, is_paused=False)

    assert [await item.measure_later() for _ in range(2)] == [0.0, 60.0]


async def test_time_of_a_closed_gate_does_not_count(tmp_path: Path) -> None:
    item = WaitingItem(tmp_path)
    await item.send()
    await item.measure_later()
    await item.store.update_gate("scripted", Closed(None, "by hand"))
    assert await item.measure_later() == 0.0

    await item.store.update_gate("scripted", Opened())

    assert [await item.measure_later() for _ in range(2)] == [0.0, 60.0]
