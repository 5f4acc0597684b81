"""What is there to do? An item: accepted once, run in order, settled for ever."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from steadyrun.model.event import ErrorFact
from steadyrun.model.ids import AgentId, HolderId, ItemId, RunId
from steadyrun.model.run import Metadata, Run

ItemKind = Literal["message", "reminder", "call", "step", "self"]
ItemStatus = Literal["queued", "running", "completed", "failed", "cancelled"]
Delivery = Literal["none", "offered", "absorbed", "own_turn", "returned"]
OnLost = Literal["resume", "retry", "fail"]
# May it be offered to a run that is going on, or does it wait for its own?
Followup = Literal["steer", "queue"]

SETTLED: frozenset[ItemStatus] = frozenset({"completed", "failed", "cancelled"})


class Attachment(Struct, frozen=True):
    """A file that came with a message, and the copy of it that is kept."""

    name: str
    # In our home: `attachments/` and the digest of what is in it.
    place: str
    size: int
    media_type: str | None = None


class Payload(Struct, frozen=True, omit_defaults=True):
    """What comes with a message beside its text."""

    files: tuple[Attachment, ...] = ()
    metadata: Metadata = {}
    # The item that is to be done once more.
    retry_of: ItemId | None = None


class Message(Struct, frozen=True):
    """What somebody asks of an agent. The same `key` again is the same item."""

    agent: AgentId
    text: str
    kind: ItemKind = "message"
    key: str | None = None
    on_lost: OnLost = "resume"
    followup: Followup = "steer"
    payload: Payload = Payload()


class Item(Struct, frozen=True):
    """A message in its agent's lane. `seq` is its place, and it keeps it."""

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
    # The run it had before the present one.
    before: RunId | None = None
    # How often it was run again at its own cost; `attempt` counts every time.
    tries: int = 0
    # Why it failed, or why somebody wants or wanted it to end.
    error: ErrorFact | None = None
    payload: Payload = Payload()

    @property
    def is_settled(self) -> bool:
        return self.status in SETTLED

    @property
    def cancel_reason(self) -> str | None:
        """Why somebody wants the end of what runs."""
        return self.error.message if self.cancel_requested and self.error else None


def build_cancel_fact(reason: str | None) -> ErrorFact | None:
    """What an item or a run that somebody has ended says of it."""
    return ErrorFact("cancelled", reason) if reason else None


class Lease(Struct, frozen=True):
    """This holder owns the lane. Every write names it; the highest fence wins."""

    agent: AgentId
    holder: HolderId
    fence: int


class Claim(Lease, frozen=True):
    """This holder owns the lane and runs `item`."""

    item: Item


def compute_item_status(run: Run, item: Item) -> ItemStatus:
    """What becomes of an item when its run ends. One that was stopped by a budget waits until
    somebody allows more, but whoever has called for a run directly is told that it has failed."""
    if run.status == "completed":
        return "completed"
    is_spent = run.stop_reason == "budget" and item.kind != "call"
    if is_spent or run.stop_reason == "shutdown" or run.status == "rate_limited":
        # What its provider began by itself cannot be asked for again.
        is_over = item.cancel_requested or item.kind == "self"
        return "cancelled" if is_over else "queued"
    # Who was asked to stop and broke off did what was wanted, and is not run again.
    is_unwanted = run.status == "cancelled" or item.cancel_requested
    return "cancelled" if is_unwanted else "failed"


def compute_absorbed_status(run: Run, item: Item) -> ItemStatus:
    """What becomes of a follow-up that the run had absorbed: it shares success, not bad luck."""
    if run.status == "completed":
        return "completed"
    if run.stop_reason == "user_stop" or item.cancel_requested:
        return "cancelled"
    return "queued"
