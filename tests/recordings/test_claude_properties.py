"""What holds for every recording, wherever it is cut, however it is garbled and renamed?"""

import dataclasses
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from steadyrun.model import event as ev
from steadyrun.providers.replay import Line, Seen
from steadyrun.providers.turns import Turns
from steadyrun.wire.framing import Lines
from tests.recordings.played import (
    KILLED,
    NOW,
    Json,
    changed,
    events_of,
    feed,
    garbled,
    is_sound,
    kind_of,
    played,
    raw_of,
    renamed,
    steps,
    told,
)
from tests.recordings.recorded import Recording, claude_recordings

RECORDINGS = claude_recordings()
by_name = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
recordings = st.sampled_from(RECORDINGS)
# What may stand where something else was expected.
GARBAGE: list[Any] = [
    None,
    True,
    -1,
    1.5,
    10**30,
    "",
    "x",
    [],
    [[]],
    [{}],
    {},
    {"x": {"type": "y"}},
]
values = st.sampled_from(GARBAGE) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
# Lines of no kind that there is.
NOISE: list[Json | str] = [
    "Warning: this is no frame",
    "{",
    "[]",
    "null",
    '"result"',
    {"type": "no_such_type", "session_id": "x", "is_error": True},
    {"type": "system", "subtype": "no_such_subtype", "status": "compacting"},
    {"subtype": "success", "result": "no type"},
    {"type": None},
    {"type": ["result"]},
]
# Words that would mean something if words counted.
PROSE = [
    "",
    "API Error: 429 rate limit exceeded",
    "Prompt is too long",
    "Not logged in · Please run /login",
    "Overloaded",
    "[Request interrupted by user]",
    "No conversation found with session ID",
    "(no content)",
]


@by_name
def test_runs_are_sound(recording: Recording) -> None:
    assert is_sound(recording.play())


@by_name
def test_a_tool_ends_under_the_name_and_input_it_was_started_with(recording: Recording) -> None:
    events = events_of(recording.play())
    started = [event for event in events if isinstance(event, ev.ToolStarted)]
    ended = [event for event in events if isinstance(event, ev.ToolCompleted | ev.ToolFailed)]

    assert sorted(_call(each) for each in started) == sorted(_call(each) for each in ended)


@by_name
def test_playing_twice_is_the_same(recording: Recording) -> None:
    assert recording.play() == recording.play()


@by_name
def test_one_may_go_on_from_the_state_saved_at_any_frame(recording: Recording) -> None:
    frames = list(steps(recording.lines()))
    turns = Turns(recording.dialect())
    saved, whole = [turns.save()], []
    for frame in frames:
        whole += feed(turns, [frame])
        saved.append(turns.save())
    whole.append(turns.exited(recording.exit(), NOW))

    for place, memory in enumerate(saved):
        other = Turns(recording.dialect())
        other.restore(memory)
        rest = feed(other, frames[place:])
        assert [*rest, other.exited(recording.exit(), NOW)] == whole[place:]


@by_name
def test_a_process_may_be_killed_at_any_line(recording: Recording) -> None:
    lines = recording.lines()
    for place in range(len(lines) + 1):
        assert is_sound(played(recording, lines[:place], KILLED))


@by_name
def test_what_was_told_before_a_kill_stays_told(recording: Recording) -> None:
    lines, whole = recording.lines(), recording.play()
    for place in range(len(lines) + 1):
        cut = played(recording, lines[:place], KILLED)
        same = _common(cut, whole)
        # Only what follows from the end of the process may differ.
        assert all(_is_of_the_end(each) for each in cut[same:])


@given(recordings, st.data())
def test_chunks_make_no_difference(recording: Recording, data: st.DataObject) -> None:
    lines = recording.lines()
    journal = b"".join(raw_of(line) + b"\n" for line in lines if line.dir == "out")
    places = sorted(data.draw(st.lists(st.integers(0, len(journal)), max_size=20)))
    cuts = zip([0, *places], [*places, len(journal)], strict=True)
    cutter = Lines()

    printed = [frame for a, b in cuts for frame in cutter.feed(journal[a:b])]

    assert printed == [frame for way, frame in steps(lines) if way == "out"]


@by_name
def test_a_line_nobody_knows_is_kept_and_changes_nothing(recording: Recording) -> None:
    lines, before = recording.lines(), told(recording, recording.lines())
    for place in range(len(lines) + 1):
        line = Line("out", NOISE[(place + len(lines)) % len(NOISE)])
        after = told(recording, [*lines[:place], line, *lines[place:]])
        kept = {"text": raw_of(line).decode()}
        assert [event for event in after if event[1] != "unknown"] == before
        assert [event[2] for event in after if event[1] == "unknown"] == [kept]


@by_name
def test_fields_nobody_knows_change_nothing(recording: Recording) -> None:
    lines = recording.lines()

    assert told(recording, changed(lines, _with_more)) == told(recording, lines)


@by_name
def test_names_do_not_matter(recording: Recording) -> None:
    lines = recording.lines()
    others = [Line(line.dir, renamed(line.msg), line.t) for line in lines]

    assert told(recording, others) == renamed(told(recording, lines))


@by_name
def test_words_do_not_matter(recording: Recording) -> None:
    lines, before = recording.lines(), _outcomes(recording.play())
    for prose in PROSE:
        others = changed(lines, partial(_reworded, prose=prose))
        assert _outcomes(played(recording, others)) == before


@by_name
@pytest.mark.parametrize("sign", ["api_error_status", "error"])
def test_a_limit_is_known_by_either_of_its_signs(recording: Recording, sign: str) -> None:
    before = [outcome[0] for outcome in _outcomes(recording.play())]
    if "rate_limited" in before:
        others = changed(recording.lines(), lambda message: message | {sign: None})
        assert [outcome[0] for outcome in _outcomes(played(recording, others))] == before


@by_name
def test_one_turn_ends_the_same_when_nobody_says_it_is_the_only_one(recording: Recording) -> None:
    if recording.one_shot:
        other = dataclasses.replace(recording, one_shot=False)
        assert _outcomes(other.play()) == _outcomes(recording.play())


@by_name
def test_a_sub_agent_says_nothing_for_the_agent(recording: Recording) -> None:
    lines: list[Line] = []
    for line in recording.lines():
        copies = [_of_a_sub_agent(line)] if kind_of(line).startswith("out assistant") else []
        lines += [*copies, line, *copies]

    assert _texts(played(recording, lines)) == _texts(recording.play())


def _first_of_each_kind() -> dict[str, tuple[Recording, int]]:
    found: dict[str, tuple[Recording, int]] = {}
    for recording in RECORDINGS:
        for place, line in enumerate(recording.lines()):
            if isinstance(line.msg, dict):
                found.setdefault(kind_of(line), (recording, place))
    return found


KINDS = _first_of_each_kind()


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_may_say_anything(kind: str) -> None:
    recording, place = KINDS[kind]
    lines = recording.lines()
    message = lines[place].msg
    assert isinstance(message, dict)
    for value in GARBAGE:
        lines[place] = replace(lines[place], msg=garbled(message, value))
        seen = played(recording, lines)
        assert is_sound(seen)
        assert _unknown(seen) <= {raw_of(lines[place]).decode()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_may_say_nothing(kind: str) -> None:
    recording, place = KINDS[kind]
    lines = recording.lines()
    message = lines[place].msg
    assert isinstance(message, dict)
    lines[place] = replace(lines[place], msg={"type": message["type"]})

    assert is_sound(played(recording, lines))


def test_an_end_that_says_nothing_is_no_success() -> None:
    recording, place = KINDS["out result success"]
    lines = recording.lines()
    lines[place] = replace(lines[place], msg={"type": "result"})

    assert _outcomes(played(recording, lines))[0][0] == "failed"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("out")])
def test_what_says_something_is_kept_when_it_cannot_be_read(kind: str) -> None:
    recording, place = KINDS[kind]
    lines = recording.lines()
    message = lines[place].msg
    assert isinstance(message, dict)
    garbage = replace(lines[place], msg=garbled(message, [[]]))
    before = [frame for frame, _ in zip(steps(lines), range(place + 1), strict=False)]
    said = feed(Turns(recording.dialect()), before)[-1]
    lines[place] = garbage

    if said:
        assert _unknown(played(recording, lines)) == {raw_of(garbage).decode()}


@by_name
def test_an_answer_is_not_lost_for_what_is_said_beside_it(recording: Recording) -> None:
    lines, before = recording.lines(), _texts(recording.play())
    for value in GARBAGE:
        others = changed(lines, partial(_beside, value=value))
        assert _texts(played(recording, others)) == before


@settings(max_examples=400)
@given(recordings, st.data())
def test_any_part_of_any_frame_may_be_anything(recording: Recording, data: st.DataObject) -> None:
    lines = recording.lines()
    places = [n for n, line in enumerate(lines) if isinstance(line.msg, dict)]
    place = data.draw(st.sampled_from(places or [0]))
    message = lines[place].msg
    if isinstance(message, dict):
        path = data.draw(st.sampled_from(list(_paths(message))))
        value = data.draw(values | st.just(_GONE))
        lines[place] = replace(lines[place], msg=_put(message, path, value))

    assert is_sound(played(recording, lines))


@settings(max_examples=200)
@given(recordings, st.data())
def test_lines_may_be_lost_doubled_and_out_of_order(
    recording: Recording, data: st.DataObject
) -> None:
    lines = recording.lines()
    places = st.integers(0, len(lines) - 1)
    order = data.draw(st.lists(places, max_size=2 * len(lines)))

    assert is_sound(played(recording, [lines[n] for n in order]))


_GONE = object()
Path = tuple[str | int, ...]


def _paths(value: Any, path: Path = ()) -> Any:
    """Where something stands in a frame; the type stays what it is."""
    parts: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        parts = [(key, part) for key, part in value.items() if path or key != "type"]
    elif isinstance(value, list):
        parts = list(enumerate(value))
    if path or not parts:
        yield path
    for key, part in parts:
        yield from _paths(part, (*path, key))


def _put(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return {} if new is _GONE else new
    key, *rest = path
    copy = value.copy()
    if new is _GONE and not rest:
        del copy[key]
    else:
        copy[key] = _put(value[key], tuple(rest), new)
    return copy


def _call(tool: ev.ToolStarted | ev.ToolCompleted | ev.ToolFailed) -> tuple[str, str, str]:
    return tool.tool_call_id, tool.tool_name, str(tool.tool_input)


def _common(some: list[Seen], others: list[Seen]) -> int:
    same = 0
    for one, other in zip(some, others, strict=False):
        if one != other:
            break
        same += 1
    return same


def _is_of_the_end(seen: Seen) -> bool:
    if isinstance(seen.event, ev.RunStarted):
        # A one-shot turn that had said nothing yet.
        return True
    withdrawn = ev.FollowupReturned | ev.ApprovalResolved
    return isinstance(seen.event, ev.RunEnded | ev.ToolFailed | withdrawn)


def _with_more(message: Json) -> Json:
    more = {"no_such_field": {"type": "result", "is_error": True}, "noSuchField": [None]}
    inner = ("message", "event", "rate_limit_info", "compact_metadata", "request", "response")
    parts = {key: message[key] | more for key in inner if isinstance(message.get(key), dict)}
    return message | more | parts


def _reworded(message: Json, prose: str) -> Json:
    words: Json = {}
    if isinstance(message.get("result"), str):
        words["result"] = prose
    if "errors" in message:
        words["errors"] = [prose for _ in message["errors"]]
    if message.get("type") == "assistant":
        content = [
            block | {"text": prose} if block["type"] == "text" else block
            for block in message["message"]["content"]
        ]
        words["message"] = message["message"] | {"content": content}
    return message | words


def _beside(message: Json, value: Any) -> Json:
    """Counters and details, of which no turn depends."""
    names = ("usage", "modelUsage", "permission_denials", "duration_ms", "uuid", "fast_mode_state")
    is_end = message.get("type") == "result"
    return message | {name: value for name in names if is_end and name in message}


def _outcomes(seen: list[Seen]) -> list[tuple[Any, ...]]:
    ends = [event for event in events_of(seen) if isinstance(event, ev.RunEnded)]
    return [
        (
            end.status,
            end.stop_reason,
            end.usage,
            end.cost,
            end.error and (end.error.code, end.error.retryable, end.error.retry_at),
        )
        for end in ends
    ]


def _of_a_sub_agent(line: Line) -> Line:
    assert isinstance(line.msg, dict)
    text = [{"type": "text", "text": "said by somebody else"}]
    message = line.msg["message"] | {"content": text}
    more = {"message": message, "parent_tool_use_id": "toolu_other", "error": "rate_limit"}
    return replace(line, msg=line.msg | more)


def _texts(seen: list[Seen]) -> list[tuple[str, Any]]:
    return [
        (ev.type_of(event), event.text)
        for event in events_of(seen)
        if isinstance(event, ev.TextFinal | ev.TextDelta | ev.RunEnded)
    ]


def _unknown(seen: list[Seen]) -> set[str | None]:
    return {event.text for event in events_of(seen) if isinstance(event, ev.Unknown)}
