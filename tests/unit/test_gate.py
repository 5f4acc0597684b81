"""Until when a provider is left alone after a rate limit."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.model.event import ErrorFact
from steadyrun.model.gate import Gate
from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.model.run import Run, RunStatus
from steadyrun.runtime.gate import closed_by, next_opening

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
IN_15_MINUTES = NOW + timedelta(minutes=15)
A_WEEK = timedelta(days=7)
A_MOMENT = timedelta(microseconds=1)


def ended(status: RunStatus, retry_at: datetime | None = None) -> Run:
    error = ErrorFact("rate_limited", "too much", retryable=True, retry_at=retry_at)
    return Run(RunId("run_1"), AgentId("agt_1"), ItemId("itm_1"), "codex", NOW, status, error=error)


def until(stated: datetime | None) -> datetime | None:
    gate = closed_by(ended("rate_limited", stated), NOW)
    assert gate is not None
    assert (gate.provider, gate.account) == ("codex", "")
    return gate.closed_until


@pytest.mark.parametrize("ahead", [A_MOMENT, timedelta(seconds=2), timedelta(hours=5), A_WEEK])
def test_a_stated_time_counts(ahead: timedelta) -> None:
    assert until(NOW + ahead) == NOW + ahead


@pytest.mark.parametrize(
    "stated", [None, NOW, NOW - A_MOMENT, NOW + A_WEEK + A_MOMENT, datetime.max.replace(tzinfo=UTC)]
)
def test_a_time_that_cannot_be_is_15_minutes(stated: datetime | None) -> None:
    assert until(stated) == IN_15_MINUTES


def test_a_time_that_came_while_nobody_was_there_closes_nothing() -> None:
    """The run was told of its limit, and whoever hears of that comes back when it is over."""
    run = ended("rate_limited", NOW + timedelta(seconds=1))

    assert closed_by(run, NOW + timedelta(seconds=1)) is None
    assert closed_by(run, NOW + timedelta(hours=3)) is None


def test_a_run_without_an_error_is_15_minutes() -> None:
    bare = Run(RunId("run_1"), AgentId("agt_1"), None, "codex", NOW, "rate_limited")

    gate = closed_by(bare, NOW)

    assert gate == Gate(
        "codex",
        closed_until=IN_15_MINUTES,
        reason="run_1 was rate limited, until no known time",
    )


def test_the_reason_names_the_run_and_nothing_that_the_provider_said() -> None:
    gate = closed_by(ended("rate_limited", NOW + A_WEEK), NOW)

    assert gate is not None
    assert gate.reason == "run_1 was rate limited"


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "timed_out", "running"])
def test_no_other_run_closes_a_gate(status: RunStatus) -> None:
    assert closed_by(ended(status, NOW + A_WEEK), NOW) is None


@given(st.lists(st.none() | st.integers(-3, 3)))
def test_the_next_opening_is_the_first_that_is_still_to_come(seconds: list[int | None]) -> None:
    gates = [
        Gate("p", str(n), None if each is None else NOW + timedelta(seconds=each))
        for n, each in enumerate(seconds)
    ]
    ahead = [each for each in seconds if each is not None and each > 0]

    expected = NOW + timedelta(seconds=min(ahead)) if ahead else None

    assert next_opening(gates, NOW) == expected
    if expected:
        assert any(not gate.is_open(NOW) and gate.is_open(expected) for gate in gates)
