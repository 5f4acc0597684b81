"""A store that cannot be written for a while delays the agents and loses nothing."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest

from steadyrun.errors import StoreBusy
from steadyrun.lib.task_group import task_group
from steadyrun.model import event as ev
from steadyrun.model.agent import Agent
from steadyrun.model.event import LiveEvent
from steadyrun.model.gate import Opened
from steadyrun.model.ids import AgentId, ItemId, ProcessId, RunId
from steadyrun.model.item import Item, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created
from steadyrun.runtime.process_pool import Capacity
from steadyrun.store import Start, Store
from steadyrun.stores.sqlite import SqliteStore
from tests.children.adoption_steps import WatchedStore
from tests.children.keeper_driver import eventually
from tests.support.daemon_harness import DaemonHarness, running_daemon, say, script, wait_for

Answer = TypeVar("Answer")

# How long the daemon's store waits for others, in place of half a minute.
SHORT_SECONDS = 0.2


class Lock:
    """Another process that locks the store until the test releases it."""

    def __init__(self, home: Path) -> None:
        self._connection = sqlite3.connect(
            home / "steadyrun.db", isolation_level=None, timeout=30, check_same_thread=False
        )

    def take(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def leave(self) -> None:
        self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


@dataclass
class Trap:
    """Locks the store right before the named step of the daemon, the first time; the daemon's own
    store then says that it is busy."""

    step: str
    lock: Lock
    is_set: bool = False
    is_sprung: bool = False

    async def take(self, names: Sequence[str], doing: Awaitable[Answer]) -> Answer:
        if self.is_set and self.step in names and not self.is_sprung:
            self.is_sprung = True
            await anyio.to_thread.run_sync(self.lock.take)
        return await doing


@asynccontextmanager
async def daemon_with_locked_store(
    place: Path, step: str, room: Capacity
) -> AsyncIterator[DaemonHarness]:
    """A daemon whose store is locked at that step, until the daemon has reported the outage."""
    (place / "home").mkdir()
    store = await SqliteStore.open(place / "home", busy_seconds=SHORT_SECONDS)
    trap = Trap(step, Lock(place / "home"))
    try:
        async with (
            running_daemon(place, room, wrap_store=lambda _: _watched(store, trap)) as harness,
            task_group() as tasks,
        ):
            # What a daemon does at its start is over then.
            await harness.send_and_wait(await harness.add_agent("zoe", "shell"), "echo hello")
            tasks.start_soon(_free, harness, trap)
            trap.is_set = True
            yield harness
            assert trap.is_sprung
            tasks.cancel_scope.cancel()
    finally:
        trap.lock.close()
        await store.close()


def _watched(store: Store, trap: "Trap | Busy | FailsToClose") -> Any:
    return WatchedStore(store, trap)  # type: ignore[arg-type]


async def _free(harness: DaemonHarness, trap: Trap) -> None:
    def is_logged() -> bool:
        facts = harness.log.facts_of("store.failed")
        return any("agent" in each or trap.step == each["phase"] for each in facts)

    await anyio.to_thread.run_sync(eventually, is_logged, "the trouble")
    trap.lock.leave()


# -- actions during the outage


async def _talk(harness: DaemonHarness, ada: AgentId) -> None:
    assert (await harness.send_and_wait(ada, say("one"))).reply == "one"


async def _crash(harness: DaemonHarness, ada: AgentId) -> None:
    item = await harness.send_and_wait(ada, script({"text": "one"}, {"crash": 3}))
    assert (item.status, item.attempt) == ("failed", 4)


async def _limit(harness: DaemonHarness, ada: AgentId) -> None:
    item = await harness.send(ada, script({"text": "one"}, {"rate_limit": {"resets_in": 3600}}))
    await harness.wait_for_lane(ada, "warm")
    [gate] = await harness.store.gates()
    assert gate.until
    await harness.store.cancel(item)
    await harness.store.update_gate(gate.provider, Opened())


async def _steer(harness: DaemonHarness, ada: AgentId) -> None:
    item = await harness.send(
        ada,
        script({"text": "one"}, harness.gates.wait_step("go"), {"text": "done"}, {"text": "over"}),
    )
    await harness.wait_for_text(ada, "one")
    more = await harness.send(ada, "more")
    await harness.wait_for_event(ada, ev.FollowupOffered)
    harness.gates.open("go")
    assert (await harness.wait_until_settled(item)).status == "completed"
    assert (await harness.wait_until_settled(more)).status == "completed"


async def _leave_over(harness: DaemonHarness, ada: AgentId) -> None:
    item = await harness.send_waiting(ada)
    own = await harness.send(ada, say("one"))
    await harness.wait_for_event(ada, ev.FollowupOffered)
    harness.gates.open("go")
    assert (await harness.wait_until_settled(item)).status == "completed"
    assert (await harness.wait_until_settled(own)).delivery == "own_turn"


async def _wake(harness: DaemonHarness, ada: AgentId) -> None:
    later = {"self_turn": {"after": 1.0, "steps": [{"text": "by itself"}]}}
    await harness.send_and_wait(ada, script(later, {"text": "one"}))
    await harness.wait_for_text(ada, "by itself")
    await harness.wait_until_idle(ada)


async def _make_room(harness: DaemonHarness, ada: AgentId) -> None:
    await harness.send_and_wait(ada, say("one"))
    bob = await harness.add_agent("bob")
    assert (await harness.send_and_wait(bob, say("two"))).reply == "two"
    assert (await harness.send_and_wait(ada, say("three"))).reply == "three"


Action = Callable[[DaemonHarness, AgentId], Awaitable[None]]
# The step, what is done, and what the record has about it.
ACTIONS: dict[str, tuple[Action, str | None]] = {
    "start": (_talk, None),
    "open_process": (_talk, "start"),
    "append started": (_talk, "append"),
    "append ended": (_talk, "append"),
    "settle warm": (_talk, "settle"),
    "retry": (_crash, "start"),
    "change created": (_crash, "start"),
    "close_process": (_crash, "settle"),
    "offer_followups": (_steer, "append"),
    "close_offer absorbed": (_steer, "append"),
    "continue_with": (_leave_over, "append"),
    "continue_with warm": (_wake, "append"),
    "release_lane": (_make_room, "settle"),
}


@pytest.mark.parametrize("step", ACTIONS)
async def test_busy_store_delays_a_run_and_loses_nothing(tmp_path: Path, step: str) -> None:
    action, phase = ACTIONS[step]

    async with daemon_with_locked_store(tmp_path, step, Capacity(processes=1)) as harness:
        ada = await harness.add_agent("ada")
        await action(harness, ada)
        eve = await harness.add_agent("eve")
        assert (await harness.send_and_wait(eve, say("I am fine"))).status == "completed"
        assert (await harness.send_and_wait(ada, say("so am I"))).status == "completed"

        texts = await harness.texts(ada)
        assert texts.count("one") == (4 if action is _crash else 1)
        failed = await harness.events_of(ada, ev.RecordFailed)
        assert [each.phase for each in failed] == ([phase] if phase else [])
        events = await harness.events(ada)
        assert [seen.seq for seen in events] == [*range(1, len(events) + 1)]


@dataclass
class Busy:
    """A store that is busy at the second call of `reap`."""

    reaps: int = 0

    async def take(self, names: Sequence[str], doing: Awaitable[Answer]) -> Answer:
        self.reaps += "reap" in names
        answer = await doing
        if "reap" in names and self.reaps == 2:
            raise StoreBusy("another process writes", path=Path("steadyrun.db"))
        return answer


async def test_busy_store_at_a_reap_is_logged_and_is_not_a_bug(
    tmp_path: Path,
) -> None:
    busy = Busy()

    # The harness asserts that no bug was logged.
    async with running_daemon(tmp_path, wrap_store=lambda store: _watched(store, busy)) as harness:
        ada = await harness.add_agent("ada")
        await wait_for(lambda: harness.log.facts_of("store.failed"), "the trouble")
        assert (await harness.send_and_wait(ada, say("one"))).reply == "one"

        assert busy.reaps == 2
        assert harness.log.facts_of("store.failed") == [{"phase": "reap", "code": "store_busy"}]


@dataclass
class FailsToClose:
    """A store that is busy at the first call of `close_process`."""

    was_busy: bool = False

    async def take(self, names: Sequence[str], doing: Coroutine[Any, Any, Answer]) -> Answer:
        if "close_process" in names and not self.was_busy:
            self.was_busy = True
            doing.close()
            raise StoreBusy("another process writes", path=Path("steadyrun.db"))
        return await doing


async def test_lane_whose_adoption_failed_on_a_busy_store_is_adopted_at_the_next_reap(
    tmp_path: Path,
) -> None:
    async with running_daemon(
        tmp_path, wrap_store=lambda store: _watched(store, FailsToClose())
    ) as harness:
        agents = [await harness.add_agent(name) for name in ("ada", "bo")]
        items = await _start_and_leave(harness, agents)
        await harness.daemon._reap_if_possible()
        assert harness.log.facts_of("store.failed") == [{"phase": "reap", "code": "store_busy"}]
        await harness.daemon._reap_if_possible()

        replies = [(await harness.wait_until_settled(item)).reply for item in items]
        assert replies == ["one", "one"]


async def _start_and_leave(harness: DaemonHarness, agents: Sequence[AgentId]) -> list[ItemId]:
    """Items that another holder has claimed. It leaves before it has launched their processes."""
    store, items = harness.store, []
    holder = (await store.join("daemon")).id
    for agent in agents:
        start = Start(holder, _create_run, frozenset())
        accepted = await store.accept(Message(agent, say("one")), start)
        assert accepted.started
        claim, now = accepted.started.claim, accepted.started.run.created_at
        row = Process(ProcessId(f"proc_{agent}"), agent, "scripted", "here", "none", now, seal="")
        await store.open_process(claim, row)
        items.append(claim.item.id)
    await store.leave(holder)
    return items


def _create_run(agent: Agent, item: Item) -> Created:
    return Created(RunId(f"run_{item.id}"), agent.id, item.id, agent.provider, item.created_at)


async def test_subscriber_receives_a_failed_write_before_it_is_stored(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    store = await SqliteStore.open(tmp_path / "home", busy_seconds=SHORT_SECONDS)
    lock = Lock(tmp_path / "home")
    async with running_daemon(tmp_path, wrap_store=lambda _: store) as harness:
        ada = await harness.add_agent("ada")
        item = await harness.send(ada, script({"text": "one"}, harness.gates.wait_step("go")))
        await harness.wait_for_text(ada, "one")
        worker = harness.find_worker(ada)
        with worker.lane.feed.subscribe() as listener:
            lock.take()
            harness.gates.open("go")
            while not isinstance(news := await listener.next(), LiveEvent):
                pass
            assert isinstance(news.event, ev.RecordFailed)
            assert news.run == (await harness.store.item(item)).run
            assert await harness.events_of(ada, ev.RecordFailed) == []
            lock.leave()
        assert (await harness.wait_until_settled(item)).status == "completed"
        await harness.wait_for_event(ada, ev.RecordFailed)
    lock.close()
    await store.close()


class Bug:
    """Something is wrong with ourselves: a step that goes wrong, once."""

    def __init__(self, step: str) -> None:
        self._step: str | None = step

    async def take(self, names: Sequence[str], doing: Coroutine[Any, Any, Answer]) -> Answer:
        if self._step in names:
            self._step = None
            doing.close()
            raise RuntimeError("an unexpected error")
        return await doing


BUGS = [
    "open_process",
    "append started",
    "append ended",
    "settle warm",
    "close_process",
    "release_lane",
]


@pytest.mark.parametrize("step", BUGS)
async def test_bug_in_the_run_of_one_agent_stops_no_other_agent(tmp_path: Path, step: str) -> None:
    buggy, room = Bug(step), Capacity(processes=1)
    async with running_daemon(
        tmp_path,
        room,
        wrap_store=lambda store: WatchedStore(store, buggy),  # type: ignore[arg-type]
        has_bugs=True,
    ) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        first = await harness.send_and_wait(ada, say("one"))
        # Who makes room for this one is ada, if her process still waits.
        assert (await harness.send_and_wait(bob, say("two"))).reply == "two"
        assert (await harness.send_and_wait(ada, say("three"))).reply == "three"

        # An item that ended before the worker could give it up keeps its end.
        may_end = step not in {"open_process", "append ended"}
        assert may_end or first.status == "failed"
        if first.status == "failed":
            assert first.error
            assert first.error.code == "internal"
        else:
            assert first.reply == "one"
        assert len(await harness.store.processes()) <= 1
