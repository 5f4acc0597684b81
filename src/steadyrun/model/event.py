"""What was seen? A closed union of events, tagged by `type`, and their one encoding.

An event as a Dialect makes it has no time and no name; the driver emits it with both (`Emitted`);
the store gives it its place (`StoredEvent`). Events of a later version survive as `Foreign`.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, NewType, get_args

from msgspec import Struct

from steadyrun.model.ids import ProcessId, RunId
from steadyrun.model.usage import Cost, Usage

VERSION = 1
EventId = NewType("EventId", str)

# What was being done when the store could not be written.
RecordPhase = Literal["start", "append", "settle"]
# What a person may be asked about: a tool that an agent wants to use, or the budget it has spent.
ApprovalTopic = Literal["tool", "budget"]
# Who made an event that no journal line caused: a frame we sent, the exit, the runtime itself.
EventSource = Literal["s", "x", "r"]
JsonObject = dict[str, Any]
Kinds = Counter[type]


class _Tagged(Struct, frozen=True, tag_field="type", gc=False):
    """What all events share: the tag is the name on every surface.

    None of them can be part of a cycle, and there are many: the garbage collector need not look.
    """


class ErrorFact(Struct, frozen=True):
    """Why a run did not complete, for programs (`code`) and for people.

    `retry_at` is the time the provider has stated, if it did.
    """

    code: str
    message: str
    hint: str = ""
    retryable: bool = False
    retry_at: datetime | None = None


class Diagnostic(Struct, frozen=True):
    """The last words of a process that failed without saying why."""

    exit_code: int | None
    stderr_excerpt: str


class RunStarted(_Tagged, frozen=True, tag="run.started"):
    """The provider has taken the turn."""

    provider: str
    model: str | None = None
    item: str | None = None


class _RunEnd(_Tagged, frozen=True):
    """The last event of its run, of whichever kind, with all that is known of it."""

    status: str
    stop_reason: str | None = None
    text: str | None = None
    usage: Usage = Usage()
    cost: Cost = Cost()
    resume_token: str | None = None
    duration_ms: int | None = None
    exit_code: int | None = None
    error: ErrorFact | None = None
    diagnostic: Diagnostic | None = None


class RunCompleted(_RunEnd, frozen=True, tag="run.completed"):
    """The turn ended as it should; `text` is its answer."""


class RunFailed(_RunEnd, frozen=True, tag="run.failed"):
    """It did not complete; `error` says why, `diagnostic` the last words of a process that died."""


class RunCancelled(_RunEnd, frozen=True, tag="run.cancelled"):
    """Somebody stopped it, or we did to shut down; `stop_reason` says who."""


class RunTimedOut(_RunEnd, frozen=True, tag="run.timed_out"):
    """A clock stopped it: `wall_timeout` or `idle_timeout`."""


class RunRateLimited(_RunEnd, frozen=True, tag="run.rate_limited"):
    """The provider takes no more for now; `error.retry_at` is when it will, if it has said so."""


class TextDelta(_Tagged, frozen=True, tag="text.delta"):
    """A piece of an answer, as it comes."""

    text: str


class TextFinal(_Tagged, frozen=True, tag="text.final"):
    """A whole passage of an answer."""

    text: str


class ThinkingDelta(_Tagged, frozen=True, tag="thinking.delta"):
    """A piece of what the model thinks, where the provider shows it."""

    text: str


class _Tool(_Tagged, frozen=True):
    tool_call_id: str
    tool_name: str
    tool_input: Any = None
    tool_output: Any = None


class ToolStarted(_Tool, frozen=True, tag="tool.started"):
    """The agent uses a tool."""


class ToolCompleted(_Tool, frozen=True, tag="tool.completed"):
    """A tool has done its work."""


class ToolFailed(_Tool, frozen=True, tag="tool.failed"):
    """A tool did not; of one that was open when its turn ended, `error` is `still_running`."""

    error: str | None = None


class UsageUpdated(_Tagged, frozen=True, tag="usage.updated"):
    """What the run has used and cost so far."""

    usage: Usage
    cost: Cost = Cost()


class LimitWindow(Struct, frozen=True, gc=False):
    """How much of what an account may use in some time is used, and when that begins anew."""

    name: str
    used_percent: float
    minutes: int | None = None
    resets_at: datetime | None = None


class StatsUpdated(_Tagged, frozen=True, tag="stats.updated"):
    """What the provider tells of itself: its model, its context, the limits of the account."""

    model: str | None = None
    context_window: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    terminal_reason: str | None = None
    # As far as the provider tells.
    limits: tuple[LimitWindow, ...] = ()


class TokenBound(_Tagged, frozen=True, tag="token.bound"):
    """The conversation has a name, by which it can be resumed."""

    token: str


class TokenRotated(_Tagged, frozen=True, tag="token.rotated"):
    """The conversation goes on under another name."""

    token: str
    reason: str | None = None


class CompactionStarted(_Tagged, frozen=True, tag="compaction.started"):
    """The conversation has become too long and is being shortened."""

    trigger: str | None = None


class CompactionCompleted(_Tagged, frozen=True, tag="compaction.completed"):
    """It was shortened."""

    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None


class CompactionFailed(_Tagged, frozen=True, tag="compaction.failed"):
    """It could not be shortened."""

    reason: str | None = None


class ImageProduced(_Tagged, frozen=True, tag="image.produced"):
    """The agent has made an image; `file` is where it is kept, from our home on."""

    name: str
    media_type: str
    size_bytes: int
    # Where it is kept, from the home directory on.
    file: str | None = None


class OutputRaw(_Tagged, frozen=True, tag="output.raw"):
    """What a process printed, as it comes."""

    stream: Literal["stdout", "stderr"]
    text: str


class _Followup(_Tagged, frozen=True):
    item: str
    text: str


class FollowupOffered(_Followup, frozen=True, tag="followup.offered"):
    """A message was said to the turn that is running; another event will tell what became of it."""


class FollowupAbsorbed(_Followup, frozen=True, tag="followup.absorbed"):
    """The running turn has taken it, and it is settled with the run."""


class FollowupOwnTurn(_Followup, frozen=True, tag="followup.own_turn"):
    """The provider takes it as a turn of its own, after this one: a run of its own."""


class FollowupReturned(_Followup, frozen=True, tag="followup.returned"):
    """It was not taken."""

    reason: str | None = None


class ApprovalRequested(_Tagged, frozen=True, tag="approval.requested"):
    """The agent asks whether it may use a tool, and waits. Or it has spent its `budget`, is paused,
    and its owner is asked how to go on."""

    approval: str
    tool_call_id: str | None
    tool_name: str
    tool_input: Any = None
    # It can be told not to ask again for the same in this conversation.
    offers_always: bool = False
    about: ApprovalTopic = "tool"


class ApprovalResolved(_Tagged, frozen=True, tag="approval.resolved"):
    """The question was answered or withdrawn."""

    approval: str
    verdict: str
    by: str


class PolicyViolated(_Tagged, frozen=True, tag="policy.violated"):
    """The agent has used a tool that it may not use, and its provider let it: `rule` is what
    forbids it, `deny` or `tools`. It comes right after the `tool.completed`."""

    rule: str
    tool_name: str | None = None


class BudgetReached(_Tagged, frozen=True, tag="budget.reached"):
    """Of a limit of the agent's budget 80 % are spent, or all: then it is stopped and paused.

    Of `unknown_runs` it is not known what they have cost.
    """

    limit: Literal["run", "agent", "day", "month"]
    unit: Literal["usd", "tokens"]
    allowed: float
    spent: float
    percent: int
    unknown_runs: int


class GateSuspect(_Tagged, frozen=True, tag="gate.suspect"):
    """A provider has been asked to wait, and is left alone for moments. Of no agent."""

    provider: str
    until: datetime | None
    reason: str
    account: str = ""


class GateClosed(_Tagged, frozen=True, tag="gate.closed"):
    """A provider is left alone until a time. Of no agent."""

    provider: str
    until: datetime | None
    reason: str
    level: int
    account: str = ""


class GateOpened(_Tagged, frozen=True, tag="gate.opened"):
    """A provider is used again. Of no agent; that a time has passed is not told."""

    provider: str
    account: str = ""


class StallWarned(_Tagged, frozen=True, tag="stall.warned"):
    """The provider has been silent for so long."""

    silent_ms: int


class ProviderRetrying(_Tagged, frozen=True, tag="provider.retrying"):
    """The provider asks its model once more."""

    attempt: int
    delay_ms: int | None
    reason: str


class RecordFailed(_Tagged, frozen=True, tag="record.failed"):
    """The store could not be written in that `phase` of a run; it is tried again."""

    phase: RecordPhase
    message: str


class Note(_Tagged, frozen=True, tag="note"):
    """Something worth telling that is nothing else."""

    text: str


class Unknown(_Tagged, frozen=True, tag="unknown"):
    """A frame we do not know, kept whole: as text where it is text, else as bytes."""

    text: str | None = None
    raw: bytes | None = None

    @classmethod
    def from_line(cls, raw: bytes) -> "Unknown":
        """A line as it was printed."""
        try:
            return cls(text=raw.decode())
        except UnicodeDecodeError:
            return cls(raw=raw)


class MessageSent(_Tagged, frozen=True, tag="message.sent"):
    """The agent has sent a message with a tool of its own. This version does not tell it."""

    ref: str
    text: str


Event = (
    RunStarted | RunCompleted | RunFailed | RunCancelled | RunTimedOut | RunRateLimited
    | TextDelta | TextFinal | ThinkingDelta
    | ToolStarted | ToolCompleted | ToolFailed
    | UsageUpdated | StatsUpdated | TokenBound | TokenRotated
    | CompactionStarted | CompactionCompleted | CompactionFailed
    | ImageProduced | OutputRaw
    | FollowupOffered | FollowupAbsorbed | FollowupOwnTurn | FollowupReturned
    | ApprovalRequested | ApprovalResolved | PolicyViolated | BudgetReached
    | GateSuspect | GateClosed | GateOpened
    | StallWarned | ProviderRetrying | RecordFailed | Note | Unknown | MessageSent
)  # fmt: skip

RunEnded = RunCompleted | RunFailed | RunCancelled | RunTimedOut | RunRateLimited

EVENT_TYPES: tuple[type[Event], ...] = get_args(Event)
# Published as they come; the journal has them, the store never does.
LIVE_ONLY: frozenset[type] = frozenset({TextDelta, ThinkingDelta, OutputRaw})
# What tells which follow-ups and questions of a run are open, and which limits are reached.
SNAPSHOT_KINDS = frozenset({
    FollowupOffered, FollowupAbsorbed, FollowupReturned, ApprovalRequested, ApprovalResolved,
    BudgetReached,
})  # fmt: skip


class Foreign(Struct, frozen=True):
    """An event of a type or version this code does not know, kept byte for byte."""

    type: str
    version: int
    raw: bytes


class Emitted(Struct, frozen=True, gc=False, array_like=True):
    """An event with its place in the record of its process, and its time.

    `place` is where its frame ends in the journal, `n` counts the events of one frame; what no
    frame caused is placed by `our_place`. Emitting the same place twice is one event.
    """

    place: int | str
    n: int
    at: datetime
    event: Event | Foreign
    v: int = VERSION


class StoredEvent(Struct, frozen=True, gc=False):
    """An event in its place. `cursor` orders all events, `seq` those of one agent, without gaps.

    What happens to a gate belongs to no agent and has no `seq`.
    """

    cursor: int
    seq: int | None
    id: EventId
    at: datetime
    agent: str | None
    run: RunId | None
    provider: str | None
    event: Event | Foreign


class LiveEvent(Struct, frozen=True, gc=False):
    """An event that is published as it comes and never stored: it has no place in the record."""

    id: EventId
    at: datetime
    agent: str
    run: RunId | None
    provider: str | None
    event: Event


def make_place(source: EventSource, number: int) -> str:
    """Place an event from `source`; the number grows by one for each."""
    return f"{source}{number}"


def parse_place(place: str) -> tuple[EventSource, int] | None:
    """Read back what `our_place` made; None for an event of the run itself."""
    match place[:1]:
        case "s" | "x" | "r" as source if place[1:].isdecimal():
            return source, int(place[1:])
        case _:
            return None


def make_event_id(process: ProcessId | None, place: int | str, n: int) -> EventId:
    """The name of an event for the world; one of the run itself brings its whole name."""
    if isinstance(place, int):
        return EventId(f"{process}:{place}.{n}")
    name = place if ":" in place else f"{process}:{place}"
    return EventId(f"{name}.{n}" if n else name)


def get_type(event: Event | Foreign) -> str:
    """The name of the event on every surface."""
    if isinstance(event, Foreign):
        return event.type
    return str(event.__struct_config__.tag)


def count_kinds(events: Iterable[Emitted]) -> Kinds:
    """How many events there are of each kind."""
    return Counter(map(type, map(_EVENT_OF, events)))


_EVENT_OF = attrgetter("event")
