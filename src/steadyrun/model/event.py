"""Defines all events: a closed union, tagged by `type`.

A dialect makes an event without time and id. The driver adds both (`Emitted`), the store adds its
position (`StoredEvent`). Events of a later version are kept as `Foreign`.
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

# The step during which the store could not be written.
RecordPhase = Literal["start", "append", "settle"]
# What an approval is about: a tool that the agent requests to use, or the budget that it has spent.
ApprovalTopic = Literal["tool", "budget"]
# The source of an event without a journal line: a sent frame, the exit, the runtime.
EventSource = Literal["s", "x", "r"]
JsonObject = dict[str, Any]
Kinds = Counter[type]


class _Tagged(Struct, frozen=True, tag_field="type", gc=False):
    """The base of all events. The tag is the public name of the type.

    Events are many and never part of a reference cycle, so the garbage collector skips them.
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
    """The last output of a process that failed without an error message."""

    exit_code: int | None
    stderr_excerpt: str


class RunStarted(_Tagged, frozen=True, tag="run.started"):
    """The provider has accepted the turn."""

    provider: str
    model: str | None = None
    item: str | None = None


class _RunEnd(_Tagged, frozen=True):
    """The fields of every event that ends a run."""

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
    """The turn ended normally; `text` is its answer."""


class RunFailed(_RunEnd, frozen=True, tag="run.failed"):
    """The run failed; `error` is the reason, `diagnostic` the last output of a crashed process."""


class RunCancelled(_RunEnd, frozen=True, tag="run.cancelled"):
    """The run was cancelled by a user or by a shutdown; see `stop_reason`."""


class RunTimedOut(_RunEnd, frozen=True, tag="run.timed_out"):
    """The run reached a timeout: `wall_timeout` or `idle_timeout`."""


class RunRateLimited(_RunEnd, frozen=True, tag="run.rate_limited"):
    """The provider refused by a rate limit; `error.retry_at` is when it ends, if stated."""


class TextDelta(_Tagged, frozen=True, tag="text.delta"):
    """A piece of an answer, published as it arrives."""

    text: str


class TextFinal(_Tagged, frozen=True, tag="text.final"):
    """A whole passage of an answer."""

    text: str


class ThinkingDelta(_Tagged, frozen=True, tag="thinking.delta"):
    """A piece of the reasoning of the model, if the provider shows it."""

    text: str


class _Tool(_Tagged, frozen=True):
    tool_call_id: str
    tool_name: str
    tool_input: Any = None
    tool_output: Any = None


class ToolStarted(_Tool, frozen=True, tag="tool.started"):
    """The agent has started a tool call."""


class ToolCompleted(_Tool, frozen=True, tag="tool.completed"):
    """A tool call succeeded."""


class ToolFailed(_Tool, frozen=True, tag="tool.failed"):
    """A tool call failed; `error` is `still_running` if it was open when its turn ended."""

    error: str | None = None


class UsageUpdated(_Tagged, frozen=True, tag="usage.updated"):
    """The tokens and the cost of the run so far."""

    usage: Usage
    cost: Cost = Cost()


class LimitWindow(Struct, frozen=True, gc=False):
    """A usage limit of the account: how much is used, and when it resets."""

    name: str
    used_percent: float
    minutes: int | None = None
    resets_at: datetime | None = None


class StatsUpdated(_Tagged, frozen=True, tag="stats.updated"):
    """Facts from the provider: its model, its context window, the limits of the account."""

    model: str | None = None
    context_window: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    terminal_reason: str | None = None
    # As far as the provider reports them.
    limits: tuple[LimitWindow, ...] = ()


class TokenBound(_Tagged, frozen=True, tag="token.bound"):
    """The conversation has a token with which it can be resumed."""

    token: str


class TokenRotated(_Tagged, frozen=True, tag="token.rotated"):
    """The conversation continues with another token."""

    token: str
    reason: str | None = None


class CompactionStarted(_Tagged, frozen=True, tag="compaction.started"):
    """The conversation is too long, and the provider has started to shorten it."""

    trigger: str | None = None


class CompactionCompleted(_Tagged, frozen=True, tag="compaction.completed"):
    """The conversation was shortened."""

    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None


class CompactionFailed(_Tagged, frozen=True, tag="compaction.failed"):
    """The conversation could not be shortened."""

    reason: str | None = None


class ImageProduced(_Tagged, frozen=True, tag="image.produced"):
    """The agent has produced an image; `file` is its path relative to the home directory."""

    name: str
    media_type: str
    size_bytes: int
    # Relative to the home directory.
    file: str | None = None


class OutputRaw(_Tagged, frozen=True, tag="output.raw"):
    """Raw output of a process, published as it arrives."""

    stream: Literal["stdout", "stderr"]
    text: str


class _Followup(_Tagged, frozen=True):
    item: str
    text: str


class FollowupOffered(_Followup, frozen=True, tag="followup.offered"):
    """A message was offered to the running turn; a later event reports the result."""


class FollowupAbsorbed(_Followup, frozen=True, tag="followup.absorbed"):
    """The running turn has taken the message; it is settled with the run."""


class FollowupOwnTurn(_Followup, frozen=True, tag="followup.own_turn"):
    """The provider will handle the message in the next turn, which is a separate run."""


class FollowupReturned(_Followup, frozen=True, tag="followup.returned"):
    """The message was not taken."""

    reason: str | None = None


class ApprovalRequested(_Tagged, frozen=True, tag="approval.requested"):
    """The agent waits for permission to use a tool. Or it has spent its `budget`: it is paused, and
    its owner decides how it continues."""

    approval: str
    tool_call_id: str | None
    tool_name: str
    tool_input: Any = None
    # Whether it can be allowed for the whole conversation.
    offers_always: bool = False
    about: ApprovalTopic = "tool"


class ApprovalResolved(_Tagged, frozen=True, tag="approval.resolved"):
    """The approval was answered or withdrawn."""

    approval: str
    verdict: str
    by: str


class PolicyViolated(_Tagged, frozen=True, tag="policy.violated"):
    """The agent has used a tool that its policy forbids, and the provider did not prevent it.
    `rule` is `deny` or `tools`. The event follows directly after the `tool.completed`."""

    rule: str
    tool_name: str | None = None


class BudgetReached(_Tagged, frozen=True, tag="budget.reached"):
    """A limit of the agent's budget is spent to 80 % or to 100 %. At 100 % the run is stopped and
    the agent is paused. The cost of `unknown_runs` is unknown.
    """

    limit: Literal["run", "agent", "day", "month"]
    unit: Literal["usd", "tokens"]
    allowed: float
    spent: float
    percent: int
    unknown_runs: int


class GateSuspect(_Tagged, frozen=True, tag="gate.suspect"):
    """A provider has announced a retry and gets no new runs for some seconds. No agent."""

    provider: str
    until: datetime | None
    reason: str
    account: str = ""


class GateClosed(_Tagged, frozen=True, tag="gate.closed"):
    """A provider gets no new runs until a time. The event has no agent."""

    provider: str
    until: datetime | None
    reason: str
    level: int
    account: str = ""


class GateOpened(_Tagged, frozen=True, tag="gate.opened"):
    """A provider gets runs again. The event has no agent. There is none when a time passes."""

    provider: str
    account: str = ""


class StallWarned(_Tagged, frozen=True, tag="stall.warned"):
    """The provider has sent nothing for `silent_ms`."""

    silent_ms: int


class ProviderRetrying(_Tagged, frozen=True, tag="provider.retrying"):
    """The provider retries a request to its model."""

    attempt: int
    delay_ms: int | None
    reason: str


class RecordFailed(_Tagged, frozen=True, tag="record.failed"):
    """The store could not be written in this `phase` of a run; the write is retried."""

    phase: RecordPhase
    message: str


class Note(_Tagged, frozen=True, tag="note"):
    """A message for people that fits no other type."""

    text: str


class Unknown(_Tagged, frozen=True, tag="unknown"):
    """A frame of an unknown type, kept whole: as text if it is text, else as bytes."""

    text: str | None = None
    raw: bytes | None = None

    @classmethod
    def from_line(cls, raw: bytes) -> "Unknown":
        """Build it from a line as it was printed."""
        try:
            return cls(text=raw.decode())
        except UnicodeDecodeError:
            return cls(raw=raw)


class MessageSent(_Tagged, frozen=True, tag="message.sent"):
    """The agent has sent a message with its own tool. This version does not create it."""

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
# Published as they arrive. They are in the journal, never in the store.
LIVE_ONLY: frozenset[type] = frozenset({TextDelta, ThinkingDelta, OutputRaw})
# The events that determine which follow-ups and approvals of a run are open, and which limits it
# has reached.
SNAPSHOT_KINDS = frozenset({
    FollowupOffered, FollowupAbsorbed, FollowupReturned, ApprovalRequested, ApprovalResolved,
    BudgetReached,
})  # fmt: skip


class Foreign(Struct, frozen=True):
    """An event of a type or version that this code does not support, kept byte for byte."""

    type: str
    version: int
    raw: bytes


class Emitted(Struct, frozen=True, gc=False, array_like=True):
    """An event with its place in the record of its process, and its time.

    `place` is the end of its frame in the journal, `n` counts the events of one frame. An event
    without a frame gets its place from `make_place`. Two events with the same place are one.
    """

    place: int | str
    n: int
    at: datetime
    event: Event | Foreign
    v: int = VERSION


class StoredEvent(Struct, frozen=True, gc=False):
    """An event in the store. `cursor` orders all events, `seq` those of one agent, without gaps.

    Events of a gate belong to no agent and have no `seq`.
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
    """An event that is published as it arrives and never stored."""

    id: EventId
    at: datetime
    agent: str
    run: RunId | None
    provider: str | None
    event: Event


AnyEvent = StoredEvent | LiveEvent


def make_place(source: EventSource, number: int) -> str:
    """The place of an event without a frame; `number` counts the events of its source."""
    return f"{source}{number}"


def parse_place(place: str) -> tuple[EventSource, int] | None:
    """Read back a result of `make_place`; None for an event of the run itself."""
    match place[:1]:
        case "s" | "x" | "r" as source if place[1:].isdecimal():
            return source, int(place[1:])
        case _:
            return None


def make_event_id(process: ProcessId | None, place: int | str, n: int) -> EventId:
    """The public id of an event; an event of the run itself has it as its place."""
    if isinstance(place, int):
        return EventId(f"{process}:{place}.{n}")
    name = place if ":" in place else f"{process}:{place}"
    return EventId(f"{name}.{n}" if n else name)


def parse_journal_position(event: EventId) -> tuple[str, int, int] | None:
    """The process, the journal offset and the number of an event; None if no journal has it."""
    process, _, place = event.partition(":")
    offset, _, n = place.partition(".")
    if not offset.isdecimal() or not n.isdecimal() or int(offset) == 0:
        return None
    return process, int(offset), int(n)


def get_type(event: Event | Foreign) -> str:
    """The public name of the type of an event."""
    if isinstance(event, Foreign):
        return event.type
    return str(event.__struct_config__.tag)


def count_kinds(events: Iterable[Emitted]) -> Kinds:
    """Count the events of each class."""
    return Counter(map(type, map(_EVENT_OF, events)))


_EVENT_OF = attrgetter("event")
