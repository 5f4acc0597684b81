"""Decides what a verb of the store may do and what becomes of its rows; every engine calls these
functions.

The functions are pure. An engine loads rows, asks the rules and saves what they return. A rule that
starts with `require` raises the error that the caller of the verb gets. What works on many rows at
once, such as claiming, paging and adding up, is written by each engine in its own way.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from msgspec.structs import replace

from steadyrun.errors import ChangeRefused, LeaseLost, NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.approval import Approval, ApprovalAnswer
from steadyrun.model.event import ErrorFact
from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.model.item import (
    Claim,
    Delivery,
    Item,
    ItemStatus,
    Lease,
    Message,
    compute_absorbed_status,
    compute_item_status,
)
from steadyrun.model.process import Process
from steadyrun.model.run import TERMINAL, Created, Run, RunStatus
from steadyrun.model.session import ResumeToken, Session
from steadyrun.store import Accepted, Lane

T = TypeVar("T")


def require_found(row: T | None, kind: str, name: str) -> T:
    if row is None:
        raise NotFound(kind, name)
    return row


# -- agents


def require_present(agent: Agent | None, name: AgentId) -> Agent:
    """The agent, unless it was removed."""
    if agent is None or agent.removed_at is not None:
        raise NotFound("agent", name)
    return agent


def require_unchanged(stored: Agent, agent: Agent, was: Agent) -> None:
    """An agent is changed only from the state that the caller has seen, and keeps its kind."""
    if stored != was:
        raise ChangeRefused("set_agent", found=f"{stored.name} was changed by another caller")
    if (agent.is_direct, agent.removed_at) != (was.is_direct, was.removed_at):
        raise ChangeRefused("set_agent", found="the kind of an agent cannot be changed")


def require_idle(agent: Agent, lane: Lane) -> None:
    """An agent is removed only while its lane is idle."""
    if lane.status != "idle":
        found = f"the lane of {agent.name} is {lane.status}"
        raise ChangeRefused("remove_agent", found=found)


def bind_token(session: Session | None, provider: str, token: ResumeToken) -> Session:
    return session.bind(token) if session else Session(provider, token)


# -- leases and claims


def require_owner(lane: Lane | None, lease: Lease) -> Lane:
    """The lane, if the lease on it is still valid. A removed agent has no lane."""
    if lane is None or (lane.holder, lane.fence) != (lease.holder, lease.fence):
        raise LeaseLost(lease.agent, fence=lease.fence)
    return lane


def require_held(lane: Lane | None, claim: Claim) -> Lane:
    """The lane, if the lease on it is still valid and an item runs in it."""
    lane = require_owner(lane, claim)
    if lane.status != "held":
        raise ChangeRefused("claim", found=f"the lane is {lane.status}")
    return lane


def require_warm(lane: Lane | None, lease: Lease, verb: str) -> Lane:
    """The lane, if the lease on it is still valid and only a process is kept in it."""
    lane = require_owner(lane, lease)
    if lane.status != "warm":
        raise ChangeRefused(verb, found=f"the lane is {lane.status}")
    return lane


def require_running(item: Item, claim: Claim, verb: str) -> Item:
    """The item of the claim, if it is still the main item of its lane."""
    if item.agent != claim.agent or not is_main(item):
        raise ChangeRefused(verb, found=f"{item.id} is {item.status}, {item.delivery}")
    return item


def require_offer(item: Item, lease: Lease) -> Item:
    """A follow-up that is offered to the run in the lane."""
    if (item.agent, item.status, item.delivery) != (lease.agent, "running", "offered"):
        raise ChangeRefused("follow-up", found=f"{item.id} is {item.status}, {item.delivery}")
    return item


def require_own(agent: AgentId | None, lease: Lease, kind: str, name: str) -> None:
    """A lease reaches only runs and processes of its own agent."""
    if agent != lease.agent:
        raise NotFound(kind, name)


def require_message_for(agent: AgentId, message: Message, verb: str) -> None:
    if message.agent != agent:
        raise ChangeRefused(verb, found=f"the message is for {message.agent}")


def require_new(accepted: Accepted, verb: str) -> Item:
    """The accepted item, unless its key was used before."""
    if not accepted.is_new:
        raise ChangeRefused(verb, found=f"its key is that of {accepted.item.id}")
    return accepted.item


def is_main(item: Item) -> bool:
    """Whether the lane runs this item itself, not as a follow-up of another item."""
    return item.status == "running" and item.delivery in {"none", "own_turn"}


def is_steerable(item: Item) -> bool:
    """Whether the item may be offered to a run in progress."""
    return (item.status, item.followup, item.delivery) == ("queued", "steer", "none")


def count_fitting(sizes: Iterable[int], most_bytes: int) -> int:
    """How many texts, from the first on, have `most_bytes` together; at least one."""
    count = total = 0
    for size in sizes:
        total += size
        if count and total > most_bytes:
            break
        count += 1
    return count


# -- items


def create_item(item: ItemId, message: Message, lane: Lane, now: datetime) -> Item:
    """The item that a message becomes, at the end of its lane."""
    return Item(
        id=item,
        agent=message.agent,
        seq=lane.last_seq + 1,
        kind=message.kind,
        text=message.text,
        on_lost=message.on_lost,
        created_at=now,
        followup=message.followup,
        payload=message.payload,
    )


def start_item(item: Item, delivery: Delivery, now: datetime) -> Item:
    """The item as the main item of its lane. An offer keeps the time at which it was offered."""
    return replace(
        item,
        status="running",
        delivery=delivery,
        attempt=item.attempt + 1,
        run=None,
        before=item.run or item.before,
        started_at=item.started_at or now,
    )


def offer_item(item: Item, now: datetime) -> Item:
    return replace(item, status="running", delivery="offered", started_at=now)


def absorb_item(item: Item, main: Item) -> Item:
    return replace(item, delivery="absorbed", run=main.run)


def requeue_item(item: Item, now: datetime) -> Item:
    """The item back in its place in the queue; cancelled instead if that was requested."""
    if item.cancel_requested:
        return _settle(item, "cancelled", now)
    delivery: Delivery = "none" if item.delivery in {"none", "own_turn"} else "returned"
    return replace(item, status="queued", delivery=delivery)


def retry_item(item: Item, run: Run, *, spends: bool) -> Item:
    """The item before its next run. An item that was asked to stop is not run again."""
    if item.cancel_requested:
        raise ChangeRefused("retry", found=f"{item.id} was asked to stop")
    return replace(
        item,
        attempt=item.attempt + 1,
        tries=item.tries + spends,
        before=run.id,
        run=None,
        delivery="none",
    )


def cancel_item(item: Item, reason: ErrorFact | None, now: datetime) -> Item:
    """A queued item is cancelled, a running one is asked to stop, a settled one stays. The first
    reason is kept."""
    if item.status == "queued":
        return _settle(replace(item, error=reason), "cancelled", now)
    if item.status == "running" and not item.cancel_requested:
        return replace(item, cancel_requested=True, error=reason)
    return item


def settle_after_run(item: Item, run: Run, now: datetime) -> Item:
    """What becomes of a running item when the run of its lane has ended.

    An offer that the run did not take is queued. A completed item has the last text of the run, a
    failed item has the error of the run, a cancelled item keeps the reason of its cancellation.
    """
    status = _choose_status(item, run)
    if status == "queued":
        return requeue_item(item, now)
    error = {"cancelled": item.error, "failed": run.error}.get(status)
    reply = run.text if status == "completed" else None
    return _settle(replace(item, reply=reply, error=error), status, now)


def _choose_status(item: Item, run: Run) -> ItemStatus:
    if item.delivery == "offered":
        return "queued"
    is_absorbed = item.delivery == "absorbed"
    return compute_absorbed_status(run, item) if is_absorbed else compute_item_status(run, item)


def _settle(item: Item, status: ItemStatus, now: datetime) -> Item:
    return replace(item, status=status, settled_at=now)


# -- lanes


def count_accepted(lane: Lane, item: Item, now: datetime) -> Lane:
    return count_ready(replace(lane, last_seq=item.seq, queued=lane.queued + 1), now)


def count_cancelled(lane: Lane, now: datetime) -> Lane:
    """The lane after a queued item was cancelled."""
    return count_ready(replace(lane, queued=lane.queued - 1), now)


def count_requeued(lane: Lane, items: Sequence[Item]) -> Lane:
    """The lane after running items were requeued or settled."""
    queued = sum(item.status == "queued" for item in items)
    return replace(lane, queued=lane.queued + queued)


def count_started(lane: Lane, count: int = 1) -> Lane:
    """The lane after queued items have begun to run or were offered."""
    return replace(lane, status="held", queued=lane.queued - count, ready_at=None)


def end_claim(lane: Lane, now: datetime, *, keep_warm: bool) -> Lane:
    """The lane after its item was settled: warm with the same holder, or free."""
    return count_ready(replace(lane, status="warm"), now) if keep_warm else free_lane(lane, now)


def free_lane(lane: Lane, now: datetime) -> Lane:
    return count_ready(replace(lane, holder=None, status="idle"), now)


def count_ready(lane: Lane, now: datetime) -> Lane:
    """The lane by what is queued in it. `ready_at` is the time since when it can be claimed."""
    status = "ready" if lane.queued else "idle"
    since = lane.ready_at or now if lane.queued and lane.status != "held" else None
    return replace(lane, status=lane.status if lane.holder else status, ready_at=since)


# -- runs and processes


def require_ended(run: Run | None, verb: str) -> Run:
    """The run of an item, which must have ended."""
    if run is None:
        raise ChangeRefused(verb, found="the item has no run")
    if not run.is_terminal:
        raise ChangeRefused(verb, found=f"its run {run.id} has not ended")
    return run


def require_created_for(claim: Claim, run: RunId, created: Created) -> None:
    """A new run belongs to the agent and the item of the claim."""
    if (created.id, created.agent, created.item) != (run, claim.agent, claim.item.id):
        raise ChangeRefused("created", found="the claim is for another agent or item")


def require_unused(run: Run | None) -> None:
    """The id of a new run is not used yet."""
    if run is not None:
        raise ChangeRefused("created", found=f"there is a run {run.id} already")


def require_own_process(process: Process, lease: Lease, *, is_stored: bool) -> None:
    """A process is opened once, and only by the holder of its agent's lane."""
    if is_stored or process.agent != lease.agent:
        raise ChangeRefused("open_process", found=f"{process.id} is of another agent or was opened")


def require_open_run(run: RunId, status: RunStatus | None) -> None:
    """A run that has ended takes no more events."""
    if status in TERMINAL:
        raise ChangeRefused("append", found=f"{run} is {status}")


# -- approvals


def ask_for_budget(approval: Approval, lane: Lane, unsettled: Sequence[Approval]) -> Approval:
    """A question about a budget pauses its lane. It notes whether the lane was paused before for
    another reason: then the answer does not resume it."""
    return replace(approval, is_paused_besides=lane.is_paused and not unsettled)


def answer_approval(approval: Approval, answer: ApprovalAnswer) -> Approval:
    """The approval with its answer; the same object if it has the same answer already."""
    if approval.answer and approval.answer.to_key() == answer.to_key():
        return approval
    if approval.status != "open":
        raise ChangeRefused("answer", found=f"{approval.id} is {approval.status}")
    return approval.with_answer(answer)


def is_lane_resumed(approval: Approval) -> bool:
    """Whether the answer lets the lane of the agent be claimed again."""
    is_allowed = approval.answer is not None and approval.answer.is_allowed
    return approval.about == "budget" and is_allowed and not approval.is_paused_besides
