"""Two stores in one world: what is there by now, and how it is drawn from."""

import asyncio
import platform
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from steadyrun.errors import SteadyrunError
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    Emitted,
    Event,
    EventSource,
    Foreign,
    Note,
    TextDelta,
    TextFinal,
    ToolStarted,
    make_place,
)
from steadyrun.model.ids import AgentId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Followup, Item, Message
from steadyrun.model.process import Checkpoint, Process
from steadyrun.model.run import (
    Created,
    EndStatus,
    Finished,
    Launched,
    Orphaned,
    RunChange,
    StopReason,
    Touched,
)
from steadyrun.model.secret import Scrubber, Secret
from steadyrun.model.session import ResumeToken
from steadyrun.model.usage import Cost, Usage
from steadyrun.store import Start, Started, Store
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.clock import START, FakeClock, make_ids
from steadyrun.testing.store_conformance.fixtures import ALL, read_everything

T = TypeVar("T")
CANARY = "canary-7f3a"
PROVIDERS = ("claude", "codex")
ACCOUNTS = ("", "x")

small = st.integers(0, 3)
providers = st.sampled_from(PROVIDERS)
chains = st.sampled_from([PROVIDERS, PROVIDERS[::-1], PROVIDERS[:1], PROVIDERS[1:]])
# Eighths add up to the same float in any order.
costs = st.one_of(
    st.just(Cost()),
    st.builds(
        lambda n, kind: Cost(n / 8, kind),
        st.integers(0, 40),
        st.sampled_from(["known", "estimated"]),
    ),
)
usages = st.builds(Usage, st.none() | st.integers(0, 99), st.none() | st.integers(0, 99))
texts = st.sampled_from(["", "words", f"the {CANARY}!", "ß\x00\n🐤"])
metadata = st.dictionaries(
    st.sampled_from(["a", "b"]), st.dictionaries(st.sampled_from(["c", "d"]), small, max_size=2),
    max_size=2,
)  # fmt: skip
keys = st.none() | st.sampled_from(["k", "", "l"])
sources: st.SearchStrategy[EventSource] = st.sampled_from(["s", "x", "r"])
endings: st.SearchStrategy[tuple[EndStatus, StopReason | None]] = st.tuples(
    st.sampled_from(["completed", "failed", "cancelled", "timed_out", "rate_limited"]),
    st.sampled_from([None, "user_stop", "shutdown", "hang"]),
)
ANSWERERS = ["user", "provider"]
events: st.SearchStrategy[Event | Foreign] = st.one_of(
    st.builds(TextFinal, texts),
    st.builds(ToolStarted, st.just("t"), st.just("Bash"), st.just({"x": [1, None]})),
    st.builds(
        ApprovalRequested,
        st.sampled_from(["1", "2"]),
        st.none(),
        texts,
        st.just({"x": [1]}),
        st.booleans(),
        st.sampled_from(["tool", "budget"]),
    ),
    st.builds(
        ApprovalResolved, st.sampled_from(["1", "2"]), st.just("allow"), st.sampled_from(ANSWERERS)
    ),
    st.just(Foreign("thought", 9, b"\x82\xa4type\xa7thought\xa1n\x01")),
)
rarely = st.integers(0, 19).map(lambda n: n == 7)
CHANGES = ["launched", "launched", "touched", "touched", "created", "orphaned", "finished"]

MAIN = {"none", "own_turn"}
WARM = ["wake", "append", "process", "next", "let_go"]
DEEDS = [
    *["append"] * 3, "repeat", "change", "create", "offer", "absorb", "cancel", *["go_on"] * 2,
    *["rest"] * 2, *["again"] * 2, "wake", *["next"] * 2,
]  # fmt: skip


@dataclass
class Work:
    """A claim and what was begun under it."""

    claim: Claim
    runs: list[RunId] = field(default_factory=lambda: [RunId("run_none")])
    processes: list[ProcessId] = field(default_factory=lambda: [ProcessId("prc_none")])
    opened: list[ProcessId] = field(default_factory=list)


class World(RuleBasedStateMachine):
    """Holds a SQLite store and the memory reference, and runs each verb on both.

    The rules of `Lockstep` call it. Invariant: both stores gave the same answer to every verb. A
    drawn number is an index into the agents, holders, items and claims that exist at that step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="steadyrun-"))
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.names = make_ids(self.clock, 1)
        self.agents: list[AgentId] = []
        self.holders: list[HolderId] = [HolderId("hld_none")]
        self.items: list[ItemId] = [ItemId("itm_none")]
        self.works: list[Work] = []
        self.appends: list[tuple[Claim, Batch]] = []
        self.settled: dict[ItemId, Item] = {}
        self.steps = 0
        # What both are configured with: it changes as if they were opened anew.
        self.accounts: dict[str, str] = {}
        self._going = {
            "go_on": self._go_on,
            "rest": self._rest,
            "again": self._again,
            "wake": self._wake,
            "next": self._next,
        }
        self.engine, self.reference = self.runner.run(self._open())

    def teardown(self) -> None:
        try:
            self._compare(all_reads)
        finally:
            self.runner.run(self.engine.close())
            self.runner.close()
            shutil.rmtree(self.home)

    def _do(self, action: str, work: Work, data: st.DataObject) -> None:
        claim = work.claim
        match action:
            case "append":
                self._append(claim, self._batch(data, work))
            case "repeat" if self.appends:
                self._append(claim, data.draw(st.sampled_from(self.appends[-4:]))[1])
            case "change":
                run, change = work.runs[-1], self._change(data, work)
                self._both(lambda store: store.change(claim, run, change))
            case "create":
                self._create(work)
            case "offer":
                self._accept(claim.agent, "more", None)
                self._both(lambda store: store.offer_followups(claim))
            case "absorb":
                item = self._item(data.draw(small))
                self._both(lambda store: store.close_offer(claim, item, "absorbed"))
            case "cancel":
                item = data.draw(st.sampled_from([claim.item.id, self._item(0)]))
                self._both(lambda store: store.cancel(item))
            case _:
                assert action == "repeat"

    def _both(self, verb: Callable[[Store], Awaitable[T]]) -> T | None:
        """The answer both give, None if both refuse."""
        theirs = self.runner.run(answer_of(verb(self.engine)))
        is_refused, answer = self.runner.run(answer_of(verb(self.reference)))
        assert theirs == (is_refused, answer)
        return None if is_refused else answer

    def _compare(
        self, reads: Callable[[Store, "World"], Coroutine[Any, Any, dict[str, object]]]
    ) -> None:
        theirs = self.runner.run(reads(self.engine, self))
        assert theirs == self.runner.run(reads(self.reference, self))

    async def _open(self) -> tuple[Store, Store]:
        scrubber = Scrubber([Secret(CANARY)])
        engine = await SqliteStore.open(
            self.home,
            clock=self.clock,
            ids=make_ids(self.clock, 2),
            scrubber=scrubber,
            accounts=self.accounts,
        )
        reference = MemoryStore(
            self.clock,
            ids=make_ids(self.clock, 2),
            scrubber=scrubber,
            accounts=self.accounts,
            machine=platform.node(),
        )
        return engine, reference

    def _add(self, name: str, *chain: str) -> None:
        agent = Agent(self.names.make_agent(), name, chain, "/")
        self.agents.append(agent.id)
        self._both(lambda store: store.add_agent(agent))

    def _join(self) -> None:
        holder = self._both(lambda store: store.join("worker"))
        assert holder
        self.holders.append(holder.id)

    def _accept(
        self, agent: AgentId, text: str, key: str | None, followup: Followup = "steer"
    ) -> None:
        message = Message(agent, text, key=key, followup=followup)
        accepted = self._both(lambda store: store.accept(message))
        if accepted:
            self.items.append(accepted.item.id)

    def _accept_and_start(
        self, agent: AgentId, key: str | None, holder: HolderId, but_not: Collection[str]
    ) -> None:
        run, now, message = self.names.make_run(), self.clock.now(), Message(agent, "now", key=key)

        def opened(agent: Agent, item: Item) -> Created:
            return Created(run, agent.id, item.id, agent.provider, now)

        accepted = self._both(lambda store: store.accept(message, Start(holder, opened, but_not)))
        if accepted:
            self.items.append(accepted.item.id)
        if accepted and accepted.started:
            self._add_work(accepted.started)

    def _create(self, work: Work) -> None:
        run, claim, account = (
            self.names.make_run(),
            work.claim,
            [None, None, "y"][len(work.runs) % 3],
        )
        created = Created(
            run, claim.agent, claim.item.id, "claude", self.clock.now(), account=account
        )
        if self._both(lambda store: store.change(claim, run, created)):
            work.runs.append(run)

    def _go_on(self, work: Work, data: st.DataObject) -> None:
        """Mostly from a run that ends now, to an offer, any item or a turn without a request."""
        claim, run, end = work.claim, work.runs[-1], Finished(self.clock.now(), *data.draw(endings))
        if data.draw(small) < 3:
            self._both(lambda store: store.change(claim, run, end))
        agent = self._agent(1) if data.draw(rarely) else claim.agent
        unasked = st.builds(Message, st.just(agent), texts, st.just("self"), keys)
        offers = [i.id for i in self._both(lambda store: store.offer_followups(claim, 2)) or []]
        to = data.draw(st.sampled_from([*offers, self._item(1)]) | unasked)
        went_on = self._both(lambda store: store.continue_with(claim, to))
        if went_on:
            self.items.append(went_on.item.id)
            self.works.append(Work(went_on, processes=work.processes, opened=work.opened))

    def _hire(self, n: int, agent: Agent, message: Message) -> None:
        holder, run, now = self._holder(n), self.names.make_run(), self.clock.now()

        def opened(agent: Agent, item: Item) -> Created:
            return Created(run, agent.id, item.id, agent.provider, now)

        started = self._both(lambda store: store.start_direct(holder, agent, message, opened))
        if started:
            self.items.append(started.claim.item.id)
            work = Work(started.claim, processes=[ProcessId("prc_none")], opened=[])
            work.runs.append(started.run.id)
            self.works.append(work)

    def _start(
        self, n: int, limit: int, agent: AgentId | None, excluded: Collection[str] = ()
    ) -> list[Work]:
        """Mostly with a new run for each item, now and then with one that exists."""
        holder, now = self._holder(n), self.clock.now()
        runs = [self.names.make_run() for _ in range(limit)]
        if n == 3 and self.works:
            runs = [work.runs[-1] for work in self.works[-limit:]] + runs

        def opened() -> Callable[[Agent, Item], Created]:
            left = iter(runs)
            return lambda agent, item: Created(next(left), agent.id, item.id, agent.provider, now)

        started = self._both(
            lambda store: store.start(holder, opened(), limit, agent=agent, excluded=excluded)
        )
        return [self._add_work(each) for each in started or []]

    def _add_work(self, started: Started) -> Work:
        process = [started.process.id] if started.process else []
        work = Work(started.claim, processes=[*process], opened=[*process])
        work.processes = work.processes or [ProcessId("prc_none")]
        work.runs.append(started.run.id)
        self.works.append(work)
        return work

    def _rest(self, work: Work, data: st.DataObject) -> None:
        claim, end = work.claim, Finished(self.clock.now(), *data.draw(endings))
        self._both(lambda store: store.settle(claim, end, keep_warm=True))

    def _again(self, work: Work, data: st.DataObject) -> None:
        """Mostly after the end of the run, and with another one."""
        claim, run, end = work.claim, work.runs[-1], Finished(self.clock.now(), *data.draw(endings))
        if data.draw(small) < 3:
            self._both(lambda store: store.change(claim, run, end))
        spends = data.draw(st.booleans())
        if self._both(lambda store: store.retry(claim, spends=spends)) and data.draw(small):
            self._create(work)

    def _wake(self, work: Work, data: st.DataObject) -> None:
        message = Message(work.claim.agent, "by itself", "self", data.draw(keys))
        woken = self._both(lambda store: store.continue_with(work.claim.to_lease(), message))
        if woken:
            self.items.append(woken.item.id)
            self.works.append(Work(woken, processes=work.processes, opened=work.opened))

    def _next(self, work: Work, data: st.DataObject) -> None:
        """Something new for its agent, and a start."""
        self._accept(work.claim.agent, "next", data.draw(keys))
        self._start(0, 1, work.claim.agent)

    def _open_process(self, work: Work) -> None:
        claim, now = work.claim, self.clock.now()
        provider = PROVIDERS[len(work.processes) % 2]
        account = self.accounts.get(provider, "")
        process = Process(
            self.names.make_process(), claim.agent, provider, "here", "/k", now, account=account
        )
        work.processes.append(process.id)
        self._both(lambda store: store.open_process(claim, process))
        if self._lane_of(claim) in {"held", "warm"}:
            work.opened.append(process.id)

    def _append(self, claim: Claim, batch: Batch) -> None:
        self.appends.append((claim, batch))
        self._both(lambda store: store.append(claim, batch))

    def _agent(self, n: int) -> AgentId:
        return self.agents[n % len(self.agents)]

    def _item(self, n: int) -> ItemId:
        return self.items[-1 - n % len(self.items)]

    def _holder(self, n: int) -> HolderId:
        """The newest, mostly: the older ones may have left."""
        return self.holders[-1 - n // 2 % len(self.holders)]

    def _work(self, n: int) -> Work:
        """The newest whose claim is alive, but any, also one that is over, for 3."""
        alive = [work for work in self.works if self._is_alive(work.claim)]
        return self.works[-2:][0] if n == 3 or not alive else alive[-1 - n // 2 % len(alive)]

    def _warm_work(self, n: int) -> Work:
        """The newest whose lane is warm, but any for 3."""
        warm = [work for work in self.works if self._lane_of(work.claim) == "warm"]
        return warm[-1] if warm and n < 3 else self._work(n)

    def _is_alive(self, claim: Claim) -> bool:
        return self._lane_of(claim) == "held"

    def _lane_of(self, claim: Claim) -> str | None:
        """How the lane of the claim is, if it is still this holder's."""
        is_refused, lane = self.runner.run(answer_of(self.reference.lane(claim.agent)))
        if is_refused or (lane.holder, lane.fence) != (claim.holder, claim.fence):
            return None
        return str(lane.status)

    def _run(self, work: Work, n: int) -> RunId:
        """The work's newest run; for 3 an older one, or one of other work."""
        return self.works[0].runs[-1] if n == 3 else work.runs[-1 - n // 2 % len(work.runs)]

    def _process(self, work: Work, n: int) -> ProcessId:
        return self.works[0].processes[-1] if n == 3 else work.processes[-1]

    def _change(self, data: st.DataObject, work: Work) -> RunChange:
        now, claim = self.clock.now(), work.claim
        kind, words = data.draw(st.sampled_from(CHANGES)), data.draw(st.none() | texts)
        usage, cost = data.draw(st.none() | usages), data.draw(st.none() | costs)
        process, is_active = data.draw(st.sampled_from([None, *work.opened])), cost is None
        status, reason = data.draw(endings)
        table = data.draw(metadata)
        run, active_at = work.runs[-1], now if is_active else None
        changes: dict[str, RunChange] = {
            "created": Created(run, claim.agent, None, "codex", now, metadata=table),
            "launched": Launched(now, process, active_at, table),
            "touched": Touched(now, usage, cost, words),
            "orphaned": Orphaned(now),
            "finished": Finished(now, status, reason, words, usage, cost, active_at=active_at),
        }
        return changes[kind]

    def _batch(self, data: st.DataObject, work: Work) -> Batch:
        """Mostly one that fits: it begins where the record of its process ends."""
        process, now = self._process(work, data.draw(small)), self.clock.now()
        start = self._offset(process) + data.draw(st.sampled_from([*[0] * 8, -10, 5]))
        end = start + data.draw(st.sampled_from([*[10] * 8, 0, 20, -5]))
        token = data.draw(st.none() | st.sampled_from(["one", "two"]))
        return Batch(
            process,
            data.draw(st.sampled_from([*[self._run(work, n) for n in (*[0] * 9, 2, 3)], None])),
            start,
            end,
            tuple(self._emitted(data, process, end)),
            self._change(data, work) if data.draw(small) == 1 else None,
            ResumeToken(token, "here", "/", None, now) if token else None,
            data.draw(st.none() | st.builds(Checkpoint, st.binary(max_size=3), small)),
        )

    def _emitted(self, data: st.DataObject, process: ProcessId, end: int) -> list[Emitted]:
        now = self.clock.now()
        said = data.draw(st.lists(events, max_size=3))
        emitted = [Emitted(end, n, now, e) for n, e in enumerate(said)]
        for source, n in data.draw(st.lists(st.tuples(sources, st.integers(1, 4)), max_size=2)):
            emitted.append(Emitted(make_place(source, n), 0, now, Note(f"{source}{n}")))
        if data.draw(rarely):
            emitted.append(Emitted(end, 9, now, TextDelta("live")))
        return emitted

    def _offset(self, process: ProcessId) -> int:
        found = self.runner.run(self.reference.processes([process]))
        return found[0].offset if found else 0


async def answer_of(verb: Awaitable[T]) -> tuple[bool, Any]:
    """What was returned, or the error's type and facts."""
    try:
        return False, await verb
    except SteadyrunError as error:
        return True, (type(error), vars(error), error.args)


async def main_reads(store: Store, world: World) -> dict[str, object]:
    return {
        "lanes": [await answer_of(store.lane(agent)) for agent in world.agents],
        "items": await store.items(include_settled=True, limit=ALL),
        "runs": await store.runs(limit=ALL),
        "events": await store.events(limit=ALL),
        "approvals": await store.approvals(include_settled=True, limit=ALL),
    }


async def all_reads(store: Store, world: World) -> dict[str, object]:
    processes = [process for work in world.works for process in work.processes]
    seen = await read_everything(store)
    seen["holders"] = await store.holders()
    seen["looks"] = await store.agent_overviews(START)
    seen["every agent"] = [await answer_of(store.agent(agent)) for agent in world.agents]
    seen["every process"] = await store.processes(processes)
    return seen
