"""Tests processes that share one home: they write in turn, notify and outlive each other.

The test is one of the processes, `Actor` the others.
"""

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from steadyrun.errors import LeaseLost, StoreBusy
from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.event import Note
from steadyrun.model.ids import AgentId, ProcessId, RunId
from steadyrun.model.item import Claim, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Finished
from steadyrun.store import Holder, follow
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.store_conformance.fixtures import reap_claims
from tests.children.store_actor import one_event

CHILD = Path(__file__).parents[1] / "children" / "store_actor.py"
PATIENCE_SECONDS = 60.0
# A process that wakes earlier was woken by a hint.
NO_POLL_SECONDS = 3600.0
ALL = 1_000_000
AGENTS = [AgentId("agt_a"), AgentId("agt_b"), AgentId("agt_c")]


class Actor:
    """A process on the same home that executes commands of the test."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self.pid = self._process.pid

    def send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")

    def read_answer(self) -> Any:
        pipe = self._process.stdout
        assert pipe is not None
        line = b""
        while not line.endswith(b"\n"):
            assert select.select([pipe], [], [], PATIENCE_SECONDS)[0], "the other process is silent"
            data = os.read(pipe.fileno(), 1 << 16)
            assert data, "the other process has ended"
            line += data
        return msgspec.json.decode(line)

    def do(self, command: str) -> Any:
        self.send(command)
        return self.read_answer()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        assert self._process.wait(PATIENCE_SECONDS) == -signal.SIGKILL

    def dispose(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with three agents, and one item queued for each."""
    home = tmp_path / "home"

    async def fill() -> None:
        store = await SqliteStore.open(home)
        for agent in AGENTS:
            await store.add_agent(Agent(agent, agent, ("claude",), str(tmp_path)))
            await store.accept(Message(agent, "first"))
        await store.close()

    anyio.run(fill)
    return home


@pytest.fixture
def start(home: Path) -> Iterator[Callable[[], Actor]]:
    with contextlib.ExitStack() as stack:

        def start_one() -> Actor:
            actor = Actor(home)
            stack.callback(actor.dispose)
            return actor

        yield start_one


def with_store(
    home: Path,
    use: Callable[[SqliteStore], Awaitable[None]],
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Run `use` on a store of this process; nothing here may hang."""

    async def main() -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            store = await SqliteStore.open(home, busy_seconds=patience_seconds)
            try:
                await use(store)
            finally:
                await store.close()

    anyio.run(main)


# -- writing side by side


def test_two_processes_write_at_once_without_loss_or_starvation(
    home: Path, start: Callable[[], Actor]
) -> None:
    writes = 400
    actors = [start(), start()]
    claims = [_begin(actor) for actor in actors]

    for actor, claim in zip(actors, claims, strict=True):
        actor.send(f"both {writes} {claim.agent}")
    answers = [actor.read_answer() for actor in actors]

    async def look(store: SqliteStore) -> None:
        items = {item.id for item in await store.items(limit=ALL)}
        assert all(set(answer["items"]) <= items for answer in answers)
        assert len(items) == 2 * writes + len(AGENTS)
        assert [answer["offset"] for answer in answers] == [writes, writes]
        events = await store.events(limit=ALL)
        assert [event.cursor for event in events] == list(range(1, 2 * writes + 1))
        assert await store.check() == []
        writers = [event.event.text for event in events if isinstance(event.event, Note)]
        streaks = _streaks(writers)
        # Without taking turns, one in twenty is longer than twelve.
        assert streaks[len(streaks) * 19 // 20] <= 10
        assert streaks[-1] <= 200

    with_store(home, look)


def test_processes_that_open_and_close_at_once_lose_no_item(
    home: Path, start: Callable[[], Actor]
) -> None:
    """As short commands do: each time the log may just be made or removed by another."""
    visits = 50
    actors = [start() for _ in range(6)]
    for actor in actors:
        assert actor.do("close") == "closed"

    for actor in actors:
        actor.send(f"visit {visits} {AGENTS[0]}")
    accepted = [item for actor in actors for item in actor.read_answer()]

    async def look(store: SqliteStore) -> None:
        items = await store.items(AGENTS[0], limit=ALL)
        assert {item.id for item in items if item.text != "first"} == set(accepted)
        assert sorted(item.seq for item in items) == list(range(1, len(actors) * visits + 2))
        assert await store.check() == []

    with_store(home, look)


def test_many_appends_do_not_starve_a_sender(home: Path, start: Callable[[], Actor]) -> None:
    accepts = 200
    flooder = start()
    claim = _begin(flooder)
    assert flooder.do("flood") == "flooding"
    passed: list[int] = []

    async def send(store: SqliteStore) -> None:
        before = await _events_of(store, claim.agent)
        for n in range(accepts):
            await store.accept(Message(AGENTS[2], f"urgent {n}"))
            after = await _events_of(store, claim.agent)
            passed.append(after - before)
            before = after
        assert (await store.lane(AGENTS[2])).queued == accepts + 1

    with_store(home, send)
    appended = flooder.do("enough")

    # Each event is a commit of the other process: so many passed while one item was accepted.
    assert appended >= sum(passed) > accepts / 10, "the flood was starved"
    assert sorted(passed)[accepts // 2] <= 5, "the sender was starved"
    # The scheduler of a busy machine may hold the sender back a few times.
    assert sorted(passed)[accepts * 9 // 10] <= 200, "the sender was starved for a while"


# -- hints


@pytest.mark.parametrize("has_written", [False, True], ids=["has read only", "has written too"])
def test_write_wakes_a_follower_in_another_process(
    home: Path, start: Callable[[], Actor], has_written: bool
) -> None:
    writer = start()
    claim = _begin(writer)

    async def follow_one(store: SqliteStore) -> None:
        if has_written:
            await store.accept(Message(AGENTS[2], "ours"))
        stream = follow(store, agent=claim.agent, poll_seconds=NO_POLL_SECONDS)
        async with contextlib.aclosing(stream), anyio.create_task_group() as tasks:
            # One at a time: each event is written only after the one before was received.
            for number in range(1, 6):
                tasks.start_soon(_tell_when_idle, writer, "append 1")
                event = await anext(stream)
                assert event.seq == number

    with_store(home, follow_one)


def test_accepted_item_wakes_a_waiter_in_another_process(
    home: Path, start: Callable[[], Actor]
) -> None:
    sender = start()

    async def wait_for_item(store: SqliteStore) -> None:
        with store.hints.watch(None) as watch:
            before = await store.lane(AGENTS[0])
            sender.send(f"accept 1 {AGENTS[0]}")
            while (await store.lane(AGENTS[0])).queued == before.queued:
                assert await watch.wait(NO_POLL_SECONDS)

    with_store(home, wait_for_item)


# -- stopped and killed


def test_process_stopped_while_idle_blocks_no_other_process(
    home: Path, start: Callable[[], Actor]
) -> None:
    idle = start()
    idle.do(f"accept 5 {AGENTS[0]}")
    idle.stop()

    async def write(store: SqliteStore) -> None:
        for n in range(50):
            await store.accept(Message(AGENTS[1], f"message {n}"))
        assert (await store.lane(AGENTS[1])).queued == 51

    with_store(home, write, patience_seconds=1.0)
    idle.resume()

    assert len(idle.do(f"accept 5 {AGENTS[0]}")) == 5


@pytest.mark.parametrize("where", ["stop-in-transaction", "stop-in-turnstile"])
def test_process_stopped_in_a_write_makes_others_busy_until_it_continues(
    home: Path, start: Callable[[], Actor], where: str
) -> None:
    stopper = start()
    stopper.do(f"accept 1 {AGENTS[0]}")
    stopper.send(where)
    stopper.wait_until_stopped()

    async def meet_it(store: SqliteStore) -> None:
        with pytest.raises(StoreBusy) as refused:
            await store.accept(Message(AGENTS[1], "refused"))
        assert refused.value.retryable
        # Reading goes on all the while, and what was refused is not there.
        assert [item.text for item in await store.items(AGENTS[1])] == ["first"]
        patient = await SqliteStore.open(home)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(patient.accept, Message(AGENTS[1], "waits"))
            stopper.resume()
        assert [item.text for item in await store.items(AGENTS[1])] == ["waits", "first"]
        await patient.close()

    with_store(home, meet_it, patience_seconds=0.2)

    assert stopper.read_answer() in {"committed", "passed"}


def test_stopped_holder_keeps_its_lane_and_a_killed_one_loses_it(
    home: Path, start: Callable[[], Actor]
) -> None:
    actor = start()
    claim = _begin(actor)
    actor.stop()

    async def reap(store: SqliteStore) -> None:
        heir = await store.join("heir")
        assert await store.reap(heir.id) == []
        assert (await store.lane(claim.agent)).holder == claim.holder

        actor.kill()
        [inherited] = await reap_claims(store, heir.id)

        assert (inherited.agent, inherited.holder) == (claim.agent, heir.id)
        assert inherited.fence == claim.fence + 1
        assert inherited.item.id == claim.item.id
        assert await store.reap(heir.id) == []

    with_store(home, reap)


def test_claim_that_was_taken_over_cannot_write(home: Path, start: Callable[[], Actor]) -> None:
    actor = start()
    stale = _begin(actor)
    actor.do("append 3")
    actor.kill()

    async def write_late(store: SqliteStore) -> None:
        heir = await store.join("heir")
        [inherited] = await reap_claims(store, heir.id)
        [process] = await store.processes()
        run = inherited.item.run
        assert run is not None
        before = await _everything(store)
        for verb in _verbs_of_a_holder(store, stale, process, run):
            with pytest.raises(LeaseLost):
                await verb()
        assert await _everything(store) == before
        # The same verb with the claim that counts.
        await store.append(inherited, one_event(process.id, run, process.offset))

    with_store(home, write_late)


def test_holders_in_three_processes_get_different_lanes(
    home: Path, start: Callable[[], Actor]
) -> None:
    actors = [start() for _ in AGENTS]
    for actor in actors:
        actor.do("join")

    for actor in actors:
        actor.send("claim")
    claims = [msgspec.convert(actor.read_answer(), Claim) for actor in actors]

    assert sorted(claim.agent for claim in claims) == AGENTS
    assert len({claim.holder for claim in claims}) == len(AGENTS)


def test_closing_a_second_store_in_a_process_loses_no_write_of_the_first(
    home: Path, start: Callable[[], Actor]
) -> None:
    """Closing any descriptor of a file ends the locks of the whole process on it (POSIX)."""
    passer_by, later = start(), start()

    async def write_around_others(store: SqliteStore) -> None:
        await store.accept(Message(AGENTS[0], "before"))
        await (await SqliteStore.open(home)).close()
        passer_by.do(f"accept 1 {AGENTS[1]}")
        # If our locks were gone it would take itself for the last, and remove the log under us.
        passer_by.do("close")
        after = await store.accept(Message(AGENTS[0], "after"))

        [seen] = later.do(f"accept 1 {AGENTS[0]}")

        assert (await store.item(seen)).seq == after.item.seq + 1
        assert len(await store.items(AGENTS[0])) == 4
        assert await store.check() == []

    with_store(home, write_around_others)


def _begin(actor: Actor) -> Claim:
    msgspec.convert(actor.do("join"), Holder)
    return msgspec.convert(actor.do("claim"), Claim)


async def _tell_when_idle(actor: Actor, command: str) -> None:
    """Let the one who follows reach its wait first, as far as the loop knows."""
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    actor.send(command)


async def _events_of(store: SqliteStore, agent: AgentId) -> int:
    return (await store.lane(agent)).event_seq


async def _everything(store: SqliteStore) -> object:
    return (
        await store.items(include_settled=True, limit=ALL),
        [await store.lane(agent) for agent in AGENTS],
        await store.runs(limit=ALL),
        await store.processes(),
        await store.events(limit=ALL),
    )


def _verbs_of_a_holder(
    store: SqliteStore, claim: Claim, process: Process, run: RunId
) -> list[Callable[[], Awaitable[object]]]:
    now = SystemClock().now()
    created = Created(RunId("run_late"), claim.agent, claim.item.id, "claude", now)
    opened = Process(ProcessId("prc_late"), claim.agent, "claude", "here", "keeper", now)
    batch = one_event(process.id, run, process.offset)
    done = Finished(now, "completed")
    return [
        lambda: store.append(claim, batch),
        lambda: store.change(claim, created.id, created),
        lambda: store.change(claim, run, done),
        lambda: store.open_process(claim, opened),
        lambda: store.close_process(claim, process.id),
        lambda: store.offer_followups(claim),
        lambda: store.close_offer(claim, claim.item.id, "absorbed"),
        lambda: store.close_offer(claim, claim.item.id, "returned"),
        lambda: store.settle(claim, done),
        lambda: store.settle(claim, done, batch),
        lambda: store.settle(claim, done, keep_warm=True),
    ]


def _streaks(writers: list[str]) -> list[int]:
    """How often one process wrote in a row while the other had something to write; sorted."""
    still_both = min(len(writers) - writers[::-1].index(pid) for pid in set(writers))
    turns = itertools.groupby(writers[:still_both])
    return sorted(len(list(streak)) for _, streak in turns)
