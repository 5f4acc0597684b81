"""The rows of the reference store: one dictionary for each table, and the lookups in them."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from steadyrun.errors import HolderGone, NameTaken, NotFound
from steadyrun.model.agent import Agent, choose_provider
from steadyrun.model.approval import Approval
from steadyrun.model.event import SNAPSHOT_KINDS, Emitted, ErrorFact, EventId
from steadyrun.model.gate import Gate, UnavailableProviders
from steadyrun.model.ids import AgentId, ApprovalId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Lease, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Run
from steadyrun.model.session import Session
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
from steadyrun.stores import rules


@dataclass
class Placed:
    """An event and its place in the record."""

    cursor: int
    seq: int | None
    agent: AgentId | None
    run: RunId | None
    id: EventId
    emitted: Emitted


@dataclass
class Tables:
    """The whole record. Several stores over the same tables act as several processes on one
    home."""

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
    # The cursor of the last pruned event of each agent; the empty name stands for gates.
    pruned: dict[str, int] = field(default_factory=dict)

    def kill(self, holder: HolderId) -> None:
        """Make a holder dead, as if its process had ended without `leave`."""
        self.holders[holder] = replace(self.holders[holder], is_alive=False)

    def copy(self) -> "Tables":
        """A copy of the tables. Rows are frozen, so they need no copy."""
        return Tables(*(getattr(self, f.name).copy() for f in dataclasses.fields(self)))

    def replace_by(self, other: "Tables") -> None:
        for f in dataclasses.fields(self):
            setattr(self, f.name, getattr(other, f.name))


def find_next_cursor(t: Tables) -> int:
    """The cursor of the next event. The last event is never pruned."""
    return t.events[-1].cursor + 1 if t.events else 1


def add_agent(t: Tables, agent: Agent) -> None:
    if agent.id in t.agents:
        raise NameTaken(agent.name)
    require_free_name(t, agent)
    t.agents[agent.id] = agent
    t.lanes[agent.id] = Lane(agent.id)


def require_free_name(t: Tables, agent: Agent) -> None:
    others = [a for a in t.agents.values() if a.id != agent.id and a.removed_at is None]
    if agent.name in t.agents or agent.name in {other.name for other in others}:
        raise NameTaken(agent.name)


def require_holder(t: Tables, holder: HolderId) -> None:
    """Raise `HolderGone` if another holder removed this one, because its process seemed to have
    ended.
    """
    if holder not in t.holders:
        raise HolderGone(holder)


def find_lane(t: Tables, agent: AgentId) -> Lane:
    return rules.require_found(t.lanes.get(agent), "agent", agent)


def find_item(t: Tables, item: ItemId) -> Item:
    return rules.require_found(t.items.get(item), "item", item)


def find_process(t: Tables, process: ProcessId) -> Process:
    return rules.require_found(t.processes.get(process), "process", process)


def find_run(t: Tables, run: RunId) -> Run:
    return rules.require_found(t.runs.get(run), "run", run)


def list_items(t: Tables, agent: AgentId, status: str) -> list[Item]:
    """The items of a lane with that status, in order."""
    found = [i for i in t.items.values() if i.agent == agent and i.status == status]
    return sorted(found, key=lambda i: i.seq)


def list_steerable(t: Tables, agent: AgentId) -> list[Item]:
    """The items that may be offered to a run in progress, in order."""
    return [item for item in list_items(t, agent, "queued") if rules.is_steerable(item)]


def list_open_processes(t: Tables, agent: AgentId | None = None) -> list[Process]:
    found = [p for p in t.processes.values() if agent in {None, p.agent} and p.closed_at is None]
    return sorted(found, key=lambda p: p.id)


def bind_run(t: Tables, claim: Claim, run: RunId, created: Created) -> None:
    """Make a run the run of the claim's item."""
    item = rules.require_running(find_item(t, claim.item.id), claim, "created")
    rules.require_created_for(claim, run, created)
    if item.run is not None:
        rules.require_ended(t.runs[item.run], "created")
    save_items(t, [replace(item, run=run)])


def save_items(t: Tables, items: Iterable[Item]) -> None:
    t.items.update({item.id: item for item in items})


def save_lane(t: Tables, lane: Lane) -> None:
    t.lanes[lane.agent] = lane


def set_paused(t: Tables, agent: AgentId, *, is_paused: bool) -> None:
    save_lane(t, replace(find_lane(t, agent), is_paused=is_paused))


def accept(t: Tables, new: ItemId, message: Message, now: datetime) -> Accepted:
    lane = find_lane(t, message.agent)
    t.dedup = {key: entry for key, entry in t.dedup.items() if entry[1] > now}
    stored = t.dedup.get((message.agent, message.key or ""))
    if stored and message.key is not None:
        return Accepted(t.items[stored[0]], is_new=False)
    item = rules.create_item(new, message, lane, now)
    t.items[item.id] = item
    if message.key is not None:
        t.dedup[message.agent, message.key] = (item.id, now + DEDUP_RETENTION)
    save_lane(t, rules.count_accepted(lane, item, now))
    return Accepted(item, is_new=True)


def accept_unprompted(
    t: Tables, lease: Lease, message: Message, new: ItemId, now: datetime
) -> Item:
    """Accept the message of a turn that has begun already; it is not queued."""
    rules.require_message_for(lease.agent, message, "continue_with")
    item = rules.require_new(accept(t, new, message, now), "continue_with")
    save_lane(t, rules.count_started(t.lanes[lease.agent]))
    return rules.start_item(item, "none", now)


def list_claimable(
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


def claim(t: Tables, lane: Lane, holder: HolderId, now: datetime) -> Claim:
    head = replace(list_items(t, lane.agent, "queued")[0], started_at=None)
    item = rules.start_item(head, "none", now)
    save_items(t, [item])
    fence = lane.fence + (lane.status == "ready")
    save_lane(t, replace(rules.count_started(lane), holder=holder, fence=fence))
    return Claim(lane.agent, holder, fence, item)


def build_started(t: Tables, claim: Claim, agent: Agent, run: Run) -> Started:
    """What the holder gets with a run that was just created, for the agent as it works now."""
    item = t.items[claim.item.id]
    processes = list_open_processes(t, claim.agent)
    return Started(
        replace(claim, item=item),
        run,
        agent,
        t.sessions.get((agent.id, run.provider)),
        processes[-1] if processes else None,
        t.runs[item.before] if item.before else None,
        any(gate.probe == run.id for gate in t.gates.values()),
    )


def take_over(t: Tables, lane: Lane, holder: HolderId) -> AbandonedLane:
    fence, agent = lane.fence + 1, t.agents[lane.agent]
    save_lane(t, replace(lane, holder=holder, fence=fence))
    main = find_main(t, agent.id)
    run = t.runs[main.run] if main and main.run else None
    return AbandonedLane(
        Claim(agent.id, holder, fence, main) if main else Lease(agent.id, holder, fence),
        agent,
        run,
        tuple(list_open_processes(t, agent.id)),
    )


def find_main(t: Tables, agent: AgentId) -> Item | None:
    """The item that the lane runs itself."""
    return next((i for i in list_items(t, agent, "running") if rules.is_main(i)), None)


def find_active(t: Tables, agent: AgentId) -> tuple[Item | None, RunId | None]:
    """The item that the lane runs and its run, unless that has ended."""
    main = find_main(t, agent)
    is_active = main is not None and main.run and not t.runs[main.run].is_terminal
    return (main, main.run) if main and is_active else (None, None)


def build_requests(t: Tables, lane: Lane) -> PendingRequests:
    running = list_items(t, lane.agent, "running")
    cancelled = tuple(item.id for item in running if item.cancel_requested)
    answers = [a for a in t.approvals.values() if (a.agent, a.status) == (lane.agent, "answered")]
    answers.sort(key=lambda a: (a.asked_at, a.id))
    return PendingRequests(
        lane.agent, cancelled, bool(list_steerable(t, lane.agent)), tuple(answers)
    )


def build_snapshot(t: Tables, agent: AgentId, name: RunId | None) -> LaneSnapshot:
    if agent not in t.agents:
        raise NotFound("agent", agent)
    run = t.runs.get(name) if name is not None else None
    if name is not None and (run is None or run.agent != agent):
        raise NotFound("run", name)
    unsettled = [*list_items(t, agent, "queued"), *list_items(t, agent, "running")]
    followups = [item for item in unsettled if item.delivery in {"offered", "returned"}]
    emitted = [each.emitted for each in t.events if run and each.run == run.id]
    *_, last = t.agents[agent].provider, *[p.provider for p in list_open_processes(t, agent)]
    return LaneSnapshot(
        run,
        t.sessions.get((agent, run.provider if run else last)),
        tuple(sorted(followups, key=lambda item: item.seq)),
        tuple(each for each in emitted if type(each.event) in SNAPSHOT_KINDS),
        bool(list_steerable(t, agent)),
    )


def replace_agent(t: Tables, agent: Agent, was: Agent) -> None:
    stored = rules.require_present(t.agents.get(agent.id), agent.id)
    rules.require_unchanged(stored, agent, was)
    require_free_name(t, agent)
    t.agents[agent.id] = agent


def cancel_item(t: Tables, item: ItemId, why: ErrorFact | None, now: datetime) -> Item:
    found = find_item(t, item)
    cancelled = rules.cancel_item(found, why, now)
    save_items(t, [cancelled])
    if found.status == "queued":
        save_lane(t, rules.count_cancelled(t.lanes[found.agent], now))
    return cancelled
