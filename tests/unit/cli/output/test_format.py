"""Values, runs and events are formatted for people."""

from datetime import UTC, datetime, timedelta

import pytest

from steadyrun.cli.output.format import (
    format_count,
    format_duration,
    format_event,
    format_money,
    format_run_table,
    format_tokens,
)
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact, Event, EventId, Foreign, StoredEvent
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.run import Run
from steadyrun.model.usage import Cost, Usage

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def stored(event: Event | Foreign) -> StoredEvent:
    return StoredEvent(1, 1, EventId("e"), AT, "ada", RunId("run_1"), "claude", event)


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(None, "-"), (0, "0ms"), (999, "999ms"), (1000, "1.0s"), (59_900, "59.9s"),
     (60_000, "1m00s"), (3_725_000, "62m05s")],
)  # fmt: skip
def test_format_duration_uses_the_unit_that_fits(milliseconds: int | None, shown: str) -> None:
    assert format_duration(milliseconds) == shown


def test_format_tokens_leaves_out_unknown_counts() -> None:
    assert format_tokens(Usage()) == "unknown"
    assert format_tokens(Usage(10, 2, 8)) == "10 in (8 cached) / 2 out"
    assert format_tokens(Usage(None, 2)) == "2 out"
    assert format_tokens(Usage(41_000, 2_100), is_exact=False) == "41k in / 2.1k out"


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (ev.TextFinal("two\nlines"), "two lines"),
        (ev.ToolStarted("1", "Bash", {"command": "ls"}), 'Bash {"command":"ls"}'),
        (ev.ToolCompleted("1", "Bash", None, "out"), "Bash out"),
        (ev.RunStarted("claude", "opus"), "claude opus"),
        (ev.GateOpened("codex"), '{"provider":"codex"}'),
        (
            ev.RunFailed("failed", error=ErrorFact("auth", "no key"), duration_ms=5),
            "auth: no key · 5ms · cost unknown · tokens unknown",
        ),
        (Foreign("later.thing", 2, b"\x82\xa4type\xablater.thing\xa1x\x01"), '{"x":1}'),
    ],
)
def test_format_event_returns_one_line(event: Event | Foreign, shown: str) -> None:
    line = format_event(stored(event))

    assert line.startswith(f"03:04:05  {ev.get_type(event)}")
    assert line.endswith(shown)
    assert "\n" not in line


def test_format_event_cuts_a_long_text() -> None:
    line = format_event(stored(ev.TextFinal("x" * 10_000)))

    assert len(line) < 200
    assert line.endswith("…")


def test_run_table_shows_a_dash_for_a_direct_run() -> None:
    run = Run(RunId("run_1"), AgentId("agt_1"), None, "shell", AT, ended_at=AT + timedelta(0, 1))

    [_, alone] = format_run_table([(run, "run_1")])
    [_, named] = format_run_table([(run, "ada")])

    assert alone.split()[:4] == ["run_1", "starting", "-", "shell"]
    assert named.split()[2] == "ada"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (9949, "9.9k"), (9950, "10k"), (41_499, "41k"),
     (999_499, "999k"), (999_500, "1.0M"), (12_000_000, "12M")],
)  # fmt: skip
def test_format_count_needs_four_characters_at_most(number: int, shown: str) -> None:
    assert format_count(number) == shown


@pytest.mark.parametrize(
    ("cost", "shown"),
    [(Cost(), "unknown"), (Cost(0.0, "known"), "$0.00"), (Cost(0.0031, "estimated"), "~$0.0031"),
     (Cost(12.345, "known"), "$12.35")],
)  # fmt: skip
def test_money_has_two_digits_or_four_below_one_cent(cost: Cost, shown: str) -> None:
    assert format_money(cost) == shown
