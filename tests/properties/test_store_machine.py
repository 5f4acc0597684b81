"""SQLite and the reference, told the same things, answer the same."""

import asyncio
import platform
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from steadyrun.errors import SteadyrunError
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import (
    Emitted,
    Event,
    Foreign,
    Note,
    OurSource,
    TextDelta,
    TextFinal,
    ToolStarted,
    our_place,
)
from steadyrun.model.gate import Gate
from steadyrun.model.ids import AgentId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Followup, Item, Message
from steadyrun.model.process import Checkpoint, Process
from steadyrun.model.run import (
    Adopted,
    Cancelled,
    Change,
    Created,
    EndStatus,
    Finished,
    Launched,
    Orphaned,
    StopReason,
    Touched,
)
from steadyrun.model.secret import Scrubber, Secret
from steadyrun.model.session import ResumeToken
from steadyrun.model.usage import Cost, Usage
from steadyrun.store import DEDUP_RETENTION, Store
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.clock import FakeClock, seeded_ids
from steadyrun.testing.memory import MemoryStore
from steadyrun.testing.store_suite.scene import ALL, everything

T = TypeVar("T")
CANARY = "canary-7f3a"
PROVIDERS = ("claude", "codex")

small = st.integers(0, 3)
providers = st.sampled_from(PROVIDERS)
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
sources: st.SearchStrategy[OurSource] = st.sampled_from(["s", "x", "r"])
endings: st.SearchStrategy[tuple[EndStatus, StopReason | None]] = st.tuples(
    st.sampled_from(["completed", "failed", "cancelled", "timed_out", "rate_limited"]),
    st.sampled_from([None, "user_stop", "shutdown", "hang"]),
)
events: st.SearchStrategy[Event | Foreign] = st.one_of(
    st.builds(TextFinal, texts),
    st.builds(ToolStarted, st.just("t"), st.just("Bash"), st.just({"x": [1, None]})),
    st.just(Foreign("thought", 9, b"\x82\xa4type\xa7thought\xa1n\x01")),
)
rarely = st.integers(0, 19).map(lambda n: n == 7)
CHANGES = ["launched", "launched", "touched", "touched", "created", "adopted", "ended", "finished"]

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


class Lockstep(RuleBasedStateMachine):
    """Two stores in one world. What is drawn is an index into what there is by now."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="steadyrun-"))
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.names = seeded_ids(self.clock, 1)
        self.agents: list[AgentId] = []
        self.holders: list[HolderId] = [HolderId("hld_none")]
        self.items: list[ItemId] = [ItemId("itm_none")]
        self.works: list[Work] = []
        self.appends: list[tuple[Claim, Batch]] = []
        self.settled: dict[ItemId, Item] = {}
        self.steps = 0
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
            self._compare(_all_reads)
        finally:
            self.runner.run(self.engine.close())
            self.runner.close()
            shutil.rmtree(self.home)

    @initialize()
    def begin(self) -> None:
        for name, provider in zip(("ada", "bo"), PROVIDERS, strict=True):
            self._add(name, provider)
        self._join()

    @invariant()
    def reads_agree(self) -> None:
        """The cheap ones after every step, all of them now and then and at the end."""
        self.steps += 1
        self._compare(_all_reads if self.steps % 8 == 0 else _main_reads)

    @invariant()
    def what_is_settled_stays_and_lanes_are_what_they_say(self) -> None:
        items = self.runner.run(self.reference.items(include_settled=True, limit=ALL))
        self.settled = {**{i.id: i for i in items if i.is_settled}, **self.settled}
        assert not [i for i in items if i != self.settled.get(i.id, i)]
        running = [i.agent for i in items if i.status == "running" and i.delivery in MAIN]
        answers = [self.runner.run(_answer(self.reference.lane(agent))) for agent in self.agents]
        lanes = [lane for is_refused, lane in answers if not is_refused]
        assert sorted(running) == sorted(lane.agent for lane in lanes if lane.status == "held")
        for lane in lanes:
            queued = [i for i in items if i.agent == lane.agent and i.status == "queued"]
            assert lane.queued == len(queued)
            assert (lane.ready_at is not None) == (lane.queued > 0 and lane.status != "held")
            assert (lane.holder is not None) == (lane.status in {"held", "warm"})
            assert lane.holder or lane.status == ("ready" if lane.queued else "idle")

    # -- agents, items, what stands in the way

    @rule(n=small, text=texts, key=keys, followup=st.sampled_from(["steer", "queue"]))
    def accept(self, n: int, text: str, key: str | None, followup: Followup) -> None:
        self._accept(self._agent(n), text, key, followup)

    @rule(n=st.integers(0, 9))
    def cancel(self, n: int) -> None:
        item = self._item(n)
        self._both(lambda store: store.cancel(item))

    @rule(n=small, minutes=st.none() | small, verb=st.sampled_from(["resume", "pause", "gate"]))
    def hinder(self, n: int, minutes: int | None, verb: str) -> None:
        agent = self._agent(n)
        until = None if minutes is None else self.clock.now() + timedelta(minutes=minutes)
        gate = Gate(PROVIDERS[n % 2], "x" * (n // 2), until, CANARY if until else None)
        verbs: dict[str, Callable[[Store], Awaitable[None]]] = {
            "resume": lambda store: store.resume(agent),
            "pause": lambda store: store.pause(agent),
            "gate": lambda store: store.set_gate(gate),
        }
        self._both(verbs[verb])

    @rule(by=st.sampled_from([*[timedelta(minutes=1)] * 3, DEDUP_RETENTION, timedelta(0, 0, 1)]))
    def advance(self, by: timedelta) -> None:
        self.clock.advance(by)

    @rule(n=small, name=st.sampled_from(["ada", "cy"]))
    def people_change(self, n: int, name: str) -> None:
        """Somebody joins, leaves or is added, perhaps under a name that is taken."""
        if n == 0:
            self._add(name, PROVIDERS[0])
        elif n == 1:
            self._join()
        else:
            holder = self.holders[-n % len(self.holders)]
            self._both(lambda store: store.leave(holder))

    @rule(n=small, name=st.sampled_from(["ada", "cy", "di", "ed"]), is_direct=st.booleans())
    def hire(self, n: int, name: str, is_direct: bool) -> None:
        agent = Agent(self.names.agent(), name, (PROVIDERS[n % 2],), "/", is_direct=is_direct)
        message = Message(agent.id if n else self._agent(n), "at once")
        self.agents.append(agent.id)
        accepted = self._both(lambda store: store.hire(agent, message))
        if accepted:
            self.items.append(accepted.item.id)

    @rule(n=st.integers(0, 9), data=st.data())
    def change_agent(self, n: int, data: st.DataObject) -> None:
        """Mostly as it may be; sometimes it was otherwise, or the name is taken."""
        was = self._both(lambda store: store.agent(self._agent(n)))
        if was is None:
            return
        names = st.sampled_from([was.name, "ada", "fay"])
        agent = replace(
            was,
            name=data.draw(names),
            providers=(data.draw(providers),),
            is_direct=was.is_direct ^ data.draw(rarely),
        )
        known = replace(was, home="/elsewhere") if data.draw(rarely) else was
        self._both(lambda store: store.set_agent(agent, was=known))

    @rule(n=st.integers(0, 9))
    def remove_agent(self, n: int) -> None:
        agent = self._agent(n)
        self._both(lambda store: store.remove_agent(agent))

    @rule(key=st.sampled_from(["beat", ""]), value=st.binary(max_size=3))
    def remember(self, key: str, value: bytes) -> None:
        self._both(lambda store: store.remember(key, value))
        self._both(lambda store: store.recall(key))

    @precondition(lambda self: self.works)
    @rule(n=small, provider=providers, reason=texts)
    def retire_token(self, n: int, provider: str, reason: str) -> None:
        work = self._warm_work(n)
        self._both(lambda store: store.retire_token(work.claim, provider, reason))

    # -- claims and follow-ups

    @rule(n=small, limit=small, agent=st.none() | small)
    def claim(self, n: int, limit: int, agent: int | None) -> None:
        self._claim(n, limit, None if agent is None else self._agent(agent))

    @rule(
        n=small, limit=small, agent=st.none() | small, but_not=st.sets(st.sampled_from(PROVIDERS))
    )
    def start(self, n: int, limit: int, agent: int | None, but_not: set[str]) -> None:
        self._start(n, limit, None if agent is None else self._agent(agent), but_not)

    @rule(n=small, deeds=st.lists(st.sampled_from(DEEDS), max_size=6), data=st.data())
    def work_a_while(self, n: int, deeds: list[str], data: st.DataObject) -> None:
        """From a message to an open process, and then whatever may happen in a run."""
        agent = self._agent(n)
        self._both(lambda store: store.resume(agent))
        self._accept(agent, "work", None)
        for work in self._claim(0, 1, agent):
            self._create(work)
            self._open_process(work)
            for deed in deeds:
                verb = self._going.get(deed) or partial(self._do, deed)
                verb(self.works[-1], data)

    def _do(self, deed: str, work: Work, data: st.DataObject) -> None:
        claim = work.claim
        match deed:
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
                self._both(lambda store: store.take(claim))
            case "absorb":
                item = self._item(data.draw(small))
                self._both(lambda store: store.absorb(claim, item))
            case "cancel":
                item = data.draw(st.sampled_from([claim.item.id, self._item(0)]))
                self._both(lambda store: store.cancel(item))
            case _:
                assert deed == "repeat"

    @rule(n=small, lasting=st.booleans())
    def reap(self, n: int, lasting: bool) -> None:
        holder = self._holder(n)
        for lost in self._both(lambda store: store.reap(holder, lasting=lasting)) or []:
            hold = lost.hold
            for work in [w for w in self.works if w.claim.agent == hold.agent][-1:]:
                # A warm lane has no item: the claim that rested is good as a hold.
                item = hold.item if isinstance(hold, Claim) else work.claim.item
                claim = Claim(hold.agent, hold.holder, hold.fence, item)
                self.works.append(Work(claim, work.runs, work.processes, work.opened))

    @precondition(lambda self: self.works)
    @rule(n=small, limit=small, text=st.none() | texts, most_bytes=st.sampled_from([0, 6, 99]))
    def take(self, n: int, limit: int, text: str | None, most_bytes: int) -> None:
        claim = self._work(n).claim
        if text is not None:
            self._accept(claim.agent, text, None)
        self._both(lambda store: store.take(claim, limit, most_bytes=most_bytes))

    @precondition(lambda self: self.works)
    @rule(n=small, item=small, is_absorbed=st.booleans())
    def absorb_or_give_back(self, n: int, item: int, is_absorbed: bool) -> None:
        claim, offer = self._work(n).claim, self._item(item)
        self._both(lambda store: (store.absorb if is_absorbed else store.give_back)(claim, offer))

    @precondition(lambda self: self.works)
    @rule(n=small)
    def release(self, n: int) -> None:
        claim = self._work(n).claim
        self._both(lambda store: store.release(claim))

    @precondition(lambda self: self.works)
    @rule(n=small, data=st.data())
    def go_on(self, n: int, data: st.DataObject) -> None:
        work = self._work(n)
        self._accept(work.claim.agent, "later", None)
        self._create(work)
        self._go_on(work, data)

    @precondition(lambda self: self.works)
    @rule(n=small, data=st.data())
    def again(self, n: int, data: st.DataObject) -> None:
        self._again(self._work(n), data)

    @precondition(lambda self: self.works)
    @rule(n=small, data=st.data(), has_batch=st.booleans())
    def rest(self, n: int, data: st.DataObject, has_batch: bool) -> None:
        work = self._work(n)
        change, batch = self._change(data, work), self._batch(data, work) if has_batch else None
        self._both(lambda store: store.rest(work.claim, change, batch))

    @precondition(lambda self: self.works)
    @rule(
        n=small,
        verb=st.sampled_from(["wake", "append", "process", "next", "let_go"]),
        data=st.data(),
    )
    def use_a_warm_lane(self, n: int, verb: str, data: st.DataObject) -> None:
        work = self._warm_work(n)
        match verb:
            case "wake":
                self._wake(work, data)
            case "append":
                self._append(work.claim, self._batch(data, work))
            case "process":
                self._open_process(work)
            case "next":
                self._next(work, data)
            case _:
                self._both(lambda store: store.let_go(work.claim))

    # -- runs, processes, events

    @precondition(lambda self: self.works)
    @rule(n=small)
    def create(self, n: int) -> None:
        self._create(self._work(n))

    @precondition(lambda self: self.works)
    @rule(n=small, run=small, data=st.data())
    def change(self, n: int, run: int, data: st.DataObject) -> None:
        work = self._work(n)
        target, change = self._run(work, run), self._change(data, work)
        self._both(lambda store: store.change(work.claim, target, change))

    @precondition(lambda self: self.works)
    @rule(n=small, process=small, is_opened=st.booleans())
    def open_or_close_process(self, n: int, process: int, is_opened: bool) -> None:
        work = self._work(n)
        if is_opened:
            self._open_process(work)
        target = self._process(work, process)
        self._both(lambda store: store.close_process(work.claim, target))

    @precondition(lambda self: self.works)
    @rule(n=small, times=st.integers(1, 3), data=st.data())
    def append(self, n: int, times: int, data: st.DataObject) -> None:
        work = self._work(n)
        for _ in range(times):
            self._append(work.claim, self._batch(data, work))

    @precondition(lambda self: self.appends)
    @rule(n=st.integers(0, 9), is_now=st.booleans())
    def append_again(self, n: int, is_now: bool) -> None:
        claim, batch = self.appends[-1 - n % len(self.appends)]
        self._append(self._work(0).claim if is_now else claim, batch)

    @precondition(lambda self: self.works)
    @rule(n=small, data=st.data(), has_change=st.booleans(), has_batch=st.booleans())
    def settle(self, n: int, data: st.DataObject, has_change: bool, has_batch: bool) -> None:
        work = self._work(n)
        change = self._change(data, work) if has_change else None
        batch = self._batch(data, work) if has_batch else None
        self._both(lambda store: store.settle(work.claim, change, batch))

    @precondition(lambda self: self.works)
    @rule(n=small, finished=endings, usage=st.none() | usages, cost=st.none() | costs)
    def finish(
        self, n: int, finished: tuple[EndStatus, StopReason | None], usage: Usage, cost: Cost
    ) -> None:
        claim, now = self._work(n).claim, self.clock.now()
        end = Finished(now, *finished, text=CANARY, usage=usage, cost=cost)
        self._both(lambda store: store.settle(claim, end))

    # -- reading

    @rule(n=small, limit=st.integers(0, 5), after=st.integers(0, 20), data=st.data())
    def read_pages(self, n: int, limit: int, after: int, data: st.DataObject) -> None:
        agent = data.draw(st.none() | st.sampled_from(self.agents))
        runs = [run for work in self.works for run in work.runs]
        run = data.draw(st.none() | st.sampled_from(runs) if runs else st.none())
        item, now, holder = self._item(n), self.clock.now(), self._holder(n)
        since, until = now - timedelta(minutes=n), now - timedelta(minutes=limit)
        for verb in (
            lambda store: store.events(after, agent=agent, run=run, limit=limit),
            lambda store: store.last_events(agent=agent, run=run, limit=limit),
            lambda store: store.runs(agent, before=run, limit=limit),
            lambda store: store.runs_like((run or "run_")[: 3 + limit], limit),
            lambda store: store.items(agent, include_settled=n > 1, before=item, limit=limit),
            lambda store: store.usage(agent=agent, since=since, until=until),
            lambda store: store.usage(provider=PROVIDERS[n % 2], until=since),
            lambda store: store.open_processes(agent),
            lambda store: store.calls(holder),
        ):
            self._both(verb)

    # -- inside a rule

    def _both(self, verb: Callable[[Store], Awaitable[T]]) -> T | None:
        """The answer both give, None if both refuse."""
        theirs = self.runner.run(_answer(verb(self.engine)))
        is_refused, answer = self.runner.run(_answer(verb(self.reference)))
        assert theirs == (is_refused, answer)
        return None if is_refused else answer

    def _compare(
        self, reads: Callable[[Store, "Lockstep"], Coroutine[Any, Any, dict[str, object]]]
    ) -> None:
        theirs = self.runner.run(reads(self.engine, self))
        assert theirs == self.runner.run(reads(self.reference, self))

    async def _open(self) -> tuple[Store, Store]:
        scrubber = Scrubber([Secret(CANARY)])
        engine = await SqliteStore.open(
            self.home, clock=self.clock, ids=seeded_ids(self.clock, 2), scrubber=scrubber
        )
        reference = MemoryStore(
            self.clock, ids=seeded_ids(self.clock, 2), scrubber=scrubber, machine=platform.node()
        )
        return engine, reference

    def _add(self, name: str, provider: str) -> None:
        agent = Agent(self.names.agent(), name, (provider,), "/")
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

    def _claim(self, n: int, limit: int, agent: AgentId | None) -> list[Work]:
        holder = self._holder(n)
        claims = self._both(lambda store: store.claim(holder, limit, agent=agent)) or []
        works = [Work(claim) for claim in claims]
        self.works += works
        return works

    def _create(self, work: Work) -> None:
        run, claim = self.names.run(), work.claim
        created = Created(run, claim.agent, claim.item.id, "claude", self.clock.now())
        if self._both(lambda store: store.change(claim, run, created)):
            work.runs.append(run)

    def _go_on(self, work: Work, data: st.DataObject) -> None:
        """Mostly from a run that ends now, to an offer, to any item or to what nobody asked."""
        claim, run, end = work.claim, work.runs[-1], Finished(self.clock.now(), *data.draw(endings))
        if data.draw(small) < 3:
            self._both(lambda store: store.change(claim, run, end))
        agent = self._agent(1) if data.draw(rarely) else claim.agent
        unasked = st.builds(Message, st.just(agent), texts, st.just("self"), keys)
        offers = [i.id for i in self._both(lambda store: store.take(claim, 2)) or []]
        to = data.draw(st.sampled_from([*offers, self._item(1)]) | unasked)
        went_on = self._both(lambda store: store.go_on(claim, to))
        if went_on:
            self.items.append(went_on.item.id)
            self.works.append(Work(went_on, processes=work.processes, opened=work.opened))

    def _start(
        self, n: int, limit: int, agent: AgentId | None, but_not: Collection[str] = ()
    ) -> None:
        """Mostly with a new run for each item, now and then with one that exists."""
        holder, now = self._holder(n), self.clock.now()
        runs = [self.names.run() for _ in range(limit)]
        if n == 3 and self.works:
            runs = [work.runs[-1] for work in self.works[-limit:]] + runs

        def opened() -> Callable[[Agent, Item], Created]:
            left = iter(runs)
            return lambda agent, item: Created(next(left), agent.id, item.id, agent.provider, now)

        for started in (
            self._both(
                lambda store: store.start(holder, opened(), limit, agent=agent, but_not=but_not)
            )
            or []
        ):
            process = [started.process.id] if started.process else []
            work = Work(started.claim, processes=[*process], opened=[*process])
            work.processes = work.processes or [ProcessId("prc_none")]
            work.runs.append(started.run.id)
            self.works.append(work)

    def _rest(self, work: Work, data: st.DataObject) -> None:
        claim, end = work.claim, Finished(self.clock.now(), *data.draw(endings))
        self._both(lambda store: store.rest(claim, end))

    def _again(self, work: Work, data: st.DataObject) -> None:
        """Mostly after the end of the run, and with another one."""
        claim, run, end = work.claim, work.runs[-1], Finished(self.clock.now(), *data.draw(endings))
        if data.draw(small) < 3:
            self._both(lambda store: store.change(claim, run, end))
        spends = data.draw(st.booleans())
        if self._both(lambda store: store.again(claim, spends=spends)) and data.draw(small):
            self._create(work)

    def _wake(self, work: Work, data: st.DataObject) -> None:
        message = Message(work.claim.agent, "by itself", "self", data.draw(keys))
        woken = self._both(lambda store: store.wake(work.claim, message))
        if woken:
            self.items.append(woken.item.id)
            self.works.append(Work(woken, processes=work.processes, opened=work.opened))

    def _next(self, work: Work, data: st.DataObject) -> None:
        """Something new for its agent, and a start."""
        self._accept(work.claim.agent, "next", data.draw(keys))
        self._start(0, 1, work.claim.agent)

    def _open_process(self, work: Work) -> None:
        claim, now = work.claim, self.clock.now()
        process = Process(self.names.process(), claim.agent, "claude", "here", "/k", now)
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
        is_refused, lane = self.runner.run(_answer(self.reference.lane(claim.agent)))
        if is_refused or (lane.holder, lane.fence) != (claim.holder, claim.fence):
            return None
        return str(lane.status)

    def _run(self, work: Work, n: int) -> RunId:
        """The work's newest run; for 3 an older one, or one of other work."""
        return self.works[0].runs[-1] if n == 3 else work.runs[-1 - n // 2 % len(work.runs)]

    def _process(self, work: Work, n: int) -> ProcessId:
        return self.works[0].processes[-1] if n == 3 else work.processes[-1]

    def _change(self, data: st.DataObject, work: Work) -> Change:
        now, claim = self.clock.now(), work.claim
        kind, words = data.draw(st.sampled_from(CHANGES)), data.draw(st.none() | texts)
        usage, cost = data.draw(st.none() | usages), data.draw(st.none() | costs)
        process, is_active = data.draw(st.sampled_from([None, *work.opened])), cost is None
        status, reason = data.draw(endings)
        table = data.draw(metadata)
        run, active_at = work.runs[-1], now if is_active else None
        ended: Change = Orphaned(now) if is_active else Cancelled(now, words)
        changes: dict[str, Change] = {
            "created": Created(run, claim.agent, None, "codex", now, metadata=table),
            "launched": Launched(now, process, active_at, table),
            "adopted": Adopted(now, process, active_at),
            "touched": Touched(now, usage, cost, words),
            "ended": ended,
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
            emitted.append(Emitted(our_place(source, n), 0, now, Note(f"{source}{n}")))
        if data.draw(rarely):
            emitted.append(Emitted(end, 9, now, TextDelta("live")))
        return emitted

    def _offset(self, process: ProcessId) -> int:
        is_refused, answer = self.runner.run(_answer(self.reference.process(process)))
        return 0 if is_refused else answer.offset


async def _answer(verb: Awaitable[T]) -> tuple[bool, Any]:
    """What was returned, or the error's type and facts."""
    try:
        return False, await verb
    except SteadyrunError as error:
        return True, (type(error), vars(error), error.args)


async def _main_reads(store: Store, world: Lockstep) -> dict[str, object]:
    return {
        "lanes": [await _answer(store.lane(agent)) for agent in world.agents],
        "items": await store.items(include_settled=True, limit=ALL),
        "runs": await store.runs(limit=ALL),
        "events": await store.events(limit=ALL),
    }


async def _all_reads(store: Store, world: Lockstep) -> dict[str, object]:
    processes = [process for work in world.works for process in work.processes]
    seen = await everything(store)
    seen["holders"] = await store.holders()
    seen["every agent"] = [await _answer(store.agent(agent)) for agent in world.agents]
    seen["every process"] = [await _answer(store.process(process)) for process in processes]
    return seen


Lockstep.TestCase.settings = settings(max_examples=70, stateful_step_count=30)
TestLockstep = Lockstep.TestCase
