"""How does the reference keep its rows? Dictionaries, and the steps that the verbs share."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from steadyrun.errors import ChangeRefused, HolderGone, LeaseLost, NameTaken, NotFound
from steadyrun.model.agent import Agent, choose_provider
from steadyrun.model.approval import Approval
from steadyrun.model.batch import Batch
from steadyrun.model.event import SNAPSHOT_KINDS, Emitted, EventId
from steadyrun.model.gate import Gate, UnavailableProviders
from steadyrun.model.ids import AgentId, ApprovalId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import (
    Claim,
    Delivery,
    Item,
    Lease,
    Message,
    compute_absorbed_status,
    compute_item_status,
)
from steadyrun.model.process import Marks, Process, SavedState
from steadyrun.model.run import Created, Run
from steadyrun.model.session import ResumeToken, Session
from steadyrun.model.usage import UsageSum, count_tokens
from steadyrun.store import (
    DEDUP_RETENTION,
    AbandonedLane,
    Accepted,
    Holder,
    Lane,
    LaneSnapshot,
    PendingRequests,
    Started,
)


@dataclass
class Placed:
    """An event in its place, before it is shown to anybody."""

    cursor: int
    seq: int | None
    agent: AgentId | None
    run: RunId | None
    id: EventId
    emitted: Emitted


@dataclass
class Tables:
    """All there is. Several stores over the same tables are several processes on one home."""

    agents: dict[AgentId, Agent] = field(default_factory=dict)
    sessions: dict[tuple[AgentId, str], Session] = field(default_factory=dict)
    lanes: dict[AgentId, Lane] = field(default_factory=dict)
    holders: dict[HolderId, Holder] = field(default_factory=dict)
    items: dict[ItemId, Item] = field(default_factory=dict)
    dedup: dict[tuple[AgentId, str], tuple[ItemId, datetime]] = field(default_factory=dict)
    processes: dict[ProcessId, Process] = field(default_factory=dict)
    runs: dict[RunId, Run] = field(default_factory=dict)
    events: list[Placed] = field(default_factory=list)
    gates: dict[tuple[str, str], Gate] = field(default_factory=dict)
    approvals: dict[ApprovalId, Approval] = field(default_factory=dict)
    kv: dict[str, bytes] = field(default_factory=dict)

    def kill(self, holder: HolderId) -> None:
        """Make a holder dead, as if its process had ended without `leave`."""
        self.holders[holder] = altered(self.holders[holder], is_alive=False)

    def copy(self) -> "Tables":
        """Rows are frozen, so copying the tables is enough."""
        return Tables(*(getattr(self, f.name).copy() for f in dataclasses.fields(self)))

    def become(self, other: "Tables") -> None:
        for f in dataclasses.fields(self):
            setattr(self, f.name, getattr(other, f.name))


def altered(row: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(row, **fields)


def add_agent(t: Tables, agent: Agent) -> None:
    if agent.id in t.agents:
        raise NameTaken(agent.name)
    refuse_taken(t, agent)
    t.agents[agent.id] = agent
    t.lanes[agent.id] = Lane(agent.id)


def refuse_taken(t: Tables, agent: Agent) -> None:
    others = [a for a in t.agents.values() if a.id != agent.id and a.removed_at is None]
    if agent.name in t.agents or agent.name in {other.name for other in others}:
        raise NameTaken(agent.name)


def present(t: Tables, agent: AgentId) -> Agent:
    known = t.agents.get(agent)
    if known is None or known.removed_at is not None:
        raise NotFound("agent", agent)
    return known


def lane_of(t: Tables, agent: AgentId) -> Lane:
    if agent not in t.lanes:
        raise NotFound("agent", agent)
    return t.lanes[agent]


def item_of(t: Tables, item: ItemId) -> Item:
    if item not in t.items:
        raise NotFound("item", item)
    return t.items[item]


def owned(t: Tables, hold: Lease) -> Lane:
    lane = t.lanes.get(hold.agent)
    if lane is None or (lane.holder, lane.fence) != (hold.holder, hold.fence):
        raise LeaseLost(hold.agent, fence=hold.fence)
    return lane


def held(t: Tables, claim: Claim) -> Lane:
    lane = owned(t, claim)
    if lane.status != "held":
        raise ChangeRefused("claim", found=f"the lane is {lane.status}")
    return lane


def warm(t: Tables, hold: Lease, verb: str) -> Lane:
    lane = owned(t, hold)
    if lane.status != "warm":
        raise ChangeRefused(verb, found=f"the lane is {lane.status}")
    return lane


def main_of(t: Tables, claim: Claim, verb: str) -> Item:
    """The claim's item, if it is still the one that the lane runs."""
    item = item_of(t, claim.item.id)
    if item.agent != claim.agent or not is_main(item):
        raise ChangeRefused(verb, found=f"{item.id} is {item.status}, {item.delivery}")
    return item


def steerable(t: Tables, agent: AgentId) -> list[Item]:
    """What may be offered to a run that is going on, in order."""
    queued = in_lane(t, agent, "queued")
    return [i for i in queued if (i.followup, i.delivery) == ("steer", "none")]


def within(items: Sequence[Item], most_bytes: int) -> Iterator[Item]:
    """As many of the items as have `most_bytes` together, and the first in any case."""
    total = 0
    for n, item in enumerate(items):
        total += len(item.text.encode())
        if n and total > most_bytes:
            return
        yield item


def call_on(t: Tables, lane: Lane) -> PendingRequests:
    running = in_lane(t, lane.agent, "running")
    cancelled = tuple(item.id for item in running if item.cancel_requested)
    answered = [a for a in t.approvals.values() if a.agent == lane.agent]
    answers = [a for a in answered if a.status == "answered"]
    answers.sort(key=lambda a: (a.asked_at, a.id))
    is_steered = bool(steerable(t, lane.agent))
    return PendingRequests(lane.agent, cancelled, is_steered, tuple(answers))


def is_main(item: Item) -> bool:
    return item.status == "running" and item.delivery in {"none", "own_turn"}


def offer(t: Tables, claim: Claim, item: ItemId) -> Item:
    found = item_of(t, item)
    if (found.agent, found.status, found.delivery) != (claim.agent, "running", "offered"):
        raise ChangeRefused("follow-up", found=f"{item} is {found.status}, {found.delivery}")
    return found


def process_of(t: Tables, hold: Lease, process: ProcessId) -> Process:
    found = t.processes.get(process)
    if found is None or found.agent != hold.agent:
        raise NotFound("process", process)
    return found


def run_of(t: Tables, hold: Lease, run: RunId) -> Run:
    found = t.runs.get(run)
    if found is None or found.agent != hold.agent:
        raise NotFound("run", run)
    return found


def bind_run(t: Tables, claim: Claim, run: RunId, change: Created) -> None:
    item = main_of(t, claim, "created")
    if (change.id, change.agent, change.item) != (run, claim.agent, item.id):
        raise ChangeRefused("created", found="the claim is for another agent or item")
    if item.run is not None and not t.runs[item.run].is_terminal:
        raise ChangeRefused("created", found=f"its run {item.run} has not ended")
    t.items[item.id] = altered(item, run=run)


def accept(t: Tables, new: ItemId, message: Message, now: datetime) -> Accepted:
    lane = lane_of(t, message.agent)
    t.dedup = {key: seen for key, seen in t.dedup.items() if seen[1] > now}
    known = t.dedup.get((message.agent, message.key or ""))
    if known and message.key is not None:
        return Accepted(t.items[known[0]], is_new=False)
    item = new_item(new, message, lane.last_seq + 1, now)
    t.items[item.id] = item
    if message.key is not None:
        t.dedup[message.agent, message.key] = (item.id, now + DEDUP_RETENTION)
    t.lanes[lane.agent] = waiting(altered(lane, last_seq=item.seq, queued=lane.queued + 1), now)
    return Accepted(item, is_new=True)


def in_lane(t: Tables, agent: AgentId, status: str) -> list[Item]:
    found = [i for i in t.items.values() if i.agent == agent and i.status == status]
    return sorted(found, key=lambda i: i.seq)


def claimable(
    t: Tables, holder: HolderId, agent: AgentId | None, shut: UnavailableProviders
) -> list[tuple[Lane, str]]:
    """The lanes that this holder may claim, the longest ready first, and the provider of each."""
    found = [
        (lane, chosen)
        for lane in t.lanes.values()
        if lane.ready_at is not None
        and lane.holder in {None, holder}
        and not lane.is_paused
        and (lane.agent == agent or (agent is None and not t.agents[lane.agent].is_direct))
        and (chosen := choose_provider(t.agents[lane.agent].providers, shut.closed))
        and chosen not in shut.suspect
    ]
    return sorted(found, key=lambda each: (each[0].ready_at, each[0].agent))


def require_holder(t: Tables, holder: HolderId) -> None:
    """It has not been taken for gone meanwhile."""
    if holder not in t.holders:
        raise HolderGone(holder)


def claim(t: Tables, lane: Lane, holder: HolderId, now: datetime) -> Claim:
    head = in_lane(t, lane.agent, "queued")[0]
    item = altered(
        head,
        status="running",
        delivery="none",
        attempt=head.attempt + 1,
        run=None,
        before=head.run or head.before,
        started_at=now,
    )
    fence = lane.fence + (lane.status == "ready")
    t.items[item.id] = item
    t.lanes[lane.agent] = altered(
        lane, status="held", holder=holder, fence=fence, queued=lane.queued - 1, ready_at=None
    )
    return Claim(lane.agent, holder, fence, item)


def started(t: Tables, claim: Claim, agent: Agent, run: Run) -> Started:
    """What there is to know of a run that was just created, for the agent as it works now."""
    item = t.items[claim.item.id]
    processes = open_processes(t, claim.agent)
    return Started(
        altered(claim, item=item),
        run,
        agent,
        t.sessions.get((agent.id, run.provider)),
        processes[-1] if processes else None,
        t.runs[item.before] if item.before else None,
        any(gate.probe == run.id for gate in t.gates.values()),
    )


def take_over(t: Tables, lane: Lane, holder: HolderId) -> AbandonedLane:
    fence, agent = lane.fence + 1, t.agents[lane.agent]
    t.lanes[lane.agent] = altered(lane, holder=holder, fence=fence)
    main = next((item for item in in_lane(t, agent.id, "running") if is_main(item)), None)
    run = t.runs[main.run] if main and main.run else None
    return AbandonedLane(
        Claim(agent.id, holder, fence, main) if main else Lease(agent.id, holder, fence),
        agent,
        run,
        tuple(open_processes(t, agent.id)),
    )


def known(t: Tables, agent: AgentId, name: RunId | None) -> LaneSnapshot:
    if agent not in t.agents:
        raise NotFound("agent", agent)
    run = t.runs.get(name) if name is not None else None
    if name is not None and (run is None or run.agent != agent):
        raise NotFound("run", name)
    open_ = [*in_lane(t, agent, "queued"), *in_lane(t, agent, "running")]
    followups = [item for item in open_ if item.delivery in {"offered", "returned"}]
    told = [each.emitted for each in t.events if run and each.run == run.id]
    *_, last = t.agents[agent].provider, *[p.provider for p in open_processes(t, agent)]
    return LaneSnapshot(
        run,
        t.sessions.get((agent, run.provider if run else last)),
        tuple(sorted(followups, key=lambda item: item.seq)),
        tuple(each for each in told if type(each.event) in SNAPSHOT_KINDS),
        bool(steerable(t, agent)),
    )


def open_processes(t: Tables, agent: AgentId | None) -> list[Process]:
    found = [p for p in t.processes.values() if agent in {None, p.agent} and p.closed_at is None]
    return sorted(found, key=lambda p: p.id)


def ended_run(t: Tables, item: Item, verb: str) -> Run:
    if item.run is None:
        raise ChangeRefused(verb, found="the item has no run")
    run = t.runs[item.run]
    if not run.is_terminal:
        raise ChangeRefused(verb, found=f"its run {run.id} has not ended")
    return run


def start_unasked(
    t: Tables, hold: Lease, message: Message, new: ItemId, now: datetime, verb: str
) -> Item:
    if message.agent != hold.agent:
        raise ChangeRefused(verb, found=f"the message is for {message.agent}")
    accepted = accept(t, new, message, now)
    if not accepted.is_new:
        raise ChangeRefused(verb, found=f"its key is that of {accepted.item.id}")
    lane = t.lanes[hold.agent]
    t.lanes[hold.agent] = altered(lane, status="held", ready_at=None, queued=lane.queued - 1)
    return start(t, accepted.item, "none", now)


def start(t: Tables, item: Item, delivery: Delivery, now: datetime) -> Item:
    started: Item = altered(
        item,
        status="running",
        delivery=delivery,
        attempt=item.attempt + 1,
        run=None,
        before=item.run or item.before,
        started_at=item.started_at or now,
    )
    t.items[item.id] = started
    return started


def going_on(t: Tables, agent: AgentId) -> tuple[Item | None, RunId | None]:
    """The item that the agent's lane runs, and its run, unless that has ended."""
    for item in in_lane(t, agent, "running"):
        if is_main(item) and item.run and not t.runs[item.run].is_terminal:
            return item, item.run
    return None, None


def settle_item(t: Tables, item: Item, status: str, now: datetime) -> None:
    t.items[item.id] = altered(item, status=status, settled_at=now)


def requeue(t: Tables, item: Item, now: datetime) -> None:
    """Back to its place; what somebody cancelled meanwhile is cancelled instead."""
    if item.cancel_requested:
        settle_item(t, item, "cancelled", now)
        return
    delivery = "none" if item.delivery in {"none", "own_turn"} else "returned"
    t.items[item.id] = altered(item, status="queued", delivery=delivery)
    lane = t.lanes[item.agent]
    t.lanes[item.agent] = altered(lane, queued=lane.queued + 1)


def settle_with(t: Tables, item: Item, run: Run, now: datetime) -> None:
    if item.delivery == "offered":
        requeue(t, item, now)
        return
    is_absorbed = item.delivery == "absorbed"
    status = compute_absorbed_status(run, item) if is_absorbed else compute_item_status(run, item)
    if status == "queued":
        requeue(t, item, now)
    else:
        reply = run.text if status == "completed" else None
        why = item.error if status == "cancelled" else None
        error = run.error if status == "failed" else why
        settle_item(t, altered(item, reply=reply, error=error), status, now)


def free(t: Tables, agent: AgentId, now: datetime) -> None:
    t.lanes[agent] = waiting(altered(t.lanes[agent], holder=None, status="idle"), now)


def waiting(lane: Lane, now: datetime) -> Lane:
    """The lane by what is queued in it: who can be claimed says since when."""
    status = "ready" if lane.queued else "idle"
    since = lane.ready_at or now if lane.queued and lane.status != "held" else None
    after: Lane = altered(lane, status=lane.status if lane.holder else status, ready_at=since)
    return after


def new_item(item: ItemId, message: Message, seq: int, now: datetime) -> Item:
    return Item(
        id=item,
        agent=message.agent,
        seq=seq,
        kind=message.kind,
        text=message.text,
        on_lost=message.on_lost,
        created_at=now,
        followup=message.followup,
        payload=message.payload,
    )


def advanced(process: Process, batch: Batch, marks: Marks) -> Process:
    saved = process.saved
    if batch.checkpoint:
        saved = SavedState(batch.checkpoint.state, batch.checkpoint.sent, batch.to_offset)
    advanced: Process = altered(process, offset=batch.to_offset, marks=marks, saved=saved)
    return advanced


def bind_token(t: Tables, agent: AgentId, provider: str, token: ResumeToken) -> None:
    known = t.sessions.get((agent, provider))
    t.sessions[agent, provider] = known.bind(token) if known else Session(provider, token)


def set_paused(t: Tables, agent: AgentId, *, is_paused: bool) -> None:
    t.lanes[agent] = altered(lane_of(t, agent), is_paused=is_paused)


def added(total: UsageSum, run: Run) -> UsageSum:
    usage, cost = run.usage, run.cost
    return UsageSum(
        runs=total.runs + 1,
        input_tokens=total.input_tokens + (usage.input_tokens or 0),
        output_tokens=total.output_tokens + (usage.output_tokens or 0),
        cache_read_tokens=total.cache_read_tokens + (usage.cache_read_tokens or 0),
        cache_write_tokens=total.cache_write_tokens + (usage.cache_write_tokens or 0),
        known_usd=total.known_usd + (cost.usd or 0.0 if cost.kind == "known" else 0.0),
        estimated_usd=total.estimated_usd + (cost.usd or 0.0 if cost.kind == "estimated" else 0.0),
        unknown_cost_runs=total.unknown_cost_runs + (cost.kind == "unknown"),
        unknown_tokens=total.unknown_tokens
        + (count_tokens(usage) if cost.kind == "unknown" else 0),
    )
