"""Whatever is said of a run, in whatever order, its row and its events stay true."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.errors import ChangeRefused
from steadyrun.model.event import Diagnostic, Emitted, ErrorFact, RunStarted, get_type
from steadyrun.model.ids import AgentId, ItemId, ProcessId, RunId
from steadyrun.model.json_object import merge_objects
from steadyrun.model.run import (
    STDERR_EXCERPT_CHARS,
    TERMINAL,
    Created,
    EndStatus,
    Finished,
    Launched,
    LostReason,
    Metadata,
    Orphaned,
    Run,
    RunChange,
    StopReason,
    Touched,
    add_counts,
    build_status_events,
    step,
)
from steadyrun.model.usage import Cost, Usage

START = datetime(2026, 1, 1, tzinfo=UTC)
times = st.integers(-999, 999).map(lambda n: START + timedelta(milliseconds=n))
texts = st.sampled_from(["", "words", "ß"])
usages = st.builds(Usage, st.none() | st.integers(0, 9))
costs = st.sampled_from([Cost(), Cost(0.5, "known"), Cost(2.0, "estimated")])
TABLES: list[Metadata] = [{}, {"a": 1}, {"a": {"b": 1}}, {"a": {"b": {"c": 1}}}, {"a": {"c": [2]}}]
tables = st.sampled_from([*TABLES, {"b": None, "c": {}}])
leaves = st.none() | st.integers(0, 2)
deep: st.SearchStrategy[Metadata] = st.dictionaries(
    st.sampled_from("ab"),
    leaves | st.dictionaries(st.sampled_from("cd"), leaves | st.just({"e": 1}), max_size=2),
    max_size=2,
)
processes = st.none() | st.sampled_from([ProcessId("prc_1"), ProcessId("prc_2")])
tools = st.none() | st.sampled_from([(), ("Read",)])
diagnostics = st.builds(
    Diagnostic,
    st.none() | st.integers(0, 255),
    st.sampled_from([0, 1, 200, 201, 999]).map(lambda n: f"{n}" * n),
)

created = st.builds(
    Created,
    st.just(RunId("run_1")),
    st.just(AgentId("agt_1")),
    st.none() | st.just(ItemId("itm_1")),
    st.sampled_from(["claude", "codex"]),
    times,
    st.none() | texts,
    tools,
    tables,
)
running: list[st.SearchStrategy[RunChange]] = [
    created,
    st.builds(Launched, times, processes, st.none() | times, tables),
    st.builds(Touched, times, st.none() | usages, st.none() | costs, st.none() | texts),
]
ending: list[st.SearchStrategy[RunChange]] = [
    st.builds(
        Finished,
        times,
        st.sampled_from(get_args(EndStatus)),
        st.none() | st.sampled_from(get_args(StopReason)),
        text=st.none() | texts,
        usage=st.none() | usages,
        cost=st.none() | costs,
        resume_token=st.none() | texts,
        exit_code=st.none() | st.integers(0, 255),
        error=st.none() | st.builds(ErrorFact, texts, texts),
        diagnostic=st.none() | diagnostics,
        active_at=st.none() | times,
    ),
    st.builds(Orphaned, times, st.sampled_from(get_args(LostReason))),
]
# Ends are rarer than the rest, or most sequences would be over at once.
changes: st.SearchStrategy[RunChange] = st.one_of(*running, *running, *ending)
histories = st.builds(lambda first, rest: [first, *rest], created, st.lists(changes, max_size=8))
ORDER = {"starting": 0, "running": 1, **dict.fromkeys(TERMINAL, 2)}


def rows_of(history: list[RunChange]) -> list[Run]:
    rows: list[Run] = []
    for change in history:
        rows.append(step(rows[-1] if rows else None, change))
    return rows


def events_of(rows: list[Run]) -> list[Emitted]:
    before = [None, *rows[:-1]]
    return [e for old, new in zip(before, rows, strict=True) for e in build_status_events(old, new)]


def test_strategies_cover_every_change() -> None:
    assert len([*running, *ending]) == len(get_args(RunChange))


@given(histories)
def test_status_only_moves_forward(history: list[RunChange]) -> None:
    ranks = [ORDER[row.status] for row in rows_of(history)]

    assert ranks == sorted(ranks)


@given(histories)
def test_constant_fields_of_a_run_do_not_change(history: list[RunChange]) -> None:
    rows = rows_of(history)

    for old, new in pairwise(rows):
        same = ("id", "agent", "item", "provider", "created_at", "model", "allowed_tools")
        assert all(getattr(old, name) == getattr(new, name) for name in same)
        assert old.started_at in {None, new.started_at}
        assert old.process is None or new.process is not None


@given(histories)
def test_change_of_a_terminal_run_returns_the_same_object(history: list[RunChange]) -> None:
    rows = rows_of(history)

    for old, new in pairwise(rows):
        if old.is_terminal:
            assert new is old


@given(histories)
def test_activity_time_comes_only_from_a_change_that_has_it(
    history: list[RunChange],
) -> None:
    rows = rows_of(history)

    for change, old, new in zip(history[1:], rows, rows[1:], strict=False):
        carried = getattr(change, "active_at", None)
        expected = old.active_at if old.is_terminal or carried is None else carried
        assert new.active_at == expected


@given(histories)
def test_metadata_is_merged_table_by_table(history: list[RunChange]) -> None:
    rows = rows_of(history)
    expected: Metadata = {}

    for change, row in zip(history, rows, strict=True):
        if not row.is_terminal:
            expected = merge_objects(expected, getattr(change, "metadata", {}))
        assert row.metadata == expected


@given(deep, deep)
def test_merge_keeps_old_keys_and_prefers_new_values(old: Metadata, new: Metadata) -> None:
    both = merge_objects(old, new)

    assert set(both) == {*old, *new}
    for key in both:
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            assert both[key] == merge_objects(old[key], new[key])
        else:
            assert both[key] == (new[key] if key in new else old[key])


@given(deep, deep, deep)
def test_merge_does_not_depend_on_the_grouping(a: Metadata, b: Metadata, c: Metadata) -> None:
    # A plain value between two tables cuts the first off; without one, grouping is free.
    if not any(_clashes(x, y) for x, y in ((a, b), (b, c), (a, c))):
        assert merge_objects(merge_objects(a, b), c) == merge_objects(a, merge_objects(b, c))


def _clashes(a: Any, b: Any) -> bool:
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return isinstance(a, dict) != isinstance(b, dict)
    return any(_clashes(a[key], b[key]) for key in a.keys() & b.keys())


@given(st.one_of(*running[1:], *ending))
def test_only_creation_is_possible_without_a_run(change: RunChange) -> None:
    with pytest.raises(ChangeRefused) as refusal:
        step(None, change)

    assert refusal.value.change == str(change.__struct_config__.tag)


@given(histories)
def test_run_has_at_most_one_start_and_one_end_event(history: list[RunChange]) -> None:
    rows = rows_of([*history, Finished(datetime(2028, 1, 1, tzinfo=UTC), "cancelled")])

    events = events_of(rows)

    starts = [e for e in events if isinstance(e.event, RunStarted)]
    assert len(starts) == (rows[-1].started_at is not None)
    assert [get_type(e.event) for e in events[len(starts) :]] == [f"run.{rows[-1].status}"]
    assert len({e.place for e in events}) == len(events)


@given(histories)
def test_end_event_equals_the_row(history: list[RunChange]) -> None:
    rows = rows_of([*history, Finished(datetime(2028, 1, 1, tzinfo=UTC), "cancelled")])
    row, ended = rows[-1], events_of(rows)[-1]

    shared = (
        "status", "stop_reason", "text", "usage", "cost", "resume_token", "exit_code", "error",
        "diagnostic", "duration_ms",
    )  # fmt: skip
    assert ended.at == row.ended_at
    assert all(getattr(ended.event, name) == getattr(row, name) for name in shared)
    assert row.duration_ms is not None
    assert row.duration_ms >= 0


@given(histories)
def test_only_a_failed_run_has_a_diagnostic(history: list[RunChange]) -> None:
    row = rows_of(history)[-1]

    if row.diagnostic is not None:
        assert row.status == "failed"
        assert len(row.diagnostic.stderr_excerpt) <= STDERR_EXCERPT_CHARS


@given(created, diagnostics)
def test_diagnostic_keeps_the_end_of_stderr(first: Created, diagnostic: Diagnostic) -> None:
    finished = Finished(first.at, "failed", diagnostic=diagnostic)

    row = step(step(None, first), finished)

    assert row.diagnostic is not None
    assert diagnostic.stderr_excerpt.endswith(row.diagnostic.stderr_excerpt)
    assert row.diagnostic.exit_code == diagnostic.exit_code


@given(histories)
def test_same_history_gives_the_same_rows_and_events(history: list[RunChange]) -> None:
    rows = rows_of(history)

    assert rows_of(history) == rows
    assert events_of(rows_of(history)) == events_of(rows)


@given(histories, st.integers(0, 9), st.integers(0, 9))
def test_add_counts_changes_only_the_counters(
    history: list[RunChange], events: int, n: int
) -> None:
    row = rows_of(history)[-1]

    counted_row = add_counts(row, events, n)

    assert (counted_row.events, counted_row.tools) == (row.events + events, row.tools + n)
    assert add_counts(counted_row, -events, -n) == row


def test_duration_of_a_run_that_never_started_begins_at_its_creation() -> None:
    at = START
    first = Created(RunId("run_1"), AgentId("agt_1"), None, "claude", at)

    row = step(step(None, first), Orphaned(at.replace(second=2), "keeper_lost"))

    assert (row.status, row.stop_reason, row.duration_ms) == ("failed", "keeper_lost", 2000)
    assert row.error is not None
    assert row.error.retryable
