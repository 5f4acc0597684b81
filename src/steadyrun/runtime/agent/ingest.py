"""Decides what follows from the output of a process. Pure: output in, effects out.

The effects of one batch are carried out in order (`agent/effects.py`): first what is recorded, then
what the recorded events ask of the runtime.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import TurnBegan, TurnEnded
from steadyrun.driver import DriverOutput, JournalBatch
from steadyrun.model.approval import BY_PROVIDER
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    Emitted,
    Event,
    FollowupAbsorbed,
    FollowupReturned,
    Foreign,
    ProviderRetrying,
    TextFinal,
    ToolCompleted,
    ToolStarted,
    UsageUpdated,
)
from steadyrun.model.policy import Rights
from steadyrun.runtime.run.permissions import with_breaches

# The events that require an action of the runtime.
_REQUESTS: frozenset[type] = frozenset(
    {
        FollowupAbsorbed,
        FollowupReturned,
        ApprovalRequested,
        ApprovalResolved,
        ProviderRetrying,
        UsageUpdated,
    }
)
_TURN: frozenset[type] = frozenset({TurnBegan, TurnEnded})
# None of these comes before the model has answered.
_ANSWERS: frozenset[type] = frozenset({TextFinal, ToolStarted, UsageUpdated})
# The reason of a retry that concerns every user of a provider.
RATE_LIMITED = "rate_limited"
# No provider states a longer delay than a week.
_MOST_DELAY_MS = 7 * 24 * 3600 * 1000


class Append(Struct, frozen=True):
    """Record events of the open turn, or of none."""

    events: list[Emitted]


class StartTurn(Struct, frozen=True):
    """A turn has begun: find its run, or make one. `input` is what the turn took."""

    input: str | None


class FinishTurn(Struct, frozen=True):
    """A turn has ended: record its events and, with it, the end of its run."""

    ended: TurnEnded
    events: list[Emitted]


class CloseFrame(Struct, frozen=True):
    """The frame with the start or the end of a turn is over: record what is left of it, with the
    start of the turn that is open now."""

    events: list[Emitted]


class ConfirmAnswer(Struct, frozen=True):
    """The provider has answered: a closed gate that waits for this run may open."""


class CountUsage(Struct, frozen=True):
    """The turn has reported its usage: compare it with the budget."""

    used: UsageUpdated


class SettleOffer(Struct, frozen=True):
    """The process has reported what became of a follow-up."""

    event: FollowupAbsorbed | FollowupReturned


class NoteEvent(Struct, frozen=True):
    """The event changes what the run waits for."""

    event: Event | Foreign


class SuspectLimit(Struct, frozen=True):
    """The provider delays this run because of a limit, and may delay other runs."""

    delay: timedelta | None


class WakeWaiters(Struct, frozen=True):
    """Something has changed that callers wait for."""


RecordEffect = Append | StartTurn | FinishTurn | CloseFrame
Reaction = ConfirmAnswer | CountUsage | SettleOffer | NoteEvent | SuspectLimit | WakeWaiters
Effect = RecordEffect | Reaction

_CONFIRM, _WAKE = ConfirmAnswer(), WakeWaiters()


def find_types(output: Sequence[DriverOutput]) -> set[type]:
    """The types of the events and of the turn's marks."""
    return {type(each.event) if type(each) is Emitted else type(each) for each in output}


def find_answered(output: Sequence[DriverOutput]) -> list[str]:
    """The questions that were answered by a person."""
    return [
        each.event.approval
        for each in output
        if type(each) is Emitted
        and isinstance(each.event, ApprovalResolved)
        and each.event.by != BY_PROVIDER
    ]


def ingest(
    batch: JournalBatch, types: AbstractSet[type], rights: Rights, answered_by: Mapping[str, str]
) -> list[Effect]:
    """The effects of a batch, in order. `types` are the types in it (`find_types`), `rights` those
    of the process, and `answered_by` has the names of the persons who have answered its questions,
    by approval."""
    output: list[DriverOutput] = batch.output
    if ToolCompleted in types:
        output = with_breaches(output, rights)
    if answered_by:
        output = [_with_name(each, answered_by) for each in output]
    is_plain = types.isdisjoint(_TURN)
    # Without a mark of a turn there are only events.
    effects: list[Effect] = [Append(output)] if is_plain else _ingest_turn(output)  # type: ignore[arg-type]
    if not types.isdisjoint(_ANSWERS):
        effects.append(_CONFIRM)
    has_requests = not types.isdisjoint(_REQUESTS)
    if has_requests:
        for each in output:
            if type(each) is Emitted and type(each.event) in _REQUESTS:
                effects += _react(each.event)
    if has_requests or not is_plain:
        effects.append(_WAKE)
    return effects


def _with_name(output: DriverOutput, answered_by: Mapping[str, str]) -> DriverOutput:
    event = output.event if type(output) is Emitted else None
    if not isinstance(event, ApprovalResolved) or event.by == BY_PROVIDER:
        return output
    by = answered_by.get(event.approval)
    return replace(output, event=replace(event, by=by)) if by is not None else output


def _ingest_turn(output: Sequence[DriverOutput]) -> list[Effect]:
    """One frame with the start or the end of a turn in it. The events before a start in the same
    frame belong to that turn, too: one frame, one commit."""
    effects, events = list[Effect](), list[Emitted]()
    for each in output:
        match each:
            case Emitted():
                events.append(each)
            case TurnBegan():
                effects.append(StartTurn(each.input))
            case TurnEnded():
                effects.append(FinishTurn(each, events))
                events = []
    effects.append(CloseFrame(events))
    return effects


def _react(event: Event | Foreign) -> list[Effect]:
    match event:
        case UsageUpdated():
            return [CountUsage(event)]
        case FollowupAbsorbed() | FollowupReturned():
            return [SettleOffer(event)]
        case ProviderRetrying() if event.reason == RATE_LIMITED:
            return [NoteEvent(event), SuspectLimit(_to_delay(event.delay_ms))]
        case _:
            return [NoteEvent(event)]


def _to_delay(milliseconds: int | None) -> timedelta | None:
    """The time until the next try, if the CLI has stated it. A CLI may print any number."""
    if milliseconds is None:
        return None
    return timedelta(milliseconds=min(max(0, milliseconds), _MOST_DELAY_MS))
