"""A process that writes to a store until it is killed, and prints each write before and after it.

Each write is printed twice on stdout: `open <n> <operation>` before it is asked for, and
`ack <n> <result>` after the verb has returned. Told in this order, the operations are in the order
of the writer's queue, and the answers in the order of its commits.

It starts with a line of JSON on stdin (`Orders`): the test can start it before the line is ready,
so that the imports are done early.
"""

import itertools
import os
import random
import sys
from collections import deque
from collections.abc import Awaitable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

import anyio
import msgspec
from msgspec import Struct, structs

from steadyrun.errors import ChangeRefused, LeaseLost
from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.batch import AppendResult, Batch
from steadyrun.model.event import Emitted, ErrorFact, Note
from steadyrun.model.gate import Closed
from steadyrun.model.ids import AgentId, HolderId, Ids, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Followup, Item, Lease, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Finished, Launched
from steadyrun.store import Accepted, OfferOutcome
from steadyrun.stores.sqlite import SqliteStore

T = TypeVar("T")
# How many bytes of its pretended journal an event stands for.
FRAME_BYTES = 100
_ACCEPTERS = 2
_DRIVERS = 4
_OWN_BACKLOG = 6


class Orders(Struct, frozen=True):
    """What to do: in which round, with which agents, and which messages to say once more."""

    round: int
    seed: int
    agents: list[AgentId]
    repeat: list[Message]


class Join(Struct, frozen=True, tag="join"):
    pass


class Accept(Struct, frozen=True, tag="accept"):
    message: Message


class Cancel(Struct, frozen=True, tag="cancel"):
    item: ItemId


class StartDirect(Struct, frozen=True, tag="start_direct"):
    holder: HolderId
    agent: Agent
    message: Message
    run: RunId
    at: datetime


class CloseGate(Struct, frozen=True, tag="update_gate"):
    until: datetime


class Put(Struct, frozen=True, tag="put"):
    key: str
    value: bytes


class CreateRun(Struct, frozen=True, tag="change"):
    claim: Claim
    created: Created


class OpenProcess(Struct, frozen=True, tag="open_process"):
    claim: Claim
    process: Process


class Stretch(Struct, frozen=True):
    """A batch in short: the events follow from it, so that a line stays a line."""

    process: ProcessId
    run: RunId
    from_offset: int
    count: int
    launched: Launched | None = None

    @property
    def to_offset(self) -> int:
        return self.from_offset + self.count * FRAME_BYTES


class Append(Struct, frozen=True, tag="append"):
    claim: Claim
    stretch: Stretch


class OfferFollowups(Struct, frozen=True, tag="offer_followups"):
    claim: Claim
    limit: int


class CloseOffer(Struct, frozen=True, tag="close_offer"):
    claim: Claim
    item: ItemId
    outcome: OfferOutcome


class Settle(Struct, frozen=True, tag="settle"):
    claim: Claim
    stretch: Stretch
    finished: Finished


class StartOne(Struct, frozen=True, tag="start"):
    holder: HolderId
    run: RunId
    at: datetime


class SettleWarm(Struct, frozen=True, tag="settle_warm"):
    claim: Claim
    stretch: Stretch
    finished: Finished


class EndRun(Struct, frozen=True, tag="end_run"):
    claim: Claim
    run: RunId
    finished: Finished


class Ended(Struct, frozen=True, tag="settle_ended"):
    claim: Claim


class Retry(Struct, frozen=True, tag="retry"):
    claim: Claim
    spends: bool


class StartUnprompted(Struct, frozen=True, tag="continue_with"):
    lease: Lease
    message: Message


class ReleaseLane(Struct, frozen=True, tag="release_lane"):
    lease: Lease


Op = (
    Join | Accept | Cancel | CreateRun | OpenProcess | Append | OfferFollowups | CloseOffer
    | Settle | StartOne | SettleWarm | EndRun | Ended | Retry | StartUnprompted
    | ReleaseLane | StartDirect | CloseGate | Put
)  # fmt: skip


def batch_of(stretch: Stretch) -> Batch:
    """The batch that a stretch is short for, the same wherever it is made."""
    return Batch(
        process=stretch.process,
        run=stretch.run,
        from_offset=stretch.from_offset,
        to_offset=stretch.to_offset,
        events=tuple(events_of(stretch)),
        change=stretch.launched,
    )


def events_of(stretch: Stretch) -> Sequence[Emitted]:
    at = SystemClock().now()
    ends = range(stretch.from_offset + FRAME_BYTES, stretch.to_offset + 1, FRAME_BYTES)
    return [Emitted(end, 0, at, Note(f"{stretch.process} {end}")) for end in ends]


def created_by(start: StartOne | StartDirect, agent: Agent, item: Item) -> Created:
    """The run that a start makes."""
    return Created(start.run, agent.id, item.id, agent.provider, start.at)


async def _unless_refused(verb: Awaitable[T]) -> T | None:
    """Another task of ours may have started something in the lane, or let it go."""
    try:
        return await verb
    except (ChangeRefused, LeaseLost):
        return None


class _Reporter:
    """Says what is begun and what is done, in whole lines and at once."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def do(self, op: Op, verb: Awaitable[T]) -> T:
        number = next(self._numbers)
        _say(b"open %d %s\n" % (number, msgspec.json.encode(op)))
        result = await verb
        if isinstance(result, AppendResult):
            result = msgspec.structs.replace(result, rows=())
        _say(b"ack %d %s\n" % (number, msgspec.json.encode(result)))
        return result


def _say(line: bytes) -> None:
    written = os.write(1, line)
    assert written == len(line)


class _Writer:
    """Runs several tasks that write as fast as they can.

    `main` runs it until the process is killed. Every verb goes through `_do`, which prints the
    operation before the call and the answer after it.
    """

    def __init__(self, store: SqliteStore, orders: Orders) -> None:
        self._store = store
        self._orders = orders
        self._random = random.Random(orders.seed)
        self._clock = SystemClock()
        self._ids = Ids(self._clock.now)
        self._texts = itertools.count(1)
        self._do = _Reporter().do

    async def run(self) -> None:
        holder = await self._do(Join(), self._store.join("crash"))
        for message in self._orders.repeat:
            await self._accept(message)
        await self._start_direct(holder.id)
        async with anyio.create_task_group() as tasks:
            for _ in range(_ACCEPTERS):
                tasks.start_soon(self._accept_and_cancel)
            tasks.start_soon(self._write_gates)
            for _ in range(_DRIVERS):
                tasks.start_soon(self._drive, holder.id)

    async def _accept_and_cancel(self) -> None:
        mine: deque[Item] = deque()
        while True:
            message = self._message()
            accepted = await self._accept(message)
            mine.append(accepted.item)
            if message.key is not None and self._random.random() < 0.3:
                await self._accept(message)
            if len(mine) > _OWN_BACKLOG:
                item = mine.popleft().id
                await self._do(Cancel(item), self._store.cancel(item))

    async def _start_direct(self, holder: HolderId) -> None:
        name = self._ids.make_agent()
        agent = Agent(name, name, ("claude",), "/", is_direct=True)
        message = structs.replace(self._message(), agent=agent.id)
        op = StartDirect(holder, agent, message, self._ids.make_run(), self._clock.now())
        hire = self._store.start_direct(holder, agent, message, partial(created_by, op))
        await self._work((await self._do(op, hire)).claim)

    async def _write_gates(self) -> None:
        """Close gates with increasing times, so that each change is an event; never the gate in
        use.
        """
        for n in itertools.count():
            until = self._clock.now() + timedelta(hours=1)
            news = Closed(until, "limit")
            await self._do(CloseGate(until), self._store.update_gate("codex", news))
            value = b"%d %d" % (self._orders.round, n)
            await self._do(Put("beat", value), self._store.put("beat", value))

    async def _drive(self, holder: HolderId) -> None:
        while True:
            claims = await self._start(holder)
            for claim in claims:
                await self._work(claim)
            if not claims:
                await self._accept(self._message())

    async def _begin(self, claim: Claim) -> None:
        run, now = self._ids.make_run(), self._clock.now()
        created = Created(run, claim.agent, claim.item.id, "claude", now)
        await self._do(CreateRun(claim, created), self._store.change(claim, run, created))

    async def _retry_item(self, claim: Claim, run: RunId) -> Claim | None:
        """End the run, and begin another one for the same item, unless it was asked to stop."""
        error = ErrorFact("crashed", "It crashed.")
        end = Finished(self._clock.now(), "failed", error=error)
        await self._do(EndRun(claim, run, end), self._store.change(claim, run, end))
        spends = self._random.random() < 0.5
        again = _unless_refused(self._store.retry(claim, spends=spends))
        tried = await self._do(Retry(claim, spends), again)
        if tried:
            await self._begin(tried)
        return tried

    async def _run_of(self, claim: Claim) -> RunId:
        [run] = await self._store.runs(claim.agent, limit=1)
        return run.id

    async def _start(self, holder: HolderId) -> list[Claim]:
        op = StartOne(holder, self._ids.make_run(), self._clock.now())
        started = await self._do(op, self._store.start(holder, partial(created_by, op)))
        return [each.claim for each in started]

    async def _work(self, claim: Claim) -> None:
        """Run the claim's item, whose run was made, and give the lane up or keep it."""
        run = await self._run_of(claim)
        process, now = self._ids.make_process(), self._clock.now()
        opened = Process(process, claim.agent, "claude", "here", "keeper", now)
        await self._do(OpenProcess(claim, opened), self._store.open_process(claim, opened))
        launched: Launched | None = Launched(now, process)
        offset = 0
        for _ in range(self._random.randrange(1, 5)):
            stretch = Stretch(process, run, offset, self._random.randrange(1, 60), launched)
            await self._append(claim, stretch)
            launched, offset = None, stretch.to_offset
        await self._follow_up(claim)
        if self._random.random() < 0.3:
            if not await self._retry_item(claim, run):
                await self._do(Ended(claim), self._store.settle(claim))
                return
            run = await self._run_of(claim)
        await self._end(claim, Stretch(process, run, offset, self._random.randrange(1, 20)))

    async def _append(self, claim: Claim, stretch: Stretch) -> None:
        await self._do(Append(claim, stretch), self._store.append(claim, batch_of(stretch)))

    async def _follow_up(self, claim: Claim) -> None:
        taken = await self._do(OfferFollowups(claim, 3), self._store.offer_followups(claim, 3))
        outcomes: tuple[OfferOutcome, ...] = get_args(OfferOutcome)
        for item, outcome in zip(taken, outcomes, strict=False):
            close = self._store.close_offer(claim, item.id, outcome)
            await self._do(CloseOffer(claim, item.id, outcome), close)

    async def _end(self, claim: Claim, stretch: Stretch) -> None:
        is_done = self._random.random() < 0.8
        status, text = ("completed", "done") if is_done else ("failed", None)
        error = None if is_done else ErrorFact("other", "It went wrong.")
        finished = Finished(self._clock.now(), status, text=text, error=error)  # type: ignore[arg-type]
        batch = batch_of(stretch)
        if self._random.random() < 0.5:
            settled = self._store.settle(claim, finished, batch)
            await self._do(Settle(claim, stretch, finished), settled)
        else:
            rested = self._store.settle(claim, finished, batch, keep_warm=True)
            await self._do(SettleWarm(claim, stretch, finished), rested)
            await self._after_settling_warm(Lease(claim.agent, claim.holder, claim.fence))

    async def _after_settling_warm(self, lease: Lease) -> None:
        """Release the lane, wake it, or leave it to the next task that starts a run in it."""
        chance = self._random.random()
        if chance < 0.3:
            await self._do(ReleaseLane(lease), _unless_refused(self._release_lane(lease)))
        elif chance < 0.6:
            message = structs.replace(self._message(), agent=lease.agent, kind="self", key=None)
            woken = _unless_refused(self._store.continue_with(lease, message))
            claim = await self._do(StartUnprompted(lease, message), woken)
            if claim:
                await self._begin(claim)
                await self._work(claim)

    async def _release_lane(self, lease: Lease) -> bool:
        await self._store.release_lane(lease)
        return True

    async def _accept(self, message: Message) -> Accepted:
        return await self._do(Accept(message), self._store.accept(message))

    def _message(self) -> Message:
        """A message whose text, and key if it has one, was never used before."""
        text = f"{self._orders.round}-{next(self._texts)}"
        key = f"key-{text}" if self._random.random() < 0.5 else None
        followup: Followup = "queue" if self._random.random() < 0.2 else "steer"
        agent = self._random.choice(self._orders.agents)
        return Message(agent, text, key=key, followup=followup)


async def main(home: Path) -> None:
    line = sys.stdin.buffer.readline()
    orders = msgspec.json.decode(line, type=Orders)
    store = await SqliteStore.open(home)
    await _Writer(store, orders).run()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
