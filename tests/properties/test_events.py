"""Events come back from their encoding as they went in, also those we do not know."""

import contextlib
import types
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrun.model.event import (
    EVENT_TYPES,
    LIVE_ONLY,
    VERSION,
    Emitted,
    Event,
    EventId,
    Foreign,
    Note,
    StoredEvent,
    ToolStarted,
    get_type,
    make_event_id,
    make_place,
    parse_place,
)
from steadyrun.model.event_codec import decode_events, encode_events, join_encoded
from steadyrun.model.event_json import to_data, to_public
from steadyrun.model.ids import ProcessId, RunId
from steadyrun.model.secret import Scrubber, Secret
from steadyrun.model.usage import Cost
from steadyrun.testing.clock import START

SCRUBBER = Scrubber()

times = st.datetimes(timezones=st.just(UTC))
numbers = st.integers(-(2**53), 2**53)
floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | floats | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
costs = st.just(Cost()) | st.builds(Cost, floats, st.sampled_from(["known", "estimated"]))
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(),
    int: numbers,
    float: floats,
    bool: st.booleans(),
    bytes: st.binary(),
    datetime: times,
    types.NoneType: st.none(),
    Any: values,
    Cost: costs,
}


@cache
def strategy_for(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type; an unexpected type fails the tests."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if get_origin(kind) in {Union, types.UnionType}:
        return st.one_of(*[strategy_for(part) for part in get_args(kind)])
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        return st.lists(strategy_for(get_args(kind)[0]), max_size=3).map(tuple)
    fields = {field.name: strategy_for(field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


known: st.SearchStrategy[Event] = st.one_of(*[strategy_for(kind) for kind in EVENT_TYPES])
TAGS: set[str] = {str(kind.__struct_config__.tag) for kind in EVENT_TYPES}
later_types = st.text(min_size=1).filter(lambda name: name not in TAGS)


@st.composite
def foreigners(draw: st.DrawFn) -> Foreign:
    """An event of an unknown type, or of any type in a later version; its spelling is its own."""
    is_later = draw(st.booleans())
    version = draw(st.integers(VERSION + 1, 99)) if is_later else VERSION
    name = draw(st.sampled_from(sorted(TAGS)) | later_types) if is_later else draw(later_types)
    fields = draw(st.dictionaries(st.text().filter(lambda key: key != "type"), values, max_size=3))
    raw = msgspec.msgpack.encode({"type": name, **fields})
    return Foreign(name, version, raw)


places = st.integers(0, 2**53) | st.text(min_size=1)
parts = st.integers(0, 99)
emitted = st.builds(Emitted, places, parts, times, known | foreigners())


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: str(kind.__struct_config__.tag))
def test_every_event_type_is_decoded_unchanged(kind: type[Event]) -> None:
    @settings(max_examples=25)
    @given(st.lists(st.builds(Emitted, places, parts, times, strategy_for(kind)), max_size=2))
    def check(events: list[Emitted]) -> None:
        assert list(decode_events(encode_events(events, SCRUBBER))) == events

    check()


@settings(max_examples=50)
@given(st.lists(emitted, max_size=4))
def test_known_and_unknown_events_are_decoded_together(events: list[Emitted]) -> None:
    body = encode_events(events, SCRUBBER)

    back = decode_events(body)

    assert list(back) == events
    assert encode_events(back, SCRUBBER) == body


@settings(max_examples=50)
@given(st.lists(emitted, max_size=4))
def test_encoding_is_a_list_of_lists(events: list[Emitted]) -> None:
    body = encode_events(events, SCRUBBER)

    written = msgspec.msgpack.decode(body)
    assert [(place, n) for place, n, _, _, _ in written] == [(e.place, e.n) for e in events]
    assert [event["type"] for _, _, _, event, _ in written] == [get_type(e.event) for e in events]


@settings(max_examples=50)
@given(st.lists(st.lists(emitted, min_size=1, max_size=3), min_size=1, max_size=3))
def test_encoded_lists_can_be_joined(parts: list[list[Emitted]]) -> None:
    body = join_encoded([encode_events(part, SCRUBBER) for part in parts])

    assert list(decode_events(body)) == [event for part in parts for event in part]


@given(known)
def test_known_type_with_unknown_fields_is_kept_unchanged(event: Event) -> None:
    raw = msgspec.msgpack.encode({"type": "tool.started", "tool_call_id": 7})
    body = encode_events([Emitted(1, 0, START, event)], SCRUBBER)
    odd = body.replace(msgspec.msgpack.encode(event), raw)

    [back] = decode_events(odd)

    assert back.event == Foreign("tool.started", VERSION, raw)


@given(st.lists(emitted, min_size=1, max_size=3), st.data())
def test_damaged_encoding_raises_only_a_decode_error(
    events: list[Emitted], data: st.DataObject
) -> None:
    big = Emitted(7, 0, START, ToolStarted("t", "calc", 2**70))
    body = bytearray(encode_events([*events, big], SCRUBBER))
    start = data.draw(st.integers(0, len(body) - 1))
    damage = data.draw(st.binary(min_size=1, max_size=8))
    body[start : start + len(damage)] = damage

    with contextlib.suppress(msgspec.DecodeError):
        decode_events(bytes(body))


@given(st.integers(2**64, 2**200) | st.integers(-(2**200), -(2**63) - 1), st.lists(emitted))
def test_integers_of_any_size_are_encoded(number: int, others: list[Emitted]) -> None:
    event = ToolStarted("t", "calc", {"deep": [number, 1.5, "canary-1"]})
    events = [Emitted(7, 0, START, event), *others]

    assert list(decode_events(encode_events(events, SCRUBBER))) == events

    [back] = decode_events(encode_events(events[:1], Scrubber([Secret("canary-1")])))
    assert back.event == ToolStarted("t", "calc", {"deep": [number, 1.5, "[redacted]"]})


@given(known | foreigners(), times, st.none() | st.just("run_1"))
def test_public_form_has_exactly_these_keys(
    event: Event | Foreign, at: datetime, run: str | None
) -> None:
    which = RunId(run) if run else None
    stored = StoredEvent(7, 3, EventId("id"), at, "ada", which, "claude" if run else None, event)

    shown = to_public(stored)

    assert list(shown) == [
        "v", "cursor", "seq", "id", "type", "at", "agent", "run", "provider", "data",
    ]  # fmt: skip
    assert shown["v"] == (event.version if isinstance(event, Foreign) else VERSION)
    assert (shown["type"], shown["at"], shown["run"]) == (get_type(event), at, run)
    assert "type" not in shown["data"]
    msgspec.json.encode(shown)


@given(known)
def test_data_of_an_event_has_its_fields(event: Event) -> None:
    names = [field.name for field in msgspec.structs.fields(event)]

    assert sorted(to_data(event)) == sorted(names)


def test_event_types_are_unique_and_lower_case() -> None:
    assert len(TAGS) == len(EVENT_TYPES)
    assert all(tag == tag.lower() and " " not in tag for tag in TAGS)
    assert set(EVENT_TYPES) > LIVE_ONLY


processes = st.text(st.characters(codec="ascii", exclude_characters=":"), min_size=1).map(ProcessId)


@given(processes, st.sampled_from(["s", "x", "r"]), st.integers(0, 10**12))
def test_place_of_our_events_is_parsed_unchanged(
    process: ProcessId, source: Any, number: int
) -> None:
    place = make_place(source, number)

    assert parse_place(place) == (source, number)
    assert make_event_id(process, place, 0) == f"{process}:{source}{number}"


@given(processes, st.integers(0, 10**12), st.integers(0, 99))
def test_event_of_a_frame_is_named_by_its_end(process: ProcessId, offset: int, n: int) -> None:
    assert make_event_id(process, offset, n) == f"{process}:{offset}.{n}"


@given(st.none() | processes)
def test_event_of_a_run_is_named_by_the_run(process: ProcessId | None) -> None:
    assert parse_place("run_1:ended") is None
    assert make_event_id(process, "run_1:ended", 0) == "run_1:ended"


def test_empty_batch_is_an_empty_list() -> None:
    assert encode_events([], SCRUBBER) == b"\x90"
    assert list(decode_events(b"\x90")) == []
    assert to_data(Note("x")) == {"text": "x"}
