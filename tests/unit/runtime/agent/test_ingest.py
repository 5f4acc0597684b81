"""Which effects follow from the output of a process, and in which order."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from steadyrun.dialect import TurnBegan, TurnEnded
from steadyrun.driver import DriverOutput, JournalBatch
from steadyrun.model.event import (
    ApprovalResolved,
    Emitted,
    Event,
    FollowupAbsorbed,
    Note,
    ProviderRetrying,
    TextFinal,
    UsageUpdated,
)
from steadyrun.model.policy import Rights
from steadyrun.model.usage import Cost, Usage
from steadyrun.runtime.agent.ingest import (
    RATE_LIMITED,
    Append,
    CloseFrame,
    ConfirmAnswer,
    CountUsage,
    Effect,
    FinishTurn,
    NoteEvent,
    SettleOffer,
    StartTurn,
    SuspectLimit,
    WakeWaiters,
    find_answered,
    find_types,
    ingest,
)
from steadyrun.testing.clock import START


def emit(event: Event) -> Emitted:
    return Emitted(1, 0, START, event)


def find_effects(
    *output: DriverOutput, answered_by: Mapping[str, str] | None = None
) -> list[Effect]:
    batch = JournalBatch([*output], 100, 0)
    return ingest(batch, find_types(output), Rights(), answered_by or {})


def test_events_without_a_request_are_only_recorded() -> None:
    note = emit(Note("one"))

    assert find_effects(note) == [Append([note])]


def test_events_before_the_start_of_a_turn_in_one_frame_belong_to_that_turn() -> None:
    before, after = emit(Note("before")), emit(Note("after"))

    effects = find_effects(before, TurnBegan("itm_1"), after)

    assert effects == [StartTurn("itm_1"), CloseFrame([before, after]), WakeWaiters()]


def test_end_of_a_turn_has_the_events_before_it_and_leaves_the_others_to_the_frame() -> None:
    before, after, ended = emit(Note("before")), emit(Note("after")), TurnEnded("completed")

    effects = find_effects(before, ended, after)

    assert effects == [FinishTurn(ended, [before]), CloseFrame([after]), WakeWaiters()]


USED = UsageUpdated(Usage(1, 2), Cost())
ABSORBED = FollowupAbsorbed("itm_1", "text")
LIMITED = ProviderRetrying(1, 500, RATE_LIMITED)


@pytest.mark.parametrize(
    ("event", "reactions"),
    [
        (TextFinal("done"), [ConfirmAnswer()]),
        (USED, [ConfirmAnswer(), CountUsage(USED), WakeWaiters()]),
        (ABSORBED, [SettleOffer(ABSORBED), WakeWaiters()]),
        (
            LIMITED,
            [NoteEvent(LIMITED), SuspectLimit(timedelta(milliseconds=500)), WakeWaiters()],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_request_is_recorded_before_the_runtime_reacts(
    event: Event, reactions: list[Effect]
) -> None:
    emitted = emit(event)

    assert find_effects(emitted) == [Append([emitted]), *reactions]


def test_answer_is_recorded_with_the_name_of_the_person_who_gave_it() -> None:
    resolved = emit(ApprovalResolved("a", "allowed", by="user"))
    assert find_answered([resolved]) == ["a"]

    [append, note, _] = find_effects(resolved, answered_by={"a": "ada"})

    signed = ApprovalResolved("a", "allowed", by="ada")
    assert append == Append([emit(signed)])
    assert note == NoteEvent(signed)
