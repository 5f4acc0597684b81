"""Checks that the page about events lists every event with its fields."""

import re
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import pytest
from msgspec.structs import fields

from scripts.events import END, PAGE, START, meaning, renewed, stored_or_live, tables, words_for
from steadyrun.model.event import (
    EVENT_TYPES,
    LIVE_ONLY,
    EventId,
    LiveEvent,
    Note,
    RecordFailed,
    RecordPhase,
    Unknown,
)
from steadyrun.model.event_json import to_public

TEXT = PAGE.read_text(encoding="utf-8")
ROWS = {row.split("`")[1]: row for row in tables().splitlines() if row.startswith("| `")}


def test_tables_match_the_code() -> None:
    is_current = renewed(TEXT) == TEXT

    assert is_current, "run: .venv/bin/python scripts/events.py"


def test_writing_the_page_changes_only_the_tables() -> None:
    assert (TEXT.count(START), TEXT.count(END)) == (1, 1)
    page = f"before\n{START}| old |\n{END}after\n"

    assert renewed(page) == f"before\n{START}{tables()}{END}after\n"


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: str(kind.__struct_config__.tag))
def test_every_event_has_a_row_with_its_fields_and_its_meaning(kind: type[Any]) -> None:
    row = ROWS[str(kind.__struct_config__.tag)]
    twin = re.search(r"\| as `(.+?)` \|", row)

    shown = ROWS[twin[1]] if twin else row
    missing = [field.name for field in fields(kind) if f"`{field.name}` " not in shown]

    assert missing == []
    assert meaning(kind)
    assert row.endswith(f"| {meaning(kind)} |")
    assert ("| live only |" in row) == (kind in LIVE_ONLY)


def test_row_shows_the_type_of_each_field() -> None:
    assert ROWS["run.started"].split(" | ")[2] == (
        "`provider` string, `model` string or null, `item` string or null"
    )
    assert ROWS["run.failed"].split(" | ")[2] == "as `run.completed`"
    assert words_for(tuple[int, ...]) == "list of integer"
    assert words_for(Literal["a", "b"] | None) == '`"a"` or `"b"` or null'
    assert "`limits` list of `LimitWindow`" in ROWS["stats.updated"]
    assert "`resets_at` time or null" in ROWS["LimitWindow"]
    assert stored_or_live(Note) == "yes"
    with pytest.raises(KeyError):
        words_for(complex)


def test_meaning_of_an_unknown_event_is_its_docstring() -> None:
    assert meaning(Unknown).startswith("A frame of an unknown type, kept whole")


def test_page_names_every_field_of_the_envelope() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    shown = to_public(LiveEvent(EventId("x"), at, "agt_1", None, None, Note("x")))

    assert [name for name in shown if f"`{name}`" not in TEXT.split(START)[0]] == []


def test_page_names_every_phase_of_a_failed_record() -> None:
    [phase] = [field for field in fields(RecordFailed) if field.name == "phase"]

    assert phase.type == RecordPhase
    assert set(get_args(RecordPhase)) == {"start", "append", "settle"}
    assert [name for name in get_args(RecordPhase) if f"(`{name}`)" not in TEXT] == []
