"""What was seen? A closed union of events, tagged by `type`, and their one encoding.

An event as a Dialect makes it has no time and no name; the driver emits it with both (`Emitted`);
the store gives it its place (`StoredEvent`). Events of a later version survive as `Foreign`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, NewType, get_args

import msgspec
from msgspec import Struct

from steadyrun.model.ids import ProcessId, RunId
from steadyrun.model.secret import Scrubber
from steadyrun.model.usage import Cost, Usage

VERSION = 1
EventId = NewType("EventId", str)

# Who made an event that no journal line caused: a frame we sent, the exit, the runtime itself.
OurSource = Literal["s", "x", "r"]
JsonObject = dict[str, Any]
Kinds = Counter[type]


class _Tagged(Struct, frozen=True, tag_field="type"):
    """What all events share: the tag is the name on every surface."""


class ErrorFact(Struct, frozen=True):
    """Why a run did not complete, for programs (`code`) and for people."""

    code: str
    message: str
    hint: str = ""
    retryable: bool = False


class Diagnostic(Struct, frozen=True):
    """The last words of a process that failed without saying why."""

    exit_code: int | None
    stderr_excerpt: str


class RunStarted(_Tagged, frozen=True, tag="run.started"):
    provider: str
    model: str | None = None
    item: str | None = None


class _RunEnded(_Tagged, frozen=True):
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


class RunCompleted(_RunEnded, frozen=True, tag="run.completed"): ...


class RunFailed(_RunEnded, frozen=True, tag="run.failed"): ...


class RunCancelled(_RunEnded, frozen=True, tag="run.cancelled"): ...


class RunTimedOut(_RunEnded, frozen=True, tag="run.timed_out"): ...


class RunRateLimited(_RunEnded, frozen=True, tag="run.rate_limited"): ...


class TextDelta(_Tagged, frozen=True, tag="text.delta"):
    text: str


class TextFinal(_Tagged, frozen=True, tag="text.final"):
    text: str


class ThinkingDelta(_Tagged, frozen=True, tag="thinking.delta"):
    text: str


class ToolStarted(_Tagged, frozen=True, tag="tool.started"):
    tool_call_id: str
    tool_name: str
    tool_input: Any = None
    tool_output: Any = None


class ToolCompleted(_Tagged, frozen=True, tag="tool.completed"):
    tool_call_id: str
    tool_name: str
    tool_input: Any = None
    tool_output: Any = None


class ToolFailed(_Tagged, frozen=True, tag="tool.failed"):
    tool_call_id: str
    tool_name: str
    tool_input: Any = None
    tool_output: Any = None
    error: str | None = None


class UsageUpdated(_Tagged, frozen=True, tag="usage.updated"):
    usage: Usage
    cost: Cost = Cost()


class StatsUpdated(_Tagged, frozen=True, tag="stats.updated"):
    model: str | None = None
    context_window: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    terminal_reason: str | None = None


class TokenBound(_Tagged, frozen=True, tag="token.bound"):
    token: str


class TokenRotated(_Tagged, frozen=True, tag="token.rotated"):
    token: str
    reason: str | None = None


class CompactionStarted(_Tagged, frozen=True, tag="compaction.started"):
    trigger: str | None = None


class CompactionCompleted(_Tagged, frozen=True, tag="compaction.completed"):
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None


class CompactionFailed(_Tagged, frozen=True, tag="compaction.failed"):
    reason: str | None = None


class ImageProduced(_Tagged, frozen=True, tag="image.produced"):
    name: str
    media_type: str
    size_bytes: int


class OutputRaw(_Tagged, frozen=True, tag="output.raw"):
    stream: Literal["stdout", "stderr"]
    text: str


class FollowupOffered(_Tagged, frozen=True, tag="followup.offered"):
    item: str
    text: str


class FollowupAbsorbed(_Tagged, frozen=True, tag="followup.absorbed"):
    item: str
    text: str


class FollowupOwnTurn(_Tagged, frozen=True, tag="followup.own_turn"):
    item: str
    text: str


class FollowupReturned(_Tagged, frozen=True, tag="followup.returned"):
    item: str
    text: str
    reason: str | None = None


class ApprovalRequested(_Tagged, frozen=True, tag="approval.requested"):
    approval: str
    tool_call_id: str | None
    tool_name: str
    tool_input: Any = None


class ApprovalResolved(_Tagged, frozen=True, tag="approval.resolved"):
    approval: str
    verdict: str
    by: str


class PolicyViolated(_Tagged, frozen=True, tag="policy.violated"):
    rule: str
    tool_name: str | None = None


class BudgetReached(_Tagged, frozen=True, tag="budget.reached"):
    limit: str
    allowed_usd: float
    spent_usd: float


class GateSuspect(_Tagged, frozen=True, tag="gate.suspect"):
    provider: str
    until: datetime | None
    reason: str


class GateClosed(_Tagged, frozen=True, tag="gate.closed"):
    provider: str
    until: datetime | None
    reason: str
    level: int


class GateOpened(_Tagged, frozen=True, tag="gate.opened"):
    provider: str


class StallWarned(_Tagged, frozen=True, tag="stall.warned"):
    silent_ms: int


class ProviderRetrying(_Tagged, frozen=True, tag="provider.retrying"):
    attempt: int
    delay_ms: int | None
    reason: str


class RecordFailed(_Tagged, frozen=True, tag="record.failed"):
    phase: str
    message: str


class Note(_Tagged, frozen=True, tag="note"):
    text: str


class Unknown(_Tagged, frozen=True, tag="unknown"):
    """A frame we do not know, kept whole: as text where it is text, else as bytes."""

    text: str | None = None
    raw: bytes | None = None


class MessageSent(_Tagged, frozen=True, tag="message.sent"):
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


class Foreign(Struct, frozen=True):
    """An event of a type or version this code does not know, kept byte for byte."""

    type: str
    version: int
    raw: bytes


class Emitted(Struct, frozen=True, gc=False):
    """An event with its identity and time. Emitting the same id twice is one event."""

    id: EventId
    at: datetime
    event: Event | Foreign
    v: int = VERSION


class StoredEvent(Struct, frozen=True):
    """An event in its place. `cursor` orders all events, `seq` those of one agent, without gaps."""

    cursor: int
    seq: int
    id: EventId
    at: datetime
    agent: str
    run: RunId | None
    provider: str | None
    event: Event | Foreign


def journal_id(process: ProcessId, offset: int, n: int) -> EventId:
    """Name the n-th event made of the frame that ends at `offset` of the journal."""
    # Not EventId(…): that is a call of its own, and this runs for every event.
    name: EventId = f"{process}:{offset}.{n}"  # type: ignore[assignment]
    return name


def our_id(process: ProcessId, source: OurSource, n: int) -> EventId:
    """Name the n-th event from `source`; n grows by one for each."""
    return EventId(f"{process}:{source}{n}")


def our_number(event_id: EventId, process: ProcessId) -> tuple[OurSource, int] | None:
    """Read back what `our_id` made; None for an event of the journal."""
    place = len(process) + 1
    match event_id[place : place + 1]:
        case "s" | "x" | "r" as source if event_id.startswith(f"{process}:"):
            return source, int(event_id[place + 1 :])
        case _:
            return None


def type_of(event: Event | Foreign) -> str:
    """The name of the event on every surface."""
    if isinstance(event, Foreign):
        return event.type
    return str(event.__struct_config__.tag)


class _Written(Struct, frozen=True):
    """An event as it is written: the fields of `Emitted`."""

    id: EventId
    at: datetime
    event: Event
    v: int


class _WrittenRaw(Struct, frozen=True):
    id: EventId
    at: datetime
    event: msgspec.Raw
    v: int


class _Tag(Struct, frozen=True):
    type: str = ""


_encode = msgspec.json.Encoder().encode
_written = msgspec.json.Decoder(list[_Written])
_written_raw = msgspec.json.Decoder(list[_WrittenRaw])
_event = msgspec.json.Decoder(Event)
_tag = msgspec.json.Decoder(_Tag)


def encode_events(
    events: Sequence[Emitted], scrubber: Scrubber, kinds: Kinds | None = None
) -> bytes:
    """Write events as a JSON list, without the secrets that `scrubber` knows."""
    kinds = kinds_of(events) if kinds is None else kinds
    body = _encode([_as_raw(e) for e in events] if Foreign in kinds else events)
    # Bytes are written as base64, where no secret can be seen.
    if Unknown in kinds or scrubber.suspects(body):
        body = _encode([_as_raw(_cleaned(emitted, scrubber)) for emitted in events])
    return body


def kinds_of(events: Iterable[Emitted]) -> Kinds:
    """How many events there are of each kind."""
    return Counter(map(type, map(_EVENT_OF, events)))


_EVENT_OF = attrgetter("event")


def decode_events(body: bytes) -> Sequence[Emitted]:
    """Read events back; what this version does not know comes back as `Foreign`."""
    try:
        return [_from_written(written) for written in _written.decode(body)]
    except msgspec.ValidationError:
        return [_from_raw(written) for written in _written_raw.decode(body)]


def join_encoded(bodies: Sequence[bytes]) -> bytes:
    """Make one encoded list of several."""
    return bodies[0] if len(bodies) == 1 else b"[" + b",".join(b[1:-1] for b in bodies) + b"]"


def public(stored: StoredEvent) -> JsonObject:
    """An event as every machine-readable surface shows it."""
    return {
        "v": stored.event.version if isinstance(stored.event, Foreign) else VERSION,
        "cursor": stored.cursor,
        "seq": stored.seq,
        "id": stored.id,
        "type": type_of(stored.event),
        "at": stored.at,
        "agent": stored.agent,
        "run": stored.run,
        "provider": stored.provider,
        "data": data_of(stored.event),
    }


def data_of(event: Event | Foreign) -> JsonObject:
    """The event's own fields, without the tag."""
    fields: JsonObject = (
        msgspec.json.decode(event.raw)
        if isinstance(event, Foreign)
        else msgspec.to_builtins(event, builtin_types=(datetime,))
    )
    fields.pop("type", None)
    return fields


def _cleaned(emitted: Emitted, scrubber: Scrubber) -> Emitted:
    """The event without secrets; one that has none stays as it is, byte for byte."""
    event = emitted.event
    raw = event.raw if isinstance(event, Foreign) else _encode(event)
    if not isinstance(event, Unknown) and not scrubber.suspects(raw):
        return emitted
    if isinstance(event, Foreign):
        fields = {"type": event.type, **scrubber.clean(data_of(event))}
        return Emitted(emitted.id, emitted.at, Foreign(event.type, event.version, _encode(fields)))
    return Emitted(emitted.id, emitted.at, scrubber.clean(event))


def _as_raw(emitted: Emitted) -> Emitted | _WrittenRaw:
    event = emitted.event
    if not isinstance(event, Foreign):
        return emitted
    return _WrittenRaw(emitted.id, emitted.at, msgspec.Raw(event.raw), event.version)


def _from_written(written: _Written) -> Emitted:
    if written.v != VERSION:
        raise msgspec.ValidationError("another version")
    return Emitted(written.id, written.at, written.event)


def _from_raw(written: _WrittenRaw) -> Emitted:
    return Emitted(written.id, written.at, _known_or_foreign(written))


def _known_or_foreign(written: _WrittenRaw) -> Event | Foreign:
    foreign = Foreign(_tag.decode(written.event).type, written.v, bytes(written.event))
    if written.v != VERSION:
        return foreign
    try:
        known: Event = _event.decode(written.event)
    except msgspec.ValidationError:
        return foreign
    return known
