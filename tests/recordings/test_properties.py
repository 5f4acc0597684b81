"""Tests properties of every recording, also of cut, garbled and renamed ones."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from steadyrun.drivers.replay import RecordedLine
from steadyrun.drivers.turn_tracker import TurnTracker
from steadyrun.lib.framing import LineSplitter
from steadyrun.model import event as ev
from steadyrun.model.event import AnyEvent, Emitted
from tests.recordings.played import (
    KILLED,
    KINDS,
    NOW,
    SHAPES,
    events_of,
    feed,
    is_sound,
    outcomes,
    played,
    raw_of,
    steps,
    texts,
    told,
    unknown,
)
from tests.recordings.recorded import Recording, recordings
from tests.recordings.shapes import GARBAGE, GONE, Json, changed, put

RECORDINGS = recordings()
by_name = pytest.mark.parametrize("recording", RECORDINGS, ids=str)
any_recording = st.sampled_from(RECORDINGS)
values = st.sampled_from(GARBAGE) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@by_name
def test_runs_of_a_recording_are_consistent(recording: Recording) -> None:
    assert is_sound(recording.play())


@by_name
def test_tool_ends_with_the_name_and_input_of_its_start(recording: Recording) -> None:
    events = events_of(recording.play())
    started = [event for event in events if isinstance(event, ev.ToolStarted)]
    ended = [event for event in events if isinstance(event, ev.ToolCompleted | ev.ToolFailed)]

    assert sorted(_call(each) for each in started) == sorted(_call(each) for each in ended)


@by_name
def test_replay_is_deterministic(recording: Recording) -> None:
    assert recording.play() == recording.play()


@by_name
def test_restored_state_continues_at_any_frame(recording: Recording) -> None:
    frames = list(steps(recording.lines()))
    turns = TurnTracker(recording.dialect())
    saved, whole = [turns.save()], []
    for frame in frames:
        whole += feed(turns, [frame])
        saved.append(turns.save())
    whole.append(turns.on_exited(recording.exit(), NOW))

    for place, memory in enumerate(saved):
        other = TurnTracker(recording.dialect())
        other.restore(memory)
        rest = feed(other, frames[place:])
        assert [*rest, other.on_exited(recording.exit(), NOW)] == whole[place:]


@by_name
def test_kill_at_any_line_leaves_consistent_runs(recording: Recording) -> None:
    lines = recording.lines()
    for place in range(len(lines) + 1):
        assert is_sound(played(recording, lines[:place], KILLED))


@by_name
def test_events_before_a_kill_do_not_change(recording: Recording) -> None:
    lines, whole = recording.lines(), recording.play()
    for place in range(len(lines) + 1):
        cut = played(recording, lines[:place], KILLED)
        same = _common(cut, whole)
        # Only what follows from the end of the process may differ.
        assert all(_is_of_the_end(each) for each in cut[same:])


@given(any_recording, st.data())
def test_frames_do_not_depend_on_the_chunks(recording: Recording, data: st.DataObject) -> None:
    lines = recording.lines()
    journal = b"".join(raw_of(line) + b"\n" for line in lines if line.dir == "out")
    places = sorted(data.draw(st.lists(st.integers(0, len(journal)), max_size=20)))
    cuts = zip([0, *places], [*places, len(journal)], strict=True)
    cutter = LineSplitter()

    printed = [frame for a, b in cuts for frame in cutter.feed(journal[a:b])]

    assert printed == [frame for way, frame in steps(lines) if way == "out"]


@by_name
def test_unknown_line_is_kept_and_changes_nothing(recording: Recording) -> None:
    lines, before = recording.lines(), told(recording, recording.lines())
    noise = SHAPES[recording.cli].noise
    for place in range(len(lines) + 1):
        line = RecordedLine("out", noise[(place + len(lines)) % len(noise)])
        after = told(recording, [*lines[:place], line, *lines[place:]])
        kept = {"text": raw_of(line).decode()}
        assert [event for event in after if event[1] != "unknown"] == before
        assert [event[2] for event in after if event[1] == "unknown"] == [kept]


@by_name
def test_unknown_fields_change_nothing(recording: Recording) -> None:
    lines, shape = recording.lines(), SHAPES[recording.cli]

    assert told(recording, changed(lines, shape.with_more)) == told(recording, lines)


@by_name
def test_ids_do_not_matter(recording: Recording) -> None:
    lines, shape = recording.lines(), SHAPES[recording.cli]
    others = [replace(line, msg=shape.renamed(line.msg)) for line in lines]

    assert told(recording, others) == shape.renamed(told(recording, lines))


@by_name
def test_error_texts_do_not_matter(recording: Recording) -> None:
    lines, before, shape = recording.lines(), outcomes(recording.play()), SHAPES[recording.cli]
    for prose in shape.prose:
        others = changed(lines, shape.reworded, lambda _, prose=prose: prose)
        assert outcomes(played(recording, others)) == before


@by_name
def test_single_turn_ends_the_same_without_the_one_shot_option(recording: Recording) -> None:
    if recording.one_shot:
        other = dataclasses.replace(recording, one_shot=False)
        assert outcomes(other.play()) == outcomes(recording.play())
        assert texts(other.play()) == texts(recording.play())


@pytest.mark.parametrize("kind", KINDS)
def test_garbled_frame_leaves_consistent_runs(kind: str) -> None:
    recording, place, lines, message = _frame(kind)
    for value in GARBAGE:
        lines[place] = replace(lines[place], msg=SHAPES[recording.cli].garbled(message, value))
        seen = played(recording, lines)
        assert is_sound(seen)
        # If a request of ours is garbled, the answer to it is unknown too.
        assert lines[place].dir == "in" or unknown(seen) <= {raw_of(lines[place]).decode()}


@pytest.mark.parametrize("kind", KINDS)
def test_empty_frame_leaves_consistent_runs(kind: str) -> None:
    recording, place, lines, message = _frame(kind)
    lines[place] = replace(lines[place], msg=SHAPES[recording.cli].emptied(message))

    assert is_sound(played(recording, lines))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if " out " in kind])
def test_unreadable_frame_is_kept(kind: str) -> None:
    recording, place, lines, message = _frame(kind)
    garbage = replace(lines[place], msg=SHAPES[recording.cli].garbled(message, [[]]))
    said, instead = (
        _said_last(recording, [*lines[:place], last]) for last in (lines[place], garbage)
    )
    lines[place] = garbage

    if said and said != instead:
        assert unknown(played(recording, lines)) == {raw_of(garbage).decode()}


@by_name
def test_garbled_details_do_not_change_the_answer(recording: Recording) -> None:
    lines, before, shape = recording.lines(), texts(recording.play()), SHAPES[recording.cli]
    for value in GARBAGE:
        others = changed(lines, shape.beside, value)
        assert texts(played(recording, others)) == before


@settings(max_examples=400)
@given(any_recording, st.data())
def test_any_change_of_a_frame_leaves_consistent_runs(
    recording: Recording, data: st.DataObject
) -> None:
    lines = recording.lines()
    places = [n for n, line in enumerate(lines) if isinstance(line.msg, dict)]
    place = data.draw(st.sampled_from(places or [0]))
    message = lines[place].msg
    if isinstance(message, dict):
        path = data.draw(st.sampled_from(list(SHAPES[recording.cli].paths(message))))
        value = data.draw(values | st.just(GONE))
        lines[place] = replace(lines[place], msg=put(message, path, value))

    assert is_sound(played(recording, lines))


@settings(max_examples=200)
@given(any_recording, st.data())
def test_lost_and_repeated_lines_leave_consistent_runs(
    recording: Recording, data: st.DataObject
) -> None:
    lines = recording.lines()
    places = st.integers(0, len(lines) - 1)
    order = data.draw(st.lists(places, max_size=2 * len(lines)))

    assert is_sound(played(recording, [lines[n] for n in order]))


def _frame(kind: str) -> tuple[Recording, int, list[RecordedLine], Json]:
    """Where the first of its kind stands."""
    recording, place = KINDS[kind]
    lines = recording.lines()
    message = lines[place].msg
    assert isinstance(message, dict)
    return recording, place, lines, message


def _said_last(recording: Recording, lines: list[RecordedLine]) -> list[str]:
    """What kind of things the last line says."""
    said = feed(TurnTracker(recording.dialect()), steps(lines))[-1]
    return [
        ev.get_type(each.event)
        if isinstance(each, Emitted)
        else f"{type(each).__name__} {getattr(each, 'status', '')}"
        for each in said
    ]


def _call(tool: ev.ToolStarted | ev.ToolCompleted | ev.ToolFailed) -> tuple[str, str, str]:
    return tool.tool_call_id, tool.tool_name, str(tool.tool_input)


def _common(some: list[AnyEvent], others: list[AnyEvent]) -> int:
    same = 0
    for one, other in zip(some, others, strict=False):
        if one != other:
            break
        same += 1
    return same


def _is_of_the_end(seen: AnyEvent) -> bool:
    if isinstance(seen.event, ev.RunStarted):
        # A one-shot turn that had said nothing yet.
        return True
    settled = ev.FollowupReturned | ev.FollowupAbsorbed | ev.ApprovalResolved
    return isinstance(seen.event, ev.RunEnded | ev.ToolFailed | settled)
