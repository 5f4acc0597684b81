"""What exactly does a store promise? The reference: the same verbs over plain dictionaries.

Nothing here is durable. Where an engine and this file disagree, this file is right.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from steadyrun.errors import ChangeRefused
from steadyrun.lib.clock import Clock
from steadyrun.lib.notifier import Hint, Notifier
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval, ApprovalAnswer, build_resolution
from steadyrun.model.batch import AppendResult, Batch, StoredRow, select_new
from steadyrun.model.event import (
    Emitted,
    ToolStarted,
    count_kinds,
    make_event_id,
)
from steadyrun.model.event_codec import decode_events, encode_events
from steadyrun.model.gate import Accounts, Gate, GateReport, GateRules, set_account
from steadyrun.model.ids import AgentId, ApprovalId, HolderId, Ids, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Lease, Message, build_cancel_fact
from steadyrun.model.process import Process
from steadyrun.model.run import (
    Created,
    Launched,
    Run,
    RunChange,
    add_counts,
    build_status_events,
    scrub_run,
    step,
)
from steadyrun.model.secret import Scrubber
from steadyrun.store import MOST_TAKEN_BYTES, AbandonedLane, Accepted, Holder, Start, Started
from steadyrun.stores.memory import approvals
from steadyrun.stores.memory import tables as rows
from steadyrun.stores.memory.gates import GateKeeper
from steadyrun.stores.memory.reads import MemoryReads
from steadyrun.stores.memory.tables import Tables
from steadyrun.version import __version__


class MemoryStore(MemoryReads):
    """The reference store. It never awaits inside a verb, so each verb is one step."""

    def __init__(  # noqa: PLR0913 (each has a default but the clock)
        self,
        clock: Clock,
        *,
        ids: Ids | None = None,
        tables: Tables | None = None,
        hints: Notifier | None = None,
        scrubber: Scrubber | None = None,
        rules: GateRules | None = None,
        accounts: Accounts | None = None,
        machine: str = "here",
    ) -> None:
        super().__init__(tables or Tables(), {} if accounts is None else accounts)
        self.hints = hints or Notifier()
        self._clock = clock
        self._ids = ids or Ids(clock.now)
        self._scrubber = scrubber or Scrubber()
        self._gates = GateKeeper(self._scrubber, rules or GateRules(), self.accounts)
        self._machine = machine

    # -- agents and sessions

    async def add_agent(self, agent: Agent) -> None:
        with self._transaction([agent.id]) as t:
            rows.add_agent(t, agent)

    async def start_direct(
        self,
        holder: HolderId,
        agent: Agent,
        message: Message,
        opened: Callable[[Agent, Item], Created],
    ) -> Started:
        now, new = self._clock.now(), self._ids.new_item()
        with self._transaction([agent.id]) as t:
            rows.require_holder(t, holder)
            if message.agent != agent.id:
                raise ChangeRefused("hire", found=f"the message is for {message.agent}")
            rows.add_agent(t, agent)
            rows.accept(t, new, message, now)
            ready = rows.claimable(t, holder, agent.id, self._gates.shut(t, now))
            if not ready:
                raise ChangeRefused("hire", found=f"the gate of {agent.provider} is closed")
            [(lane, provider)] = ready
            return self._start(t, rows.claim(t, lane, holder, now), provider, opened)

    async def set_agent(self, agent: Agent, *, was: Agent) -> None:
        with self._transaction([agent.id]) as t:
            known = rows.present(t, agent.id)
            if known != was:
                raise ChangeRefused("set_agent", found=f"{known.name} has been changed meanwhile")
            if (agent.is_direct, agent.removed_at) != (was.is_direct, was.removed_at):
                raise ChangeRefused("set_agent", found="what kind of agent it is stays as it is")
            rows.refuse_taken(t, agent)
            t.agents[agent.id] = agent

    async def remove_agent(self, agent: AgentId) -> None:
        with self._transaction([agent]) as t:
            known, lane = rows.present(t, agent), rows.lane_of(t, agent)
            if lane.status != "idle":
                found = f"the lane of {known.name} is {lane.status}"
                raise ChangeRefused("remove_agent", found=found)
            approvals.forget(t, agent)
            t.agents[agent] = rows.altered(known, removed_at=self._clock.now())
            del t.lanes[agent]

    async def retire_token(self, hold: Lease, provider: str, reason: str) -> None:
        with self._transaction([hold.agent]) as t:
            rows.owned(t, hold)
            known = t.sessions.get((hold.agent, provider))
            if known:
                clean = self._scrubber.clean(reason)
                t.sessions[hold.agent, provider] = known.retire(clean)

    # -- items

    async def accept(self, message: Message, start: Start | None = None) -> Accepted:
        now, new = self._clock.now(), self._ids.new_item()
        with self._transaction([]) as t:
            accepted = rows.accept(t, new, message, now)
            for started in self._begin(t, start, 1, message.agent, now) if start else ():
                accepted = accepted.begun(started)
        self.hints.notify([message.agent], Hint.STATE if accepted.started else Hint.WORK)
        return accepted

    async def cancel(self, item: ItemId, reason: str | None = None) -> Item:
        found = rows.item_of(self._tables, item)
        why = build_cancel_fact(reason and self._scrubber.clean(reason))
        with self._transaction([found.agent]) as t:
            if found.status == "queued":
                lane = rows.lane_of(t, found.agent)
                found = rows.altered(found, error=why)
                rows.settle_item(t, found, "cancelled", self._clock.now())
                left = rows.altered(lane, queued=lane.queued - 1)
                t.lanes[lane.agent] = rows.waiting(left, self._clock.now())
            elif found.status == "running" and not found.cancel_requested:
                t.items[item] = rows.altered(found, cancel_requested=True, error=why)
            return t.items[item]

    # -- lanes

    async def pause(self, agent: AgentId) -> None:
        with self._transaction([agent]) as t:
            approvals.pause(t, agent)

    async def resume(self, agent: AgentId) -> None:
        with self._transaction([agent]) as t:
            rows.set_paused(t, agent, is_paused=False)

    async def join(self, kind: str) -> Holder:
        now = self._clock.now()
        holder = Holder(self._ids.new_holder(), kind, self._machine, __version__, now)
        self._tables.holders[holder.id] = holder
        return holder

    async def leave(self, holder: HolderId) -> None:
        self._tables.holders.pop(holder, None)

    async def claim(
        self, holder: HolderId, limit: int = 1, *, agent: AgentId | None = None
    ) -> list[Claim]:
        now = self._clock.now()
        with self._transaction([]) as t:
            rows.require_holder(t, holder)
            ready = rows.claimable(t, holder, agent, self._gates.shut(t, now))
            claims = [rows.claim(t, lane, holder, now) for lane, _ in ready[:limit]]
        self.hints.notify(claim.agent for claim in claims)
        return claims

    async def start(
        self,
        holder: HolderId,
        opened: Callable[[Agent, Item], Created],
        limit: int = 1,
        *,
        agent: AgentId | None = None,
        but_not: Collection[str] = (),
    ) -> list[Started]:
        now, start = self._clock.now(), Start(holder, opened, but_not)
        with self._transaction([]) as t:
            started = self._begin(t, start, limit, agent, now)
        self.hints.notify((each.agent.id for each in started), Hint.STATE)
        return started

    def _begin(
        self, t: Tables, start: Start, limit: int, agent: AgentId | None, now: datetime
    ) -> list[Started]:
        rows.require_holder(t, start.holder)
        started: list[Started] = []
        while len(started) < limit:
            # One at a time: a gate may take one and no more.
            shut = self._gates.shut(t, now, start.but_not)
            ready = rows.claimable(t, start.holder, agent, shut)
            if not ready:
                break
            lane, provider = ready[0]
            claim = rows.claim(t, lane, start.holder, now)
            started.append(self._start(t, claim, provider, start.opened))
        return started

    def _start(
        self, t: Tables, claim: Claim, provider: str, opened: Callable[[Agent, Item], Created]
    ) -> Started:
        agent = t.agents[claim.agent].with_provider(provider)
        created = opened(agent, claim.item)
        if created.id in t.runs:
            raise ChangeRefused("created", found=f"there is a run {created.id} already")
        rows.bind_run(t, claim, created.id, created)
        return rows.started(t, claim, agent, self._change(t, created.id, created))

    async def offer_followups(
        self, claim: Claim, limit: int = 1, *, most_bytes: int = MOST_TAKEN_BYTES
    ) -> list[Item]:
        now = self._clock.now()
        with self._transaction([claim.agent]) as t:
            lane = rows.held(t, claim)
            taken = [
                rows.altered(item, status="running", delivery="offered", started_at=now)
                for item in rows.within(rows.steerable(t, lane.agent)[:limit], most_bytes)
            ]
            t.items.update({item.id: item for item in taken})
            t.lanes[lane.agent] = rows.altered(lane, queued=lane.queued - len(taken))
            return taken

    async def absorb(self, claim: Claim, item: ItemId) -> None:
        with self._transaction([claim.agent]) as t:
            rows.held(t, claim)
            main = rows.main_of(t, claim, "absorb")
            offer = rows.offer(t, claim, item)
            t.items[item] = rows.altered(offer, delivery="absorbed", run=main.run)

    async def return_offer(self, claim: Claim, item: ItemId) -> None:
        with self._transaction([claim.agent]) as t:
            rows.held(t, claim)
            rows.requeue(t, rows.offer(t, claim, item), self._clock.now())

    async def release(self, claim: Claim) -> Item:
        with self._transaction([claim.agent]) as t:
            rows.held(t, claim)
            item = rows.main_of(t, claim, "release")
            if item.run and not t.runs[item.run].is_terminal:
                raise ChangeRefused("release", found=f"its run {item.run} has not ended")
            for other in rows.in_lane(t, claim.agent, "running"):
                rows.requeue(t, other, self._clock.now())
            rows.free(t, claim.agent, self._clock.now())
            return t.items[item.id]

    async def continue_with(self, claim: Claim, to: ItemId | Message) -> Claim:
        now, new = self._clock.now(), self._ids.new_item()
        with self._transaction([claim.agent]) as t:
            rows.held(t, claim)
            run = rows.ended_run(t, rows.main_of(t, claim, "go_on"), "go_on")
            running = rows.in_lane(t, claim.agent, "running")
            if isinstance(to, Message):
                started = rows.start_unasked(t, claim, to, new, now, "go_on")
            else:
                started = rows.start(t, rows.offer(t, claim, to), "own_turn", now)
            for item in running:
                if item.delivery != "offered":
                    rows.settle_with(t, item, run, now)
            return Claim(claim.agent, claim.holder, claim.fence, started)

    async def retry(self, claim: Claim, *, spends: bool) -> Claim:
        with self._transaction([claim.agent]) as t:
            rows.held(t, claim)
            item = rows.main_of(t, claim, "again")
            run = rows.ended_run(t, item, "again")
            if item.cancel_requested:
                raise ChangeRefused("again", found=f"{item.id} was asked to stop")
            for other in rows.in_lane(t, claim.agent, "running"):
                if other.id != item.id:
                    rows.requeue(t, other, self._clock.now())
            counts = {"attempt": item.attempt + 1, "tries": item.tries + spends}
            again = rows.altered(item, before=run.id, run=None, delivery="none", **counts)
            t.items[item.id] = again
            return Claim(claim.agent, claim.holder, claim.fence, t.items[item.id])

    async def settle(
        self, claim: Claim, change: RunChange | None = None, batch: Batch | None = None
    ) -> Item:
        with self._transaction([claim.agent]) as t:
            self._end(t, claim, change, batch)
            rows.free(t, claim.agent, self._clock.now())
            return t.items[claim.item.id]

    async def rest(
        self, claim: Claim, change: RunChange | None = None, batch: Batch | None = None
    ) -> Item:
        with self._transaction([claim.agent]) as t:
            self._end(t, claim, change, batch)
            lane = rows.altered(t.lanes[claim.agent], status="warm")
            t.lanes[lane.agent] = rows.waiting(lane, self._clock.now())
            return t.items[claim.item.id]

    def _end(self, t: Tables, claim: Claim, change: RunChange | None, batch: Batch | None) -> None:
        rows.held(t, claim)
        item = rows.main_of(t, claim, "settle")
        if batch:
            self._append(t, claim, batch)
        if item.run is None:
            raise ChangeRefused("settle", found="the item has no run")
        run = self._change(t, item.run, change) if change else t.runs[item.run]
        if not run.is_terminal:
            raise ChangeRefused("settle", found=f"its run {run.id} has not ended")
        for other in rows.in_lane(t, claim.agent, "running"):
            rows.settle_with(t, other, run, self._clock.now())

    async def start_unprompted(self, hold: Lease, message: Message) -> Claim:
        now, new = self._clock.now(), self._ids.new_item()
        with self._transaction([hold.agent]) as t:
            rows.warm(t, hold, "wake")
            item = rows.start_unasked(t, hold, message, new, now, "wake")
            return Claim(hold.agent, hold.holder, hold.fence, item)

    async def release_lane(self, hold: Lease) -> None:
        with self._transaction([hold.agent]) as t:
            lane = rows.altered(rows.warm(t, hold, "let_go"), holder=None)
            t.lanes[lane.agent] = rows.waiting(lane, self._clock.now())

    async def reap(self, holder: HolderId, *, lasting: bool = True) -> list[AbandonedLane]:
        with self._transaction([]) as t:
            rows.require_holder(t, holder)
            alive = {each.id: each for each in t.holders.values() if each.is_alive}
            lanes = [
                lane
                for lane in t.lanes.values()
                if lane.holder
                and lane.holder not in alive
                and (lasting or t.agents[lane.agent].is_direct)
            ]
            lanes.sort(key=lambda lane: lane.agent)
            lost = [rows.take_over(t, lane, holder) for lane in lanes]
            t.holders = alive
        self.hints.notify(each.agent.id for each in lost)
        return lost

    # -- runs, processes, events

    async def change(self, claim: Claim, run: RunId, change: RunChange) -> Run:
        with self._transaction([claim.agent]) as t:
            rows.held(t, claim)
            if run in t.runs:
                rows.run_of(t, claim, run)
            elif isinstance(change, Created):
                rows.bind_run(t, claim, run, change)
            return self._change(t, run, change)

    async def open_process(self, hold: Lease, process: Process) -> None:
        with self._transaction([hold.agent]) as t:
            rows.owned(t, hold)
            if process.id in t.processes or process.agent != hold.agent:
                raise ChangeRefused("open_process", found=f"{process.id} belongs elsewhere")
            t.processes[process.id] = process

    async def close_process(self, hold: Lease, process: ProcessId) -> None:
        with self._transaction([hold.agent]) as t:
            rows.owned(t, hold)
            found = rows.process_of(t, hold, process)
            closed_at = found.closed_at or self._clock.now()
            t.processes[process] = rows.altered(found, closed_at=closed_at)

    async def append(self, hold: Lease, batch: Batch) -> AppendResult:
        with self._transaction([hold.agent]) as t:
            rows.owned(t, hold)
            return self._append(t, hold, batch)

    # -- approvals

    async def answer(self, approval: ApprovalId, answer: ApprovalAnswer) -> Approval:
        clean = rows.altered(answer, reason=self._scrubber.clean(answer.reason))
        with self._transaction([]) as t:
            was = t.approvals.get(approval)
            answered = approvals.answer(t, approval, clean)
            if answered.about == "budget" and answered is not was:
                self._place(t, answered.agent, None, None, [build_resolution(answered)])
        self.hints.notify([answered.agent])
        return answered

    # -- gates

    async def update_gate(
        self, provider: str, news: GateReport, *, account: str | None = None
    ) -> Gate:
        with self._transaction([]) as t:
            told = self._gates.tell(t, provider, account, news, self._clock.now())
        self.hints.notify_all()
        return told

    # -- what else is to be remembered

    async def put(self, key: str, value: bytes) -> None:
        with self._transaction([]) as t:
            t.kv[key] = value

    # -- life

    async def close(self) -> None:
        """There is nothing to let go of."""

    # -- inside a verb

    @contextmanager
    def _transaction(self, agents: Iterable[AgentId]) -> Iterator[Tables]:
        tables = self._tables.copy()
        yield tables
        self._tables.become(tables)
        self.hints.notify(agents)

    def _change(self, t: Tables, run: RunId, change: RunChange) -> Run:
        before = t.runs.get(run)
        after = step(before, set_account(change, self.accounts))
        events = build_status_events(before, after)
        if after is not before:
            after = scrub_run(add_counts(after, len(events), 0), self._scrubber)
            t.runs[after.id] = after
            self._place(t, after.agent, after.id, None, events)
            if before is None:
                self._gates.begun(t, after)
            elif after.is_terminal:
                approvals.withdraw(t, after.id)
                if after.stop_reason == "budget":
                    rows.set_paused(t, after.agent, is_paused=True)
                self._gates.ended(t, after)
        return after

    def _append(self, t: Tables, hold: Lease, batch: Batch) -> AppendResult:
        process = rows.process_of(t, hold, batch.process)
        fresh, marks = select_new(
            batch, count_kinds(batch.events), offset=process.offset, marks=process.marks
        )
        run = rows.run_of(t, hold, fresh.run) if fresh.run else None
        if fresh.events and run and run.is_terminal:
            raise ChangeRefused("append", found=f"{run.id} is {run.status}")
        count = len(t.events)
        if run and isinstance(fresh.change, Launched):
            self._change(t, run.id, fresh.change)
        heard = len(t.events)
        self._add(t, hold.agent, fresh)
        approvals.heard(t, hold.agent, fresh, t.events[heard:])
        if run and fresh.change and not isinstance(fresh.change, Launched):
            self._change(t, run.id, fresh.change)
        t.processes[process.id] = rows.advanced(process, fresh, marks)
        if fresh.token:
            rows.bind_token(t, hold.agent, process.provider, fresh.token)
        new = t.events[count:]
        last_seq = t.lanes[hold.agent].event_seq
        return AppendResult(len(new), last_seq, len(t.events), self._rows(new))

    def _rows(self, placed: Sequence[rows.Placed]) -> tuple[StoredRow, ...]:
        """What follows each other in one run is one row."""
        return tuple(
            StoredRow(
                row[0].cursor,
                row[0].seq or 0,
                run,
                encode_events([each.emitted for each in row], self._scrubber),
            )
            for run, group in itertools.groupby(placed, key=lambda each: each.run)
            if (row := list(group))
        )

    def _add(self, t: Tables, agent: AgentId, fresh: Batch) -> None:
        run, events = fresh.run, fresh.events
        if run and events:
            tools = sum(isinstance(e.event, ToolStarted) for e in events)
            t.runs[run] = add_counts(t.runs[run], len(events), tools)
        self._place(t, agent, run, fresh.process, events)

    def _place(
        self,
        t: Tables,
        agent: AgentId,
        run: RunId | None,
        process: ProcessId | None,
        events: Sequence[Emitted],
    ) -> None:
        lane = t.lanes[agent]
        for emitted in decode_events(encode_events(events, self._scrubber)):
            lane = rows.altered(lane, event_seq=lane.event_seq + 1)
            name = make_event_id(process, emitted.place, emitted.n)
            cursor = len(t.events) + 1
            t.events.append(rows.Placed(cursor, lane.event_seq, agent, run, name, emitted))
        t.lanes[agent] = lane
