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

# The events that ask something of the runtime.
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
    """The turn has used so much: compare it with the budget."""

    used: UsageUpdated


class SettleOffer(Struct, frozen=True):
    """The process has reported what became of a follow-up."""

    event: FollowupAbsorbed | FollowupReturned


class NoteEvent(Struct, frozen=True):
    """The event changes what the run waits for."""

    event: Event | Foreign


class SuspectLimit(Struct, frozen=True):
    """The provider slows this run down, as it may do with others."""

    delay: timedelta | None


class WakeWaiters(Struct, frozen=True):
    """Something has changed that callers wait for."""


RecordEffect = Append | StartTurn | FinishTurn | CloseFrame
Reaction = ConfirmAnswer | CountUsage | SettleOffer | NoteEvent | SuspectLimit | WakeWaiters
Effect = RecordEffect | Reaction

_CONFIRM, _WAKE = ConfirmAnswer(), WakeWaiters()


class BatchView(Struct, frozen=True):
    """What has to be known beside the batch itself.

    `types` are the types in it (`find_types`), `rights` those of the process, and `answered_by` the
    names of the persons who have answered the questions in it, by approval.
    """

    types: AbstractSet[type]
    rights: Rights
    answered_by: Mapping[str, str] = {}


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


def ingest(view: BatchView, batch: JournalBatch) -> list[Effect]:
    """The effects of a batch, in order."""
    output: list[DriverOutput] = batch.output
    if ToolCompleted in view.types:
        output = with_breaches(output, view.rights)
    if view.answered_by:
        output = [_with_name(each, view.answered_by) for each in output]
    is_plain = view.types.isdisjoint(_TURN)
    # Without a mark of a turn there are only events.
    effects: list[Effect] = [Append(output)] if is_plain else _ingest_turn(output)  # type: ignore[arg-type]
    if not view.types.isdisjoint(_ANSWERS):
        effects.append(_CONFIRM)
    has_requests = not view.types.isdisjoint(_REQUESTS)
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
            delay = None if event.delay_ms is None else timedelta(milliseconds=event.delay_ms)
            return [NoteEvent(event), SuspectLimit(delay)]
        case _:
            return [NoteEvent(event)]
