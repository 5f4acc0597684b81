"""SQLite and the reference give the same answers to the same calls."""

from collections.abc import Awaitable, Callable
from datetime import timedelta, timezone
from functools import partial
from typing import get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec.structs import replace

from steadyrun.model.agent import Agent
from steadyrun.model.approval import ApprovalAnswer, build_approval_id
from steadyrun.model.gate import Closed, Opened
from steadyrun.model.item import Claim, Followup, Message
from steadyrun.model.run import (
    EndStatus,
    Finished,
    StopReason,
)
from steadyrun.model.usage import Cost, Usage
from steadyrun.store import DEDUP_RETENTION, OfferOutcome, Store
from steadyrun.testing.store_conformance.fixtures import ALL
from tests.properties.store_machine_model import (
    ACCOUNTS,
    CANARY,
    DEEDS,
    MAIN,
    PROVIDERS,
    Work,
    World,
    all_reads,
    answer_of,
    chains,
    costs,
    endings,
    keys,
    main_reads,
    providers,
    rarely,
    small,
    texts,
    usages,
)


class Lockstep(World):
    """The rules: every verb that a daemon or a caller may use on a store, in any order.

    Hypothesis runs it and draws the rules. Invariant after each step: the reads of the SQLite store
    and of the reference are equal.
    """

    @initialize()
    def begin(self) -> None:
        for name, provider in zip(("ada", "bo"), PROVIDERS, strict=True):
            self._add(name, provider, "shell")
        self._join()

    @invariant()
    def reads_agree(self) -> None:
        """The cheap ones after every step, all of them now and then and at the end."""
        self.steps += 1
        self._compare(all_reads if self.steps % 8 == 0 else main_reads)

    @invariant()
    def what_is_settled_stays_and_lanes_are_what_they_say(self) -> None:
        items = self.runner.run(self.reference.items(include_settled=True, limit=ALL))
        self.settled = {**{i.id: i for i in items if i.is_settled}, **self.settled}
        assert not [i for i in items if i != self.settled.get(i.id, i)]
        running = [i.agent for i in items if i.status == "running" and i.delivery in MAIN]
        answers = [self.runner.run(answer_of(self.reference.lane(agent))) for agent in self.agents]
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

    @rule(n=small, key=keys, holder=small, but_not=st.sets(st.sampled_from(PROVIDERS)))
    def accept_and_start(self, n: int, key: str | None, holder: int, but_not: set[str]) -> None:
        self._accept_and_start(self._agent(n), key, self._holder(holder), but_not)

    @rule(n=st.integers(0, 9))
    def cancel(self, n: int) -> None:
        item = self._item(n)
        self._both(lambda store: store.cancel(item))

    @rule(n=small, minutes=st.none() | small, verb=st.sampled_from(["resume", "pause", "gate"]))
    def hinder(self, n: int, minutes: int | None, verb: str) -> None:
        agent = self._agent(n)
        until = None if minutes is None else self.clock.now() + timedelta(minutes=minutes)
        provider, account = PROVIDERS[n % 2], [None, "x"][n // 2 % 2]
        news = Closed(until, CANARY) if until else Opened()
        verbs: dict[str, Callable[[Store], Awaitable[object]]] = {
            "resume": lambda store: store.set_paused(agent, is_paused=False),
            "pause": lambda store: store.set_paused(agent, is_paused=True),
            "gate": lambda store: store.update_gate(provider, news, account=account),
        }
        self._both(verbs[verb])

    @rule(provider=providers, account=st.sampled_from(ACCOUNTS))
    def change_account(self, provider: str, account: str) -> None:
        """The user has written another key into the configuration, or an earlier one."""
        self.accounts[provider] = account
        self._both(lambda store: store.gates())

    @rule(by=st.sampled_from([*[timedelta(minutes=1)] * 3, DEDUP_RETENTION, timedelta(0, 0, 1)]))
    def advance(self, by: timedelta) -> None:
        self.clock.advance(by)

    @rule(n=small, name=st.sampled_from(["ada", "cy"]))
    def people_change(self, n: int, name: str) -> None:
        """A holder joins or leaves, or an agent is added, perhaps under a name that is taken."""
        if n == 0:
            self._add(name, PROVIDERS[0])
        elif n == 1:
            self._join()
        else:
            holder = self.holders[-n % len(self.holders)]
            self._both(lambda store: store.leave(holder))

    @rule(
        n=small,
        name=st.sampled_from(["ada", "cy", "di", "ed"]),
        chain=chains,
        is_direct=st.booleans(),
    )
    def add_agent(self, n: int, name: str, chain: tuple[str, ...], is_direct: bool) -> None:
        agent = Agent(self.names.make_agent(), name, chain, "/", is_direct=is_direct)
        message = Message(agent.id if n else self._agent(n), "at once")
        self.agents.append(agent.id)
        self._hire(n, agent, message)

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
            providers=data.draw(chains),
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
        self._both(lambda store: store.put(key, value))
        self._both(lambda store: store.get(key))

    @precondition(lambda self: self.works)
    @rule(n=small, provider=providers, reason=texts)
    def retire_token(self, n: int, provider: str, reason: str) -> None:
        work = self._warm_work(n)
        self._both(lambda store: store.retire_token(work.claim, provider, reason))

    # -- claims and follow-ups

    @rule(
        n=small, limit=small, agent=st.none() | small, but_not=st.sets(st.sampled_from(PROVIDERS))
    )
    def start(self, n: int, limit: int, agent: int | None, but_not: set[str]) -> None:
        self._start(n, limit, None if agent is None else self._agent(agent), but_not)

    @rule(n=small, actions=st.lists(st.sampled_from(DEEDS), max_size=6), data=st.data())
    def work_a_while(self, n: int, actions: list[str], data: st.DataObject) -> None:
        """From a message to an open process, and then whatever may happen in a run."""
        agent = self._agent(n)
        self._both(lambda store: store.set_paused(agent, is_paused=False))
        self._accept(agent, "work", None)
        for work in self._start(0, 1, agent):
            self._open_process(work)
            for action in actions:
                verb = self._going.get(action) or partial(self._do, action)
                verb(self.works[-1], data)

    @rule(n=small, lasting=st.booleans())
    def reap(self, n: int, lasting: bool) -> None:
        holder = self._holder(n)
        for lost in self._both(lambda store: store.reap(holder, lasting=lasting)) or []:
            hold = lost.lease
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
        self._both(lambda store: store.offer_followups(claim, limit, max_bytes=most_bytes))

    @precondition(lambda self: self.works)
    @rule(n=small, item=small, outcome=st.sampled_from(get_args(OfferOutcome)))
    def close_offer(self, n: int, item: int, outcome: OfferOutcome) -> None:
        claim, offer = self._work(n).claim, self._item(item)
        self._both(lambda store: store.close_offer(claim, offer, outcome))

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
        self._both(lambda store: store.settle(work.claim, change, batch, keep_warm=True))

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
                self._both(lambda store: store.release_lane(work.claim))

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
    @rule(n=small, name=st.sampled_from(["1", "2"]), by=texts, is_allowed=st.booleans())
    def answer(self, n: int, name: str, by: str, is_allowed: bool) -> None:
        """To a question that there may be."""
        approval = build_approval_id(self._process(self._work(n), n), name)
        given = ApprovalAnswer(is_allowed, by, self.clock.now(), CANARY)
        self._both(lambda store: store.answer(approval, given))
        self._both(lambda store: store.approvals(matching=f":{name}", limit=9))

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
        since, zone = now - timedelta(minutes=n), timezone(timedelta(hours=after - 10))
        for verb in (
            lambda store: store.events(after, agent=agent, run=run, limit=limit),
            lambda store: store.events(agent=agent, run=run, limit=limit, newest=True),
            lambda store: store.runs(agent, before=run, limit=limit),
            lambda store: store.items(agent, include_settled=n > 1, before=item, limit=limit),
            lambda store: store.usage("agent", agent=agent, since=since),
            lambda store: store.usage("provider", agent=agent, since=since),
            lambda store: store.usage("day", agent=agent, since=since, zone=zone),
            lambda store: store.processes(),
            lambda store: store.sessions(agent),
            lambda store: store.sessions(provider="claude", token="two"),
            lambda store: store.pending_requests(holder),
            lambda store: store.approvals(agent, limit=limit),
        ):
            self._both(verb)


Lockstep.TestCase.settings = settings(max_examples=70, stateful_step_count=30)
TestLockstep = Lockstep.TestCase
