"""Does the page about events list all of them, as they are?"""

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


def test_the_tables_are_what_the_code_says() -> None:
    is_current = renewed(TEXT) == TEXT

    assert is_current, "run: .venv/bin/python scripts/events.py"


def test_renewing_the_page_changes_the_tables_only() -> None:
    assert (TEXT.count(START), TEXT.count(END)) == (1, 1)
    page = f"before\n{START}| old |\n{END}after\n"

    assert renewed(page) == f"before\n{START}{tables()}{END}after\n"


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: str(kind.__struct_config__.tag))
def test_every_event_has_a_row_with_its_fields_and_its_meaning(kind: type[Any]) -> None:
    row = ROWS[str(kind.__struct_config__.tag)]
    twin = re.search(r"\| as `(.+?)` \|", row)

    told = ROWS[twin[1]] if twin else row
    missing = [field.name for field in fields(kind) if f"`{field.name}` " not in told]

    assert missing == []
    assert meaning(kind)
    assert row.endswith(f"| {meaning(kind)} |")
    assert ("| live only |" in row) == (kind in LIVE_ONLY)


def test_a_row_says_of_what_kind_a_field_is() -> None:
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


def test_what_is_kept_whole_is_told_by_the_first_words_of_its_type() -> None:
    assert meaning(Unknown).startswith("A frame we do not know, kept whole")


def test_the_page_names_every_field_around_an_event() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    shown = to_public(LiveEvent(EventId("x"), at, "agt_1", None, None, Note("x")))

    assert [name for name in shown if f"`{name}`" not in TEXT.split(START)[0]] == []


def test_the_page_names_every_phase_in_which_the_record_can_fail() -> None:
    [phase] = [field for field in fields(RecordFailed) if field.name == "phase"]

    assert phase.type == RecordPhase
    assert set(get_args(RecordPhase)) == {"start", "append", "settle"}
    assert [name for name in get_args(RecordPhase) if f"(`{name}`)" not in TEXT] == []
