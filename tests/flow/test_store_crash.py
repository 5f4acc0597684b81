"""Tests that the record keeps its promises when its writer is killed at any moment.

A real process writes all it can and is killed, again and again, on the same home. After each kill
the store must hold everything that was acknowledged, once and as acknowledged, and of every write
that was open either all or nothing.

STEADYRUN_CRASH_KILLS and STEADYRUN_CRASH_SEED set the number of kills and repeat a run.
"""

import contextlib
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from steadyrun.errors import LeaseLost, NotFound
from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import Note
from steadyrun.model.ids import AgentId, HolderId, Ids, ProcessId
from steadyrun.model.item import Claim, Lease, Message
from steadyrun.model.run import Created, Orphaned
from steadyrun.store import Lane
from steadyrun.stores.sqlite import SqliteStore
from tests.children.crash_writer import Accept, CreateRun, Op, Orders, StartDirect
from tests.flow.crash_detection import Absent, Done, Seen, apply_open
from tests.flow.crash_model import RESULTS, Model

CHILD = Path(__file__).parents[1] / "children" / "crash_writer.py"
AGENTS = [AgentId(f"agt_{n}") for n in range(6)]
ALL = 10_000_000
PATIENCE_SECONDS = 30.0
MAY_CHANGE_NOTHING = {
    "accept",
    "cancel",
    "start",
    "offer_followups",
    "continue_with",
    "release_lane",
    "retry",
}
_PRESTARTED = 2

_op = msgspec.json.Decoder(Op)
_results = {kind: msgspec.json.Decoder(result) for kind, result in RESULTS.items()}


@dataclass
class ChildOutput:
    """What a child printed about its writes before it was killed."""

    acked: list[tuple[Op, Any]] = field(default_factory=list)
    open: dict[int, Op] = field(default_factory=dict)
    lines: int = 0

    def read_line(self, line: bytes) -> None:
        word, number, body = line.split(b" ", 2)
        self.lines += 1
        if word == b"open":
            self.open[int(number)] = _op.decode(body)
        else:
            op = self.open.pop(int(number))
            self.acked.append((op, _results[type(op)].decode(body)))


class Child:
    """A writer in a process of its own, started early and waiting for its orders."""

    def __init__(self, home: Path, errors: Path) -> None:
        self.output = ChildOutput()
        self._rest = b""
        self._errors = errors
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(CHILD), str(home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
            )

    def order(self, orders: Orders) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(orders) + b"\n")

    def listen(self, *, until_lines: int | None = None, seconds: float = PATIENCE_SECONDS) -> None:
        """Hear it until it said so much, or that long; to its last word if it is dead."""
        limit = time.monotonic() + seconds
        while until_lines is None or self.output.lines < until_lines:
            if not self._read_some(limit - time.monotonic()):
                return

    def listen_to_first_ack(self) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while not self.output.acked and self._read_some(limit - time.monotonic()):
            pass
        assert self.output.acked, self._errors.read_text()

    def kill(self) -> None:
        """Kill it, wait for its end, and hear what it said until then."""
        assert self._process.poll() is None, self._errors.read_text()
        self._process.send_signal(signal.SIGKILL)
        assert self._process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        self.listen()

    def discard(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read_some(self, seconds: float) -> bool:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        if not select.select([pipe], [], [], max(seconds, 0))[0]:
            return False
        data = os.read(pipe, 1 << 16)
        # A line that was cut off by the kill was not said: it comes last and is left over.
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.output.read_line(line)
        return bool(data)


@dataclass
class Tally:
    """What a run of this test has met."""

    seed: int
    kills: int = 0
    uncounted: int = 0
    acked: int = 0
    reaped: int = 0
    warm: int = 0
    bystanders: int = 0
    open: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        kinds = ", ".join(f"{verb} {n} ({self.happened[verb]})" for verb, n in self.open.items())
        return (
            f"seed {self.seed}: {self.kills} kills ({self.uncounted} more not counted, "
            f"{self.bystanders} with a bystander), {self.acked} acknowledged, "
            f"{sum(self.open.values())} open of which {sum(self.happened.values())} had happened, "
            f"{self.reaped} lanes reaped ({self.warm} warm); open by kind (happened): {kinds}"
        )


def test_killed_writer_loses_no_acknowledged_write_and_leaves_no_partial_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = _from_environment("STEADYRUN_CRASH_KILLS", 200)
    tally = Tally(_from_environment("STEADYRUN_CRASH_SEED", random.SystemRandom().getrandbits(32)))
    home, model, dice = tmp_path / "home", Model(), random.Random(tally.seed)
    anyio.run(_add_agents, home, model)

    try:
        with _prestart_children(home, tmp_path) as children:
            repeat: list[Message] = []
            while tally.kills < kills:
                repeat = _round(home, model, tally, dice, next(children), repeat)
        anyio.run(_compare_everything, home, model)
    finally:
        with capsys.disabled():
            sys.stdout.write(f"\n{tally}\n")

    assert tally.kills >= kills
    assert tally.reaped > tally.warm > 0


def _round(
    home: Path,
    model: Model,
    tally: Tally,
    dice: random.Random,
    child: Child,
    repeat: list[Message],
) -> list[Message]:
    """Let a child write, kill it, look; return the messages that the next one must say again."""
    with _bystander(home, tally, is_wanted=dice.random() < 0.25):
        number = tally.kills + tally.uncounted
        child.order(Orders(number, dice.getrandbits(32), AGENTS, repeat))
        child.listen_to_first_ack()
        if dice.random() < 0.5:
            child.listen(until_lines=child.output.lines + dice.randrange(250))
        child.listen(seconds=dice.random() * 0.02)
        child.kill()
        ops = list(child.output.open.values())
        _count(tally, child.output)
        anyio.run(_verify, home, model, tally, child.output)
    acked = [op.message for op, _ in child.output.acked if isinstance(op, Accept)]
    said = [op.message for op in ops if isinstance(op, Accept)] + acked[-2:]
    return [message for message in said if message.key is not None]


def _count(tally: Tally, output: ChildOutput) -> None:
    """Only a kill that came amid the writing counts."""
    if output.acked and output.open:
        tally.kills += 1
        tally.acked += len(output.acked)
    else:
        tally.uncounted += 1


async def _verify(home: Path, model: Model, tally: Tally, output: ChildOutput) -> None:
    events_before = len(model.log)
    for op, result in output.acked:
        model.apply(op, result)
    holder = output.acked[0][1].id
    store = await SqliteStore.open(home)
    try:
        assert await store.check() == []
        seen = await _look(store, model, output)
        detections = apply_open(model, seen, output.open.values())
        for op, detection in zip(output.open.values(), detections, strict=True):
            verb = str(op.__struct_config__.tag)
            tally.open[verb] += 1
            tally.happened[verb] += isinstance(detection, Done)
            assert isinstance(detection, (Done, Absent)) or verb in MAY_CHANGE_NOTHING
        _compare(model, seen)
        await _compare_events(store, model, after=events_before)
        await _take_over(store, model, tally, holder)
        _compare(model, await _look(store, model, output))
        model.compared()
    finally:
        await store.close()


async def _look(store: SqliteStore, model: Model, output: ChildOutput) -> Seen:
    """Read all that was touched, and everything newer than the model knows of."""
    touched = len(model.fresh_items) + len(output.open) + 1
    items = {i.id: i for i in await store.items(include_settled=True, limit=touched)}
    items |= {i.id: i for i in await store.items(limit=ALL)}
    for item in model.fresh_items - items.keys():
        items[item] = await store.item(item)
    runs = {r.id: r for r in await store.runs(limit=len(model.fresh_runs) + len(output.open) + 1)}
    processes = {p.id: p for p in await store.processes()}
    holders = {h.id: h for h in await store.holders()}
    hired = [op.agent.id for op in output.open.values() if isinstance(op, StartDirect)]
    lanes = {lane.agent: lane for lane in [await _lane(store, a) for a in (*model.lanes, *hired)]
             if lane}  # fmt: skip
    gates = {gate.provider: gate for gate in await store.gates()}
    kv = {"beat": await store.get("beat")}
    return Seen(items, lanes, runs, processes, holders, gates, kv)


async def _lane(store: SqliteStore, agent: AgentId) -> Lane | None:
    """None for one whose hiring did not happen."""
    try:
        return await store.lane(agent)
    except NotFound:
        return None


def _compare(model: Model, seen: Seen) -> None:
    """Nothing is missing, nothing is there that was not written, and all is as it was told."""
    for item in seen.items.values():
        assert item.id in model.items, f"not an accepted item: {item}"
        assert model.agrees_on(item), f"promised {model.items[item.id]}, found {item}"
    for agent, lane in seen.lanes.items():
        assert (lane.ready_at is not None) == (lane.queued > 0 and lane.status != "held")
        assert msgspec.structs.replace(lane, ready_at=None) == model.lanes[agent]
    assert seen.lanes.keys() == model.lanes.keys()
    assert seen.gates == model.gates
    assert seen.kv == {"beat": None, **model.kv}
    for run in seen.runs.values():
        assert run == model.runs.get(run.id)
    assert model.fresh_runs <= seen.runs.keys()
    for process in seen.processes.values():
        assert process == model.processes.get(process.id)
    assert model.fresh_processes <= seen.processes.keys()


async def _compare_events(store: SqliteStore, model: Model, *, after: int) -> None:
    """The events after a cursor are those of the model, in its order, in gapless places."""
    found = await store.events(after, limit=ALL)
    assert [(e.id, e.run) for e in found] == model.log[after:]
    assert [e.cursor for e in found] == list(range(after + 1, len(model.log) + 1))
    for event in found:
        if isinstance(event.event, Note):
            process, end = event.event.text.split()
            assert event.id == f"{process}:{end}.0"
    for agent in model.lanes:
        seqs = [e.seq for e in found if e.agent == agent]
        last = model.lanes[agent].event_seq
        assert seqs == list(range(last - len(seqs) + 1, last + 1))


async def _take_over(store: SqliteStore, model: Model, tally: Tally, dead: HolderId) -> None:
    """Every lane the dead one held comes to a new holder; its own claims are good for nothing."""
    heir = await store.join("heir")
    lost = await store.reap(heir.id)
    stale = model.reap(dead, heir.id, lost)
    tally.reaped += len(lost)
    tally.warm += sum(not isinstance(each.lease, Claim) for each in lost)
    for n, lease in enumerate(stale):
        await _refused(store, lease, n)
    for each in lost:
        await _finish(store, model, each.lease)
    await store.leave(heir.id)


async def _refused(store: SqliteStore, stale: Lease, n: int) -> None:
    """A late write of the dead holder, each time by another verb."""
    batch = Batch(ProcessId("prc_late"), None, 0, 100)
    verbs: list[Callable[[], Awaitable[object]]] = [
        lambda: store.append(stale, batch),
        lambda: store.release_lane(stale),
        lambda: store.continue_with(stale.to_lease(), Message(stale.agent, "late", "self")),
    ]
    if isinstance(stale, Claim):
        verbs += _claimed(store, stale)
    with pytest.raises(LeaseLost):
        await verbs[n % len(verbs)]()


def _claimed(store: SqliteStore, stale: Claim) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: store.settle(stale, Orphaned(stale.item.created_at), keep_warm=True),
        lambda: store.settle(stale, Orphaned(stale.item.created_at)),
        lambda: store.offer_followups(stale, 100),
        lambda: store.close_offer(stale, stale.item.id, "absorbed"),
    ]


async def _finish(store: SqliteStore, model: Model, lease: Lease) -> None:
    if not isinstance(lease, Claim):
        await store.release_lane(lease)
        model.release_lane(lease)
        return
    orphaned = Orphaned(lease.item.created_at)
    if lease.item.run is None:
        run = Ids(SystemClock().now).make_run()
        created = Created(run, lease.agent, lease.item.id, "claude", lease.item.created_at)
        model.apply(CreateRun(lease, created), await store.change(lease, run, created))
    model.settle(lease, orphaned, await store.settle(lease, orphaned))


async def _add_agents(home: Path, model: Model) -> None:
    store = await SqliteStore.open(home)
    for name in AGENTS:
        agent = Agent(name, name, ("claude",), str(home))
        await store.add_agent(agent)
        model.add_agent(agent)
    await store.close()


async def _compare_everything(home: Path, model: Model) -> None:
    """At the end all of it once more: what was right after one kill is right after all of them."""
    store = await SqliteStore.open(home)
    try:
        items = await store.items(include_settled=True, limit=ALL)
        assert len(items) == len(model.items)
        assert all(model.agrees_on(item) for item in items)
        for agent in AGENTS:
            seqs = sorted(item.seq for item in items if item.agent == agent)
            assert seqs == list(range(1, len(seqs) + 1))
        assert {run.id: run for run in await store.runs(limit=ALL)} == model.runs
        processes = await store.processes()
        assert {process.id: process for process in processes} == model.processes
        await _compare_events(store, model, after=0)
        assert len({event for event, _ in model.log}) == len(model.log)
    finally:
        await store.close()
    with contextlib.closing(sqlite3.connect(home / "steadyrun.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@contextlib.contextmanager
def _prestart_children(home: Path, place: Path) -> Iterator[Iterator[Child]]:
    """Children one after the other, the next ones starting while one is at work."""
    children: deque[Child] = deque()

    def grow() -> Iterator[Child]:
        child: Child | None = None
        for number in range(sys.maxsize):
            if child:
                child.discard()
            while len(children) < _PRESTARTED:
                children.append(Child(home, place / f"stderr-{number % 8}-{len(children)}"))
            child = children[0]
            yield child
            children.popleft()

    try:
        yield grow()
    finally:
        for child in children:
            child.discard()


@contextlib.contextmanager
def _bystander(home: Path, tally: Tally, *, is_wanted: bool) -> Iterator[None]:
    """Sometimes another connection outlives the writer: then opening recovers no log."""
    if not is_wanted:
        yield
        return
    tally.bystanders += 1
    with contextlib.closing(sqlite3.connect(home / "steadyrun.db")) as connection:
        connection.execute("SELECT count(*) FROM agents").fetchone()
        yield


def _from_environment(name: str, otherwise: int) -> int:
    return int(os.environ.get(name, otherwise))  # noqa: TID251 (a knob of this test alone)
