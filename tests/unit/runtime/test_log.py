"""Log events are lines of JSON, of a few kinds, without the texts of agents."""

import json
import logging
import math
from collections.abc import Iterator
from io import StringIO
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.model.secret import Scrubber, Secret
from steadyrun.model.token_shapes import REDACTED
from steadyrun.runtime.log import (
    LOG_EVENTS,
    LONGEST_FIELD,
    JsonLogFormatter,
    LogEventKind,
    LogEventName,
    log_bug,
    log_event,
    log_to_stderr,
)

SECRET = "correct-horse-battery"
LOG = logging.getLogger("steadyrun")
values = st.one_of(
    st.text(),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.binary(),
    st.lists(st.text()),
)


class Reader:
    """Reads what was told since it last looked."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._capsys.readouterr().err.splitlines()]

    def line(self) -> dict[str, Any]:
        [line] = self.lines()
        return line


@pytest.fixture
def reader(capsys: pytest.CaptureFixture[str]) -> Iterator[Reader]:
    with log_to_stderr(Scrubber([Secret(SECRET)])):
        yield Reader(capsys)


def formatted(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    record = LOG.makeRecord("steadyrun", logging.INFO, "f.py", 1, name, (), None)
    record.fields = fields
    return dict(json.loads(JsonLogFormatter(Scrubber([Secret(SECRET)])).format(record)))


@pytest.mark.parametrize("kind", LOG_EVENTS, ids=lambda kind: kind.name)
def test_every_log_event_is_one_json_line(kind: LogEventKind, reader: Reader) -> None:
    log_event(kind.name, agent="agt_1", count=3, seconds=0.5, is_kept=True, item=None)

    line = reader.line()
    assert list(line)[:3] == ["at", "level", "fact"]
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": kind.level,
        "fact": kind.name,
        "agent": "agt_1",
        "count": 3,
        "seconds": 0.5,
        "is_kept": True,
        "item": None,
    }


def test_every_log_event_has_a_meaning() -> None:
    names = [kind.name for kind in LOG_EVENTS]

    assert sorted(names) == sorted(get_args(LogEventName))
    assert all(kind.meaning for kind in LOG_EVENTS)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a" * LONGEST_FIELD + "b", "a" * LONGEST_FIELD),
        ("please delete it", None),
        ("two\nlines", None),
        ("\x1b[2J", None),
        ("\ud800", None),
        (["prompt"], None),
        (b"prompt", None),
        (10**30, None),
        (SECRET, REDACTED),
        ("sk-ant-api03-" + "x" * 40, REDACTED),
    ],
)
def test_forbidden_field_value_is_cut_and_named(value: Any, told: Any, reader: Reader) -> None:
    log_event("run.ended", run="run_1", reason=value)

    line = reader.line()
    assert (line["run"], line["reason"], line["cut"]) == ("run_1", told, ["reason"])


@pytest.mark.parametrize("shown", range(1, len(SECRET)))
def test_secret_across_the_limit_of_a_field_is_removed(shown: int, reader: Reader) -> None:
    before = "x/" * LONGEST_FIELD

    log_event("run.ended", run=before[: LONGEST_FIELD - shown] + SECRET + before)

    line = reader.line()
    assert SECRET[:6] not in line["run"]
    assert (len(line["run"]), line["cut"]) == (LONGEST_FIELD, ["run"])


def test_field_cannot_replace_a_standard_key(reader: Reader) -> None:
    log_event("run.ended", level="x", at="x", fact="x", cut=None)

    line = reader.line()
    assert (line["level"], line["fact"]) == ("info", "run.ended")
    assert line["at"] != "x"
    assert line["cut"] == ["level", "at", "fact", "cut"]


def test_bug_is_logged_with_its_type_and_place_without_its_message(reader: Reader) -> None:
    with pytest.raises(ValueError, match="prompt") as caught:
        int("the prompt was")
    log_bug(caught.value, agent="agt_1")

    line = reader.line()
    assert (line["fact"], line["level"], line["error"]) == ("bug", "error", "ValueError")
    assert line["where"].startswith("test_log.py:")
    assert (line["agent"], "prompt" in str(line)) == ("agt_1", False)


def test_error_that_was_not_raised_has_no_place(reader: Reader) -> None:
    log_bug(ValueError())

    assert reader.line()["where"] is None


def test_unknown_log_event_is_logged_as_a_bug_without_its_text(reader: Reader) -> None:
    LOG.warning("the prompt was %s", "x")
    log_event("no.such", agent="agt_1")  # type: ignore[arg-type]

    first, second = reader.lines()
    assert (first["fact"], first["error"]) == ("bug", "no_fact")
    assert (second["fact"], second["level"]) == ("bug", "error")
    assert first["where"].startswith("test_log:")
    assert "prompt" not in str(first)


def test_events_after_the_log_is_closed_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_stderr(Scrubber()):
        pass
    log_event("bug")

    assert capsys.readouterr().err == ""


def test_closed_stderr_does_not_break_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = StringIO()
    gone.close()
    monkeypatch.setattr("sys.stderr", gone)

    with log_to_stderr(Scrubber()):
        log_event("daemon.started", pid=1)


@given(st.dictionaries(st.text(), values))
def test_any_fields_are_logged_as_one_json_line(fields: dict[str, Any]) -> None:
    line = formatted("run.ended", fields)

    assert line["fact"] == "run.ended"
    for name, value in fields.items():
        is_logged = name in line and line[name] == value and name not in line.get("cut", [])
        is_nan = isinstance(value, float) and not math.isfinite(value)
        assert is_logged or is_nan or name in line["cut"]
        if isinstance(value, str) and is_logged:
            assert value == "" or value.split() == [value]
