"""Models what a store must hold after a series of writes, from each write and its answer.

Every answer is checked against what the model expects before it is believed, so that at the end the
model is what the store promised, and can be compared with what the store has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any, assert_never

import msgspec

from steadyrun.model.agent import Agent
from steadyrun.model.batch import AppendResult
from steadyrun.model.event import EventId
from steadyrun.model.gate import Gate
from steadyrun.model.ids import AgentId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import (
    Claim,
    Item,
    ItemStatus,
    Lease,
    compute_absorbed_status,
    compute_item_status,
)
from steadyrun.model.process import Process
from steadyrun.model.run import Run, RunChange, add_counts, build_status_events, step
from steadyrun.store import AbandonedLane, Accepted, Holder, Lane, Started
from tests.children.crash_writer import (
    Accept,
    Append,
    Cancel,
    CloseGate,
    CloseOffer,
    CreateRun,
    Ended,
    EndRun,
    Join,
    OfferFollowups,
    Op,
    OpenProcess,
    Put,
    ReleaseLane,
    Retry,
    Settle,
    SettleWarm,
    StartDirect,
    StartOne,
    StartUnprompted,
    Stretch,
    created_by,
    events_of,
)

replace = msgspec.structs.replace

_id = attrgetter("id")

RESULTS: dict[type, Any] = {
    Join: Holder,
    Accept: Accepted,
    Cancel: Item,
    CreateRun: Run,
    OpenProcess: None,
    Append: AppendResult,
    OfferFollowups: list[Item],
    CloseOffer: None,
    Settle: Item,
    StartOne: list[Started],
    SettleWarm: Item,
    EndRun: Run,
    Ended: Item,
    Retry: Claim | None,
    StartUnprompted: Claim | None,
    ReleaseLane: bool | None,
    StartDirect: Started,
    CloseGate: Gate,
    Put: None,
}


@dataclass
class Model:
    """The content that the store has promised.

    The crash test gives it each acknowledged write and compares it with the store after each kill.
    `fresh_*` holds what has changed since the last comparison.
    """

    agents: dict[AgentId, Agent] = field(default_factory=dict)
    items: dict[ItemId, Item] = field(default_factory=dict)
    keys: dict[tuple[AgentId, str], ItemId] = field(default_factory=dict)
    lanes: dict[AgentId, Lane] = field(default_factory=dict)
    runs: dict[RunId, Run] = field(default_factory=dict)
    # None of them is ever closed.
    processes: dict[ProcessId, Process] = field(default_factory=dict)
    holders: set[HolderId] = field(default_factory=set)
    gates: dict[str, Gate] = field(default_factory=dict)
    kv: dict[str, bytes] = field(default_factory=dict)
    # Every event by its place: the cursor of the first is 1.
    log: list[tuple[EventId, RunId | None]] = field(default_factory=list)
    open_items: dict[AgentId, dict[ItemId, Item]] = field(default_factory=dict)
    fresh_items: set[ItemId] = field(default_factory=set)
    fresh_runs: set[RunId] = field(default_factory=set)
    fresh_processes: set[ProcessId] = field(default_factory=set)

    def add_agent(self, agent: Agent) -> None:
        self.agents[agent.id] = agent
        self.lanes[agent.id] = Lane(agent.id)
        self.open_items[agent.id] = {}

    def compared(self) -> None:
        self.fresh_items.clear()
        self.fresh_runs.clear()
        self.fresh_processes.clear()

    def apply(self, op: Op, result: Any) -> None:  # noqa: C901 (one case for each verb)
        match op:
            case Join():
                self.holders.add(result.id)
            case Accept():
                self._accept(op, result)
            case Cancel():
                self._cancel(op.item, result)
            case StartDirect():
                self._start_direct(op, result)
            case CloseGate():
                assert (result.is_closed, result.until) == (True, op.until)
                self.gates[result.provider] = result
                self.log.append((EventId(f"gate:{len(self.log) + 1}"), None))
            case Put():
                self.kv[op.key] = op.value
            case CreateRun():
                self._begin(op, result)
            case OpenProcess():
                self._put_process(op.process)
            case Append():
                self._append(op.claim, op.stretch, result)
            case OfferFollowups():
                self._offer_followups(op, result)
            case CloseOffer(outcome="absorbed"):
                main = self.items[op.claim.item.id]
                self._put(replace(self.items[op.item], delivery="absorbed", run=main.run))
            case CloseOffer():
                self._requeue(self.items[op.item], None)
            case Settle():
                self._append(op.claim, op.stretch, None)
                self.settle(op.claim, op.finished, result)
            case StartOne():
                self._start(op, result)
            case SettleWarm():
                self._append(op.claim, op.stretch, None)
                self._end(op.claim, op.finished, result)
                self._lane(op.claim.agent, status="warm")
            case EndRun():
                assert self._change(op.run, op.finished) == result
            case Ended():
                self._end(op.claim, None, result)
                self._free(op.claim.agent)
            case Retry():
                self._retry(op, result)
            case StartUnprompted():
                self._start_unprompted(op, result)
            case ReleaseLane():
                assert bool(result) == self.is_warm(op.lease)
                if result:
                    self.release_lane(op.lease)
            case _:
                assert_never(op)

    # -- what else the parent does

    def settle(self, claim: Claim, change: RunChange, result: Item) -> None:
        self._end(claim, change, result)
        self._free(claim.agent)

    def release_lane(self, lease: Lease) -> None:
        assert self.is_warm(lease)
        self._free(lease.agent)

    def reap(self, dead: HolderId, heir: HolderId, lost: Sequence[AbandonedLane]) -> list[Lease]:
        """Check that `heir` got every lane of `dead`; return the holds that are over."""
        lanes = [lane for lane in self.lanes.values() if lane.holder == dead]
        stale = [self._hold(lane) for lane in lanes]
        for lane in lanes:
            self.lanes[lane.agent] = replace(lane, holder=heir, fence=lane.fence + 1)
        assert {each.lease.agent for each in lost} == {lane.agent for lane in lanes}
        for each in lost:
            assert each.lease == self._hold(self.lanes[each.lease.agent])
            self._check_lost(each)
        return stale

    def _check_lost(self, lost: AbandonedLane) -> None:
        run = lost.lease.item.run if isinstance(lost.lease, Claim) else None
        assert lost.run == (self.runs[run] if run else None)
        assert lost.agent == self.agents[lost.lease.agent]
        assert list(lost.processes) == self._processes_of(lost.agent.id)

    def agrees_on(self, seen: Item) -> bool:
        self._learn(seen)
        return self.items[seen.id] == seen

    # -- what follows from the present state

    def queued(self, agent: AgentId) -> list[Item]:
        found = (item for item in self.open_items[agent].values() if item.status == "queued")
        return sorted(found, key=lambda item: item.seq)

    def main_of(self, agent: AgentId) -> Item:
        [main] = [i for i in self._running(agent) if i.delivery in {"none", "own_turn"}]
        return main

    def started(self, item: Item, at: datetime | None) -> Item:
        known = {"attempt": item.attempt + 1, "before": item.run or item.before}
        return replace(item, status="running", delivery="none", run=None, started_at=at, **known)

    def steerable(self, agent: AgentId) -> list[Item]:
        queued = self.queued(agent)
        return [i for i in queued if (i.followup, i.delivery) == ("steer", "none")]

    def tried_again(self, claim: Claim, *, spends: bool) -> Item:
        item = self.items[claim.item.id]
        counts = {"attempt": item.attempt + 1, "tries": item.tries + spends}
        return replace(item, before=item.run, run=None, **counts)

    def startable(self, holder: HolderId) -> list[Lane]:
        """The lanes that may be claimed: ready ones, and the holder's own if anything is queued.
        Those of direct agents are claimed by name, which this test does not do."""
        lanes = [lane for lane in self.lanes.values() if not self.agents[lane.agent].is_direct]
        return [lane for lane in lanes if lane.queued and lane.holder in {None, holder}
                and lane.status != "held" and not self.agents[lane.agent].is_direct]  # fmt: skip

    def is_warm(self, lease: Lease) -> bool:
        lane = self.lanes[lease.agent]
        return (lane.status, lane.holder, lane.fence) == ("warm", lease.holder, lease.fence)

    def claim_on(self, lane: Lane, holder: HolderId, at: datetime | None) -> Claim:
        """The claim that is given for the lane."""
        fence = lane.fence + (lane.status == "ready")
        return Claim(lane.agent, holder, fence, self.started(self.queued(lane.agent)[0], at))

    def _hold(self, lane: Lane) -> Lease:
        assert lane.holder is not None
        if lane.status == "warm":
            return Lease(lane.agent, lane.holder, lane.fence)
        return Claim(lane.agent, lane.holder, lane.fence, self.main_of(lane.agent))

    def _processes_of(self, agent: AgentId) -> list[Process]:
        return sorted((p for p in self.processes.values() if p.agent == agent), key=_id)

    def _running(self, agent: AgentId) -> list[Item]:
        found = (item for item in self.open_items[agent].values() if item.status == "running")
        return sorted(found, key=lambda item: item.seq)

    # -- one for each verb

    def _accept(self, op: Accept, result: Accepted) -> None:
        message, lane = op.message, self.lanes[op.message.agent]
        key = None if message.key is None else (message.agent, message.key)
        if key is not None and key in self.keys:
            self._learn(result.item)
            assert result == Accepted(self.items[self.keys[key]], is_new=False)
            return
        item = result.item
        assert result.is_new
        assert item.id not in self.items
        assert (item.seq, item.text, item.status) == (lane.last_seq + 1, message.text, "queued")
        assert item.followup == message.followup
        if key is not None:
            self.keys[key] = item.id
        self._put(item)
        status = "ready" if lane.status == "idle" else lane.status
        self._lane(lane.agent, status=status, last_seq=item.seq, queued=lane.queued + 1)

    def _cancel(self, item_id: ItemId, result: Item) -> None:
        item = self.items[item_id]
        if item.status == "queued":
            self._settled(item, "cancelled", None, result.settled_at)
            lane = self.lanes[item.agent]
            is_last = lane.status == "ready" and lane.queued == 1
            status = "idle" if is_last else lane.status
            self._lane(lane.agent, queued=lane.queued - 1, status=status)
        elif item.status == "running":
            self._put(replace(item, cancel_requested=True))
        self._learn(result)
        assert result == self.items[item_id]

    def _claim(self, holder: HolderId, claims: Sequence[Claim]) -> None:
        ready = {lane.agent: lane for lane in self.startable(holder)}
        assert len(claims) == min(1, len(ready))
        for claim in claims:
            self._hold_lane(ready[claim.agent], holder, claim)

    def _hold_lane(self, lane: Lane, holder: HolderId, claim: Claim) -> None:
        assert claim == self.claim_on(lane, holder, claim.item.started_at)
        self._put(claim.item)
        held = {"status": "held", "holder": holder, "fence": claim.fence}
        self._lane(claim.agent, queued=lane.queued - 1, **held)

    def _start_direct(self, op: StartDirect, started: Started) -> None:
        self.add_agent(op.agent)
        item = replace(started.claim.item, run=None)
        accepted = replace(item, status="queued", attempt=0, started_at=None)
        self._accept(Accept(op.message), Accepted(accepted, is_new=True))
        lane = self.lanes[op.agent.id]
        self._hold_lane(lane, op.holder, replace(started.claim, item=item))
        assert (started.agent, started.session, started.process) == (op.agent, None, None)
        self._begin(CreateRun(started.claim, created_by(op, op.agent, item)), started.run)
        assert started.claim.item == self.items[item.id]

    def _start(self, op: StartOne, result: Sequence[Started]) -> None:
        claims = [replace(s.claim, item=replace(s.claim.item, run=None)) for s in result]
        self._claim(op.holder, claims)
        for started in result:
            agent, item = self.agents[started.claim.agent], started.claim.item
            assert (started.agent, started.session) == (agent, None)
            assert started.before == (self.runs[item.before] if item.before else None)
            assert started.process == max(self._processes_of(agent.id), key=_id, default=None)
            self._begin(CreateRun(started.claim, created_by(op, agent, item)), started.run)
            assert item == self.items[item.id]

    def _retry(self, op: Retry, result: Claim | None) -> None:
        assert (result is None) == self.items[op.claim.item.id].cancel_requested
        if result is None:
            return
        main = self.tried_again(op.claim, spends=op.spends)
        assert main.before is not None
        assert self.runs[main.before].is_terminal
        assert result == replace(op.claim, item=main)
        for item in self._running(op.claim.agent):
            if item.id != main.id:
                self._requeue(item, None)
        self._put(main)

    def _start_unprompted(self, op: StartUnprompted, result: Claim | None) -> None:
        assert (result is not None) == self.is_warm(op.lease)
        if result is not None:
            lane, item = self.lanes[op.lease.agent], result.item
            assert result == Claim(lane.agent, op.lease.holder, op.lease.fence, item)
            assert (item.seq, item.text, item.kind) == (lane.last_seq + 1, op.message.text, "self")
            assert (item.status, item.delivery, item.attempt) == ("running", "none", 1)
            self._put(item)
            self._lane(lane.agent, status="held", last_seq=item.seq)

    def _end(self, claim: Claim, change: RunChange | None, result: Item) -> None:
        name = self.items[claim.item.id].run
        assert name is not None
        run = self._change(name, change) if change else self.runs[name]
        assert run.is_terminal
        for item in self._running(claim.agent):
            self._settle_with(item, run, result.settled_at)
        assert result == self.items[claim.item.id]

    def _begin(self, op: CreateRun, result: Run) -> None:
        run = step(None, op.created)
        assert result == run
        self._put_run(run)
        self._put(replace(self.items[op.claim.item.id], run=run.id))

    def _append(self, claim: Claim, stretch: Stretch, result: AppendResult | None) -> None:
        process = self.processes[stretch.process]
        before = self.lanes[claim.agent].event_seq
        assert process.offset == stretch.from_offset
        if stretch.launched:
            self._change(stretch.run, stretch.launched)
        self._place(
            claim.agent,
            stretch.run,
            [EventId(f"{stretch.process}:{e.place}.{e.n}") for e in events_of(stretch)],
        )
        self._put_run(add_counts(self.runs[stretch.run], stretch.count, 0))
        self._put_process(replace(process, offset=stretch.to_offset))
        after = self.lanes[claim.agent].event_seq
        assert result in {None, AppendResult(after - before, after, len(self.log))}

    def _offer_followups(self, op: OfferFollowups, result: Sequence[Item]) -> None:
        agent = op.claim.agent
        assert [item.id for item in result] == [i.id for i in self.steerable(agent)[: op.limit]]
        for item in result:
            offered: dict[str, Any] = {"status": "running", "delivery": "offered"}
            assert item == replace(self.items[item.id], **offered, started_at=item.started_at)
            self._put(item)
        self._lane(agent, queued=self.lanes[agent].queued - len(result))

    # -- steps they share

    def _change(self, run_id: RunId | None, change: RunChange) -> Run:
        assert run_id is not None
        before = self.runs[run_id]
        after = step(before, change)
        events = [EventId(str(emitted.place)) for emitted in build_status_events(before, after)]
        self._place(after.agent, run_id, events)
        self._put_run(add_counts(after, len(events), 0))
        return self.runs[run_id]

    def _place(self, agent: AgentId, run: RunId | None, events: Iterable[EventId]) -> None:
        before = len(self.log)
        self.log += [(event, run) for event in events]
        self._lane(agent, event_seq=self.lanes[agent].event_seq + len(self.log) - before)

    def _settle_with(self, item: Item, run: Run, at: datetime | None) -> None:
        if item.delivery == "offered":
            self._requeue(item, at)
            return
        decide = compute_absorbed_status if item.delivery == "absorbed" else compute_item_status
        status = decide(run, item)
        if status == "queued":
            self._requeue(item, at)
            return
        error = run.error if status == "failed" else None
        reply = run.text if status == "completed" else None
        self._settled(replace(item, error=error), status, reply, at)

    def _requeue(self, item: Item, at: datetime | None) -> None:
        if item.cancel_requested:
            self._settled(item, "cancelled", None, at)
            return
        delivery = "none" if item.delivery in {"none", "own_turn"} else "returned"
        self._put(replace(item, status="queued", delivery=delivery))
        self._lane(item.agent, queued=self.lanes[item.agent].queued + 1)

    def _settled(
        self, item: Item, status: ItemStatus, reply: str | None, at: datetime | None
    ) -> None:
        self._put(replace(item, status=status, reply=reply, settled_at=at))

    def _learn(self, seen: Item) -> None:
        """Not every verb that settles something says when: take the time that is seen first."""
        item = self.items[seen.id]
        if item.is_settled and item.settled_at is None and seen.settled_at is not None:
            self.items[item.id] = replace(item, settled_at=seen.settled_at)

    def _free(self, agent: AgentId) -> None:
        status = "ready" if self.lanes[agent].queued else "idle"
        self._lane(agent, status=status, holder=None)

    def _lane(self, agent: AgentId, **fields: Any) -> None:
        self.lanes[agent] = replace(self.lanes[agent], **fields)

    def _put(self, item: Item) -> None:
        self.items[item.id] = item
        self.fresh_items.add(item.id)
        if item.is_settled:
            self.open_items[item.agent].pop(item.id, None)
        else:
            self.open_items[item.agent][item.id] = item

    def _put_run(self, run: Run) -> None:
        self.runs[run.id] = run
        self.fresh_runs.add(run.id)

    def _put_process(self, process: Process) -> None:
        self.processes[process.id] = process
        self.fresh_processes.add(process.id)
