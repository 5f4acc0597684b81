"""Deltas contain no secret, however they are cut, and are complete otherwise."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steadyrun.model.event import Event, LiveEvent, OutputRaw, TextDelta, ThinkingDelta
from steadyrun.model.ids import RunId
from steadyrun.model.secret import Scrubber, Secret
from steadyrun.model.token_shapes import REDACTED
from steadyrun.runtime.events.scrubber import LiveScrubber

# One begins as it ends, one begins as another ends, and one has another in it.
SECRETS = ("canary-7f3a-c", "c4-token-7f3a", "x-c4-token-7f3a-x")
TOKEN = "ghp_" + "a1B2" * 10
AT = datetime(2026, 1, 1, tzinfo=UTC)


def _live(event: Event) -> LiveEvent:
    return LiveEvent("prc:1.0", AT, "agent", RunId("run"), "scripted", event)  # type: ignore[arg-type]


def _scrubber() -> LiveScrubber:
    return LiveScrubber(Scrubber([Secret(each) for each in SECRETS]))


def _shown(pieces: list[str]) -> str:
    """The text that a reader of all pieces sees."""
    scrubber = _scrubber()
    passed = [each for piece in pieces for each in scrubber.scrub(_live(TextDelta(piece)))]
    passed += scrubber.flush()
    return "".join(_text(each) for each in passed)


def _text(live: LiveEvent) -> str:
    assert isinstance(live.event, TextDelta | ThinkingDelta | OutputRaw)
    return live.event.text


@st.composite
def _cut(draw: st.DrawFn, parts: st.SearchStrategy[str]) -> list[str]:
    """A text of such parts, in pieces."""
    text = "".join(draw(st.lists(parts, max_size=8)))
    cuts = draw(st.sets(st.integers(0, len(text)))) | {0, len(text)}
    return [text[start:end] for start, end in pairwise(sorted(cuts))]


_LETTERS = st.text("canry-7f34tokex \n", max_size=6)


@given(_cut(_LETTERS | st.sampled_from([*SECRETS, TOKEN])))
@example(["canary-7f3a-c"])
@example(["canary-7f3a-", "c", "4-token-7f3a"])
@example(["x-c4-token-7f3a"])
@example([TOKEN[:30], TOKEN[30:], " "])
def test_secret_in_any_pieces_is_not_shown(pieces: list[str]) -> None:
    shown = _shown(pieces)

    assert not [secret for secret in (*SECRETS, TOKEN) if secret in shown]


@given(
    _cut(st.text(max_size=6) | st.sampled_from(["canary", "c4-tok", "ghp_", "sk-", "-----BEGIN"]))
)
def test_text_without_a_secret_is_unchanged(pieces: list[str]) -> None:
    text = "".join(pieces)
    if Scrubber([Secret(each) for each in SECRETS]).clean(text) == text:
        assert _shown(pieces) == text


@pytest.mark.parametrize("secret", [*SECRETS, TOKEN])
def test_secret_is_replaced_once(secret: str) -> None:
    assert _shown(["it is ", *secret, " ."]) == f"it is {REDACTED} ."


def test_plain_text_is_not_held_back() -> None:
    [passed] = _scrubber().scrub(_live(TextDelta("nothing odd.")))

    assert _text(passed) == "nothing odd."


def test_possible_start_of_a_secret_waits_for_the_next_piece() -> None:
    scrubber = _scrubber()

    assert [_text(each) for each in scrubber.scrub(_live(TextDelta("a can")))] == ["a "]
    assert [_text(each) for each in scrubber.scrub(_live(TextDelta("dle.")))] == ["candle."]
    assert scrubber.flush() == []


def test_each_stream_is_scrubbed_separately() -> None:
    scrubber = _scrubber()
    for event in (TextDelta("can"), OutputRaw("stderr", "can"), OutputRaw("stdout", "can")):
        assert scrubber.scrub(_live(event)) == []

    passed = scrubber.scrub(_live(OutputRaw("stderr", "ary-7f3a-c!")))

    assert [_text(each) for each in passed] == [f"{REDACTED}!"]
    assert [each.event for each in scrubber.flush()] == [TextDelta("can")]


def test_text_flushes_pending_thinking() -> None:
    scrubber = _scrubber()
    assert scrubber.scrub(_live(ThinkingDelta("yes, can"))) == [_live(ThinkingDelta("yes, "))]

    passed = scrubber.scrub(_live(TextDelta("It is.")))

    assert [each.event for each in passed] == [ThinkingDelta("can"), TextDelta("It is.")]


def test_flush_for_a_stored_event_keeps_raw_output() -> None:
    scrubber = _scrubber()
    assert scrubber.scrub(_live(OutputRaw("stderr", "canary-"))) == []

    assert scrubber.flush() == []

    [passed] = scrubber.scrub(_live(OutputRaw("stderr", "7f3a-c\n")))
    assert _text(passed) == f"{REDACTED}\n"


def test_last_flush_keeps_nothing() -> None:
    scrubber = _scrubber()
    scrubber.scrub(_live(OutputRaw("stdout", "can")))

    assert [_text(each) for each in scrubber.flush(is_last=True)] == ["can"]
    assert scrubber.flush(is_last=True) == []
