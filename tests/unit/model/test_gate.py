"""Tests the rules of a gate one by one: when it closes, and how it opens again."""

from datetime import UTC, datetime, timedelta

import pytest

from steadyrun.model.event import ErrorFact, GateClosed, GateOpened, GateSuspect
from steadyrun.model.gate import (
    Booted,
    Closed,
    Dispatched,
    Gate,
    GateReport,
    GateRules,
    Limited,
    Opened,
    ProviderAnswered,
    RunInconclusive,
    Suspected,
    build_gate_event,
    can_dispatch,
    compute_gate_state,
    find_awaited_gate,
    find_closed_gate,
    find_next_change,
    find_opening_time,
    find_unavailable_providers,
    report_run_end,
    step_gate,
)
from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.model.run import Run, RunStatus
from steadyrun.model.usage import Usage

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE, HOUR, A_WEEK = timedelta(minutes=1), timedelta(hours=1), timedelta(days=7)
A_MOMENT = timedelta(microseconds=1)
RULES = GateRules()
FIRST, SECOND = RunId("run_1"), RunId("run_2")


def after(*news: tuple[timedelta, GateReport], rules: GateRules = RULES) -> Gate:
    """A gate that heard of all that, each so long after noon."""
    gate = Gate("codex")
    for since, each in news:
        gate = step_gate(gate, each, NOW + since, rules)
    return gate


def limited(
    run: RunId = FIRST, began: timedelta = -MINUTE, stated: timedelta | None = None
) -> Limited:
    return Limited(run, NOW + began, None if stated is None else NOW + stated, f"{run} was limited")


ZERO = timedelta()
CLOSED = (ZERO, limited())
QUARTER = 15 * MINUTE


@pytest.mark.parametrize("ahead", [A_MOMENT, timedelta(seconds=2), timedelta(hours=5), A_WEEK])
def test_a_stated_time_counts(ahead: timedelta) -> None:
    gate = after((ZERO, limited(stated=ahead)))

    assert (gate.until, gate.is_stated, gate.reason) == (NOW + ahead, True, "run_1 was limited")


@pytest.mark.parametrize("stated", [None, -HOUR, A_WEEK + A_MOMENT])
def test_a_time_that_cannot_be_is_a_quarter_of_an_hour(stated: timedelta | None) -> None:
    gate = after((ZERO, limited(stated=stated)))

    assert (gate.until, gate.is_stated, gate.level) == (NOW + QUARTER, False, 0)
    assert gate.reason == "run_1 was limited, until no known time"


def test_stated_time_in_the_past_does_not_close_the_gate() -> None:
    gate = after((HOUR, limited(stated=MINUTE)))

    assert compute_gate_state(gate, NOW + HOUR) == "open"
    assert (gate.hit_at, gate.run) == (NOW + HOUR, FIRST)


def test_it_is_shut_until_its_time_and_then_takes_one() -> None:
    gate = after(CLOSED)
    assert not can_dispatch(gate, NOW + QUARTER - A_MOMENT)
    assert can_dispatch(gate, NOW + QUARTER)

    probing = step_gate(gate, Dispatched(SECOND), NOW + QUARTER, RULES)

    assert compute_gate_state(probing, NOW + QUARTER) == "probing"
    assert not can_dispatch(probing, NOW + A_WEEK)


def test_stragglers_are_the_same_refusal() -> None:
    gate = after(CLOSED, (MINUTE, limited(SECOND)), (QUARTER, limited(SECOND)))

    assert (gate.level, gate.until, gate.since) == (0, NOW + QUARTER, NOW)
    assert gate.run == SECOND


def test_a_straggler_may_know_better_how_long_it_lasts() -> None:
    guessed = after(CLOSED, (MINUTE, limited(SECOND, stated=2 * MINUTE)))
    longer = after((ZERO, limited(stated=HOUR)), (MINUTE, limited(SECOND, stated=2 * HOUR)))
    shorter = after((ZERO, limited(stated=HOUR)), (MINUTE, limited(SECOND, stated=2 * MINUTE)))

    assert guessed.until == NOW + 2 * MINUTE
    assert longer.until == NOW + 2 * HOUR
    assert shorter.until == NOW + HOUR


def test_a_straggler_that_ends_well_opens_nothing() -> None:
    was = after(CLOSED)

    for late in (MINUTE, QUARTER, HOUR):
        assert step_gate(was, ProviderAnswered(SECOND, NOW - MINUTE), NOW + late, RULES) == was


def test_answered_run_opens_a_ready_gate() -> None:
    gate = after(
        CLOSED, (QUARTER, Dispatched(SECOND)), (HOUR, ProviderAnswered(SECOND, NOW + QUARTER))
    )

    assert gate == Gate("codex", hit_at=NOW, run=FIRST)


def test_each_probe_that_is_refused_doubles_the_time_up_to_an_hour() -> None:
    gate, now, waits = after(CLOSED), NOW, []
    for _ in range(4):
        assert gate.until
        now = gate.until
        gate = step_gate(gate, Dispatched(SECOND), now, RULES)
        gate = step_gate(gate, Limited(SECOND, now, None, "limit"), now + MINUTE, RULES)
        assert gate.until
        waits.append(gate.until - now - MINUTE)

    assert waits == [30 * MINUTE, HOUR, HOUR, HOUR]
    assert (gate.level, gate.probe) == (4, None)


def test_after_so_many_tries_a_person_is_asked() -> None:
    rules = GateRules(attempts=2)
    gate, now = after(CLOSED, rules=rules), NOW + QUARTER
    for _ in range(2):
        gate = step_gate(gate, Limited(SECOND, now, None, "limit"), now, rules)
        now = gate.until or now

    assert compute_gate_state(gate, NOW + A_WEEK) == "held"
    assert "open it by hand" in str(gate.reason)
    assert can_dispatch(step_gate(gate, Opened(), NOW, rules), NOW)


def test_a_probe_that_shows_nothing_is_followed_by_another() -> None:
    gate = after(CLOSED, (QUARTER, Dispatched(SECOND)), (QUARTER, RunInconclusive(SECOND)))

    assert compute_gate_state(gate, NOW + QUARTER) == "ready"
    assert step_gate(gate, RunInconclusive(FIRST), NOW, RULES) == gate


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(None, 5), (timedelta(seconds=2), 2), (timedelta(days=1), 60), (timedelta(seconds=-9), 0)],
)
def test_an_announced_retry_makes_it_suspect_for_moments(
    delay: timedelta | None, seconds: int
) -> None:
    gate = after((ZERO, Suspected(delay, "asked to wait")))
    until = NOW + timedelta(seconds=seconds)

    assert not gate.is_closed
    assert can_dispatch(gate, until)
    assert can_dispatch(gate, NOW) == (seconds == 0)
    again = step_gate(gate, Suspected(timedelta(), "again"), NOW, RULES)
    assert again.suspect_until == until, "never shorter"


def test_a_person_closes_it_for_a_time_or_for_good() -> None:
    for_good = after((ZERO, Closed(None, "by hand")))
    hit = step_gate(for_good, limited(stated=HOUR), NOW, RULES)

    assert compute_gate_state(hit, NOW + 2 * A_WEEK) == "held"
    assert compute_gate_state(after((ZERO, Closed(NOW + HOUR, "by hand"))), NOW + HOUR) == "ready"


def test_a_clock_that_was_ahead_closes_nothing_for_years() -> None:
    ahead = timedelta(days=400)
    gate = after((ahead, limited(began=ahead)), (ahead, Suspected(None, "")))

    booted = step_gate(gate, Booted(is_probe_over=True), NOW, RULES)

    assert booted.until == NOW + QUARTER
    assert (booted.since, booted.hit_at, booted.suspect_until) == (NOW, NOW, None)
    assert booted.run == FIRST


def test_what_is_known_survives_a_start() -> None:
    gate = after(CLOSED, (QUARTER, Dispatched(SECOND)))

    alive = step_gate(gate, Booted(is_probe_over=False), NOW + QUARTER, RULES)
    over = step_gate(gate, Booted(is_probe_over=True), NOW + QUARTER, RULES)

    assert alive == gate
    assert compute_gate_state(over, NOW + QUARTER) == "ready"
    assert (over.hit_at, over.run, over.level) == (NOW, FIRST, 0)


def test_when_it_opens_is_known_where_time_alone_opens_it() -> None:
    closed = after(CLOSED)
    suspect = after((ZERO, Suspected(None, "")))
    held = after((ZERO, Closed(None, "by hand")))
    probing = after(CLOSED, (QUARTER, Dispatched(SECOND)))

    found = [find_opening_time(gate, NOW) for gate in (Gate("codex"), closed, suspect, held)]
    assert found == [None, NOW + QUARTER, NOW + timedelta(seconds=5), None]
    assert find_opening_time(probing, NOW + QUARTER) is None
    assert find_next_change([closed, suspect, held], NOW) == NOW + timedelta(seconds=5)
    assert find_next_change([held, Gate("codex")], NOW) is None


def test_gate_of_another_provider_has_no_effect() -> None:
    closed = after(CLOSED)

    assert find_closed_gate([Gate("codex"), closed], "codex", NOW) == closed
    assert find_closed_gate([closed], "claude", NOW) is None


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        (Gate("p"), Gate("p"), None),
        (Gate("p"), Gate("p", is_closed=True, reason="why"), GateClosed("p", None, "why", 0)),
        (Gate("p", is_closed=True), Gate("p", is_closed=True, reason="again"), None),
        (Gate("p", is_closed=True), Gate("p", "", True, NOW, level=2), GateClosed("p", NOW, "", 2)),
        (Gate("p", is_closed=True), Gate("p"), GateOpened("p")),
        (Gate("p"), Gate("p", suspect_until=NOW + MINUTE), GateSuspect("p", NOW + MINUTE, "")),
        (Gate("p", suspect_until=NOW + MINUTE), Gate("p", suspect_until=NOW + HOUR), None),
    ],
)  # fmt: skip
def test_event_of_a_gate_change(was: Gate, becomes: Gate, told: object) -> None:
    assert build_gate_event(was, becomes, NOW) == told


def ended(status: RunStatus, **fields: object) -> Run:
    ids = (FIRST, AgentId("agt_1"), ItemId("itm_1"))
    return Run(*ids, "codex", NOW, status, ended_at=NOW + MINUTE, **fields)  # type: ignore[arg-type]


def test_what_the_end_of_a_run_tells() -> None:
    stated = NOW + HOUR
    error = ErrorFact("rate_limited", "too much: call 555-1234", retry_at=stated)
    why = "run_1 was rate limited"

    assert report_run_end(ended("rate_limited", error=error)) == Limited(FIRST, NOW, stated, why)
    assert report_run_end(ended("rate_limited")) == Limited(FIRST, NOW, None, why)
    assert report_run_end(ended("completed")) == ProviderAnswered(FIRST, NOW)
    assert report_run_end(ended("failed", tools=1)) == ProviderAnswered(FIRST, NOW)
    assert report_run_end(ended("cancelled", usage=Usage(input_tokens=1))) == ProviderAnswered(
        FIRST, NOW
    )
    for status in ("failed", "cancelled", "timed_out", "orphaned"):
        assert report_run_end(ended(status)) == RunInconclusive(FIRST)  # type: ignore[arg-type]


def test_a_chain_goes_past_what_is_closed_and_waits_for_what_is_suspect() -> None:
    later = NOW + timedelta(minutes=1)
    gates = [
        Gate("held", is_closed=True),
        Gate("closed", is_closed=True, until=later, suspect_until=later),
        Gate("probing", is_closed=True, until=NOW, probe=RunId("run_1")),
        Gate("suspect", suspect_until=later),
        Gate("both", suspect_until=later),
        Gate("both", "work", is_closed=True, until=later),
        Gate("ready", is_closed=True, until=NOW),
        Gate("tried", is_closed=True, until=NOW, suspect_until=later),
        Gate("open"),
    ]

    closed, suspect = find_unavailable_providers(gates, NOW)

    assert closed == {"held", "closed", "probing", "both"}
    assert suspect == {"suspect", "tried"}


def test_a_chain_waits_for_the_gate_that_opens_first() -> None:
    hour, minute = NOW + timedelta(hours=1), NOW + timedelta(minutes=1)
    held, late = Gate("held", is_closed=True), Gate("late", is_closed=True, until=hour)
    soon, tense = Gate("soon", is_closed=True, until=minute), Gate("tense", suspect_until=hour)
    gates = [held, late, soon, tense]

    assert find_awaited_gate(gates, ["held", "late", "soon"], NOW) == soon
    assert find_awaited_gate(gates, ["held"], NOW) == held
    assert find_awaited_gate(gates, ["late", "open"], NOW) is None
    assert find_awaited_gate(gates, ["soon", "tense", "open"], NOW) == tense
    assert find_awaited_gate(gates, ["open", "late"], NOW) is None
