"""A run in progress is shown on stdout and stderr."""

import io
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.cli.output import live
from steadyrun.cli.output.format import measure_width
from steadyrun.cli.output.live import LiveText
from steadyrun.model import event as ev
from steadyrun.model.event import EVENT_TYPES, ErrorFact, Event, EventId, LiveEvent, StoredEvent
from steadyrun.model.ids import RunId
from steadyrun.model.usage import Cost, Usage

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def seen(event: Event, seconds: float = 0) -> StoredEvent | LiveEvent:
    at = AT + timedelta(seconds=seconds)
    if isinstance(event, ev.TextDelta):
        return LiveEvent(EventId("e"), at, "ada", RunId("run_1"), "claude", event)
    return StoredEvent(1, 1, EventId("e"), at, "ada", RunId("run_1"), "claude", event)


def shown(*events: Event, is_terminal: bool = False) -> tuple[str, str]:
    kind = Terminal if is_terminal else io.StringIO
    out, err = kind(), kind()
    output = LiveText(out, err)
    for second, event in enumerate(events):
        output.show(seen(event, second))
    return out.getvalue(), err.getvalue()


def text_of(*events: Event) -> str:
    return shown(*events)[0]


def test_text_is_printed_once_with_or_without_deltas() -> None:
    deltas = [ev.TextDelta("one "), ev.TextDelta("two")]

    assert text_of(ev.TextFinal("one two")) == "one two\n"
    assert text_of(*deltas, ev.TextFinal("one two")) == "one two\n"
    assert text_of(*deltas, ev.TextFinal("one two\n")) == "one two\n"
    assert text_of(*deltas, ev.TextFinal("one two"), *deltas, ev.TextFinal("one two")) == (
        "one two\none two\n"
    )


def test_text_that_is_missing_in_deltas_is_printed_with_the_whole_text() -> None:
    begun = ev.TextDelta("one ")

    assert text_of(begun, ev.TextFinal("one two")) == "one two\n"
    assert text_of(begun, ev.TextFinal("zero one two")) == "one \nzero one two\n"


def test_one_stream_of_deltas_may_belong_to_two_texts() -> None:
    deltas = [ev.TextDelta("one"), ev.TextDelta("\ntwo")]

    assert text_of(*deltas, ev.TextFinal("one"), ev.TextFinal("two")) == "one\ntwo\n"


def test_result_is_printed_only_if_its_text_was_not_printed_before() -> None:
    ended = ev.RunCompleted("completed", text="42")

    assert text_of(ev.TextFinal("42\n"), ended) == "42\n"
    assert text_of(ev.TextFinal("I think."), ended) == "I think.\n42\n"
    assert text_of(ev.TextDelta("4"), ev.TextDelta("2"), ended) == "42\n"


@given(st.lists(st.text(max_size=8), max_size=6))
def test_streamed_text_prints_the_same_as_the_whole_text(pieces: list[str]) -> None:
    whole = "".join(pieces)
    streamed = text_of(*map(ev.TextDelta, pieces), ev.TextFinal(whole))

    assert streamed.split() == text_of(ev.TextFinal(whole)).split()


@given(st.text())
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    tool = ev.ToolFailed("1", text, {"command": text}, error=text)
    for is_terminal in (False, True):
        out, err = shown(
            ev.TextFinal(text), ev.ToolStarted("1", text, text), tool, ev.Note(text),
            is_terminal=is_terminal,
        )  # fmt: skip
        kept = {"\n", "\t", "\r"} if is_terminal else {"\n", "\t"}
        assert not any(ord(char) < 32 and char not in kept for char in out + err)
        assert not set("\x7f\x9b\u202e\u2066") & set(out + err)


def test_tabs_and_line_breaks_of_a_text_are_kept() -> None:
    assert text_of(ev.TextFinal("all:\r\n\tmake\n")) == "all:\n\tmake\n"


def test_tool_call_prints_a_line_at_its_start_and_at_its_end() -> None:
    start = ev.ToolStarted("1", "Bash", {"command": "pytest -q"})
    _, err = shown(start, ev.ToolFailed("1", "Bash", error="exit 1"))

    began, ended = err.splitlines()
    assert began == "  > Running pytest -q"
    assert ended.split() == ["<", "Running", "pytest", "-q", "1.0s", "failed:", "exit", "1"]


def test_tool_call_completes_its_line_in_place_on_a_terminal() -> None:
    _, err = shown(
        ev.ToolStarted("1", "Read", {"path": "a"}), ev.ToolCompleted("1", "Read"), is_terminal=True
    )

    began, _, ended = err.partition("\r")
    assert began == "  > Reading a"
    assert ended.split() == [">", "Reading", "a", "1.0s"]


def test_overlapping_tool_calls_have_separate_lines_on_a_terminal() -> None:
    _, err = shown(
        ev.ToolStarted("1", "A"), ev.ToolStarted("2", "B"),
        ev.ToolCompleted("1", "A"), ev.ToolCompleted("2", "B"),
        is_terminal=True,
    )  # fmt: skip

    assert "\r" not in err
    assert [line.split()[:2] for line in err.splitlines()] == [
        [">", "A"], [">", "B"], ["<", "A"], ["<", "B"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["x" * 500, "字" * 300])
def test_line_never_wraps_on_a_terminal(name: str) -> None:
    _, err = shown(
        ev.ToolStarted("1", name), ev.ToolFailed("1", name, error=name), is_terminal=True
    )

    for line in err.rstrip("\n").split("\r"):
        assert measure_width(line) < 80


def test_text_and_progress_do_not_share_a_line_of_the_terminal() -> None:
    out, err = shown(ev.TextDelta("so "), ev.Note("x"), ev.TextDelta("far"), is_terminal=True)

    assert (out, err) == ("so \nfar", "  . x\n")


def test_text_in_a_file_is_not_changed_by_progress_on_a_terminal() -> None:
    out = io.StringIO()
    output = LiveText(out, Terminal())
    for event in (ev.TextDelta("so "), ev.Note("x"), ev.TextDelta("far")):
        output.show(seen(event))

    assert out.getvalue() == "so far"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "Tool"),
        ({}, "Tool"),
        ("plain", "Tool plain"),
        ({"timeout": 3, "command": "ls\n-l"}, "Tool ls -l"),
        ({"a": [1, 2]}, 'Tool {"a":[1,2]}'),
    ],
)
def test_tool_call_has_a_short_label(given: object, shown: str) -> None:
    assert live.summarize_tool(ev.ToolStarted("1", "Tool", given)) == shown


def test_last_line_has_duration_cost_and_tokens() -> None:
    ended = ev.RunCompleted(
        "completed",
        duration_ms=112_000,
        cost=Cost(0.31, "known"),
        usage=Usage(41_000, 2100, 36_000),
    )

    assert live.format_ending("run_31", ended) == [
        "* done in 1m52s · $0.31 · 41k in (36k cached) / 2.1k out · run_31"
    ]


def test_last_line_leaves_out_unknown_values() -> None:
    ended = ev.RunCompleted("completed", duration_ms=500)

    assert live.format_ending("run_1", ended) == ["* done in 500ms · run_1"]


def test_failed_run_prints_its_error_and_hint() -> None:
    error = ErrorFact("auth", "no key", "Log in.")
    diagnostic = ev.Diagnostic(1, "boom")
    ended = ev.RunFailed("failed", duration_ms=500, error=error, diagnostic=diagnostic)

    assert live.format_ending("run_1", ended) == [
        "* failed after 500ms · auth: no key · run_1", "  Log in.", "  stderr: boom",
    ]  # fmt: skip


def test_every_progress_formatter_belongs_to_an_event_type() -> None:
    assert set(live._PROGRESS_FORMATTERS) <= set(EVENT_TYPES)
