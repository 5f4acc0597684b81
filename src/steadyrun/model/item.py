"""Defines items: messages to agents, accepted once, run in order and settled once."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from steadyrun.model.event import ErrorFact
from steadyrun.model.ids import AgentId, HolderId, ItemId, RunId
from steadyrun.model.run import LAUNCH_FAILED, Metadata, Run

ItemKind = Literal["message", "reminder", "call", "step", "self"]
ItemStatus = Literal["queued", "running", "completed", "failed", "cancelled"]
Delivery = Literal["none", "offered", "absorbed", "own_turn", "returned"]
OnLost = Literal["resume", "retry", "fail"]
# Whether a message may be offered to a running turn, or waits for its own run.
Followup = Literal["steer", "queue"]

SETTLED: frozenset[ItemStatus] = frozenset({"completed", "failed", "cancelled"})


class Attachment(Struct, frozen=True):
    """A file of a message, and its stored copy."""

    name: str
    # The path in the home: `attachments/` and the digest of the content.
    place: str
    size: int
    media_type: str | None = None


class Payload(Struct, frozen=True, omit_defaults=True):
    """The parts of a message besides its text."""

    files: tuple[Attachment, ...] = ()
    metadata: Metadata = {}
    # The item that is repeated.
    retry_of: ItemId | None = None
    # Whether text and reply are deleted because they are old.
    text_pruned: bool = False


class Message(Struct, frozen=True):
    """A message to an agent. A repeated `key` is the same item."""

    agent: AgentId
    text: str
    kind: ItemKind = "message"
    key: str | None = None
    on_lost: OnLost = "resume"
    followup: Followup = "steer"
    payload: Payload = Payload()


class Item(Struct, frozen=True):
    """A message in the lane of its agent. `seq` is its position, which never changes."""

    id: ItemId
    agent: AgentId
    seq: int
    kind: ItemKind
    text: str
    on_lost: OnLost
    created_at: datetime
    status: ItemStatus = "queued"
    delivery: Delivery = "none"
    attempt: int = 0
    cancel_requested: bool = False
    run: RunId | None = None
    reply: str | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    followup: Followup = "steer"
    # The previous run.
    before: RunId | None = None
    # How many retries it has used; `attempt` counts every run.
    tries: int = 0
    # Why it failed, or why it is or was cancelled.
    error: ErrorFact | None = None
    payload: Payload = Payload()

    @property
    def is_settled(self) -> bool:
        return self.status in SETTLED

    @property
    def cancel_reason(self) -> str | None:
        """The reason of the requested cancellation."""
        return self.error.message if self.cancel_requested and self.error else None


def build_cancel_fact(reason: str | None) -> ErrorFact | None:
    """The error of an item or a run that was cancelled with a reason."""
    return ErrorFact("cancelled", reason) if reason else None


class Lease(Struct, frozen=True):
    """This holder owns the lane. Every write carries the lease; the highest fence wins."""

    agent: AgentId
    holder: HolderId
    fence: int

    def to_lease(self) -> "Lease":
        """The lease without an item."""
        return Lease(self.agent, self.holder, self.fence)


class Claim(Lease, frozen=True):
    """This holder owns the lane and runs `item`."""

    item: Item


def compute_item_status(run: Run, item: Item) -> ItemStatus:
    """The status of an item after its run. An item that was stopped by a budget waits until a user
    allows more, and one whose provider could not be started waits for that; a direct call fails
    instead."""
    if run.status == "completed":
        return "completed"
    waits = run.stop_reason in {"budget", LAUNCH_FAILED} and item.kind != "call"
    # A turn that was sent may not be repeated with `fail`: its run has failed by the shutdown.
    is_over_for_good = item.on_lost == "fail" and run.status == "failed"
    is_put_off = run.stop_reason == "shutdown" and not is_over_for_good
    if waits or is_put_off or run.status == "rate_limited":
        # A turn that the provider started by itself cannot be repeated.
        is_over = item.cancel_requested or item.kind == "self"
        return "cancelled" if is_over else "queued"
    # A run that failed after a cancel request counts as cancelled and is not repeated.
    is_unwanted = run.status == "cancelled" or item.cancel_requested
    return "cancelled" if is_unwanted else "failed"


def compute_absorbed_status(run: Run, item: Item) -> ItemStatus:
    """The status of an absorbed follow-up after the run. It shares success, but not failure: it is
    sent again, unless its `on_lost` forbids that."""
    if run.status == "completed":
        return "completed"
    if run.stop_reason == "user_stop" or item.cancel_requested:
        return "cancelled"
    is_put_off = run.status == "rate_limited" or run.stop_reason == "budget"
    return "failed" if item.on_lost == "fail" and not is_put_off else "queued"
