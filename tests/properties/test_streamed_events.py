"""An event that is received over the socket equals the published event."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrun.cli.event_stream import decode_event
from steadyrun.model.event import EventId, LiveEvent, StoredEvent
from steadyrun.model.event_json import to_public
from steadyrun.model.ids import RunId
from tests.properties.test_events import foreigners, known, times

names = st.none() | st.text()
ids = st.text().map(EventId)
runs = st.none() | st.text().map(RunId)
cursors = st.integers(0, 2**53)
stored = st.builds(
    StoredEvent, cursors, st.none() | cursors, ids, times, names, runs, names, known
)  # fmt: skip
live = st.builds(LiveEvent, ids, times, st.text(), runs, names, known)
unknown = st.builds(StoredEvent, cursors, cursors, ids, times, names, runs, names, foreigners())


@settings(max_examples=200)
@given(stored | live)
def test_known_event_is_decoded_unchanged(told: StoredEvent | LiveEvent) -> None:
    heard = decode_event(msgspec.Raw(msgspec.json.encode(to_public(told))))

    assert heard == told


@settings(max_examples=50)
@given(unknown)
def test_unknown_event_is_shown_unchanged(told: StoredEvent) -> None:
    line = msgspec.json.encode(to_public(told))

    heard = decode_event(msgspec.Raw(line))

    assert json.loads(msgspec.json.encode(to_public(heard))) == json.loads(line)
