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
    NotLaunched,
    Opened,
    ProgramLaunched,
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
    """A gate after these reports, each at its time after noon."""
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
def test_gate_closes_until_the_stated_time(ahead: timedelta) -> None:
    gate = after((ZERO, limited(stated=ahead)))

    assert (gate.until, gate.is_stated, gate.reason) == (NOW + ahead, True, "run_1 was limited")


@pytest.mark.parametrize("stated", [None, -HOUR, A_WEEK + A_MOMENT])
def test_gate_without_a_valid_stated_time_closes_for_15_minutes(stated: timedelta | None) -> None:
    gate = after((ZERO, limited(stated=stated)))

    assert (gate.until, gate.is_stated, gate.level) == (NOW + QUARTER, False, 0)
    assert gate.reason == "run_1 was limited, until no known time"


def test_stated_time_in_the_past_does_not_close_the_gate() -> None:
    gate = after((HOUR, limited(stated=MINUTE)))

    assert compute_gate_state(gate, NOW + HOUR) == "open"
    assert (gate.hit_at, gate.run) == (NOW + HOUR, FIRST)


def test_closed_gate_dispatches_one_probe_after_its_time() -> None:
    gate = after(CLOSED)
    assert not can_dispatch(gate, NOW + QUARTER - A_MOMENT)
    assert can_dispatch(gate, NOW + QUARTER)

    probing = step_gate(gate, Dispatched(SECOND), NOW + QUARTER, RULES)

    assert compute_gate_state(probing, NOW + QUARTER) == "probing"
    assert not can_dispatch(probing, NOW + A_WEEK)


def test_later_limit_of_an_earlier_run_does_not_raise_the_level() -> None:
    gate = after(CLOSED, (MINUTE, limited(SECOND)), (QUARTER, limited(SECOND)))

    assert (gate.level, gate.until, gate.since) == (0, NOW + QUARTER, NOW)
    assert gate.run == SECOND


def test_later_limit_may_correct_the_closing_time() -> None:
    guessed = after(CLOSED, (MINUTE, limited(SECOND, stated=2 * MINUTE)))
    longer = after((ZERO, limited(stated=HOUR)), (MINUTE, limited(SECOND, stated=2 * HOUR)))
    shorter = after((ZERO, limited(stated=HOUR)), (MINUTE, limited(SECOND, stated=2 * MINUTE)))

    assert guessed.until == NOW + 2 * MINUTE
    assert longer.until == NOW + 2 * HOUR
    assert shorter.until == NOW + HOUR


def test_success_of_an_earlier_run_does_not_open_the_gate() -> None:
    was = after(CLOSED)

    for late in (MINUTE, QUARTER, HOUR):
        assert step_gate(was, ProviderAnswered(SECOND, NOW - MINUTE), NOW + late, RULES) == was


def test_answered_run_opens_a_ready_gate() -> None:
    gate = after(
        CLOSED, (QUARTER, Dispatched(SECOND)), (HOUR, ProviderAnswered(SECOND, NOW + QUARTER))
    )

    assert gate == Gate("codex", hit_at=NOW, run=FIRST)


def test_each_limited_probe_doubles_the_closing_time_up_to_an_hour() -> None:
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


def test_gate_is_held_after_the_last_attempt() -> None:
    rules = GateRules(attempts=2)
    gate, now = after(CLOSED, rules=rules), NOW + QUARTER
    for _ in range(2):
        gate = step_gate(gate, Limited(SECOND, now, None, "limit"), now, rules)
        now = gate.until or now

    assert compute_gate_state(gate, NOW + A_WEEK) == "held"
    assert "open it by hand" in str(gate.reason)
    assert can_dispatch(step_gate(gate, Opened(), NOW, rules), NOW)


def test_inconclusive_probe_is_followed_by_another() -> None:
    gate = after(CLOSED, (QUARTER, Dispatched(SECOND)), (QUARTER, RunInconclusive(SECOND)))

    assert compute_gate_state(gate, NOW + QUARTER) == "ready"
    assert step_gate(gate, RunInconclusive(FIRST), NOW, RULES) == gate


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(None, 5), (timedelta(seconds=2), 2), (timedelta(days=1), 60), (timedelta(seconds=-9), 0)],
)
def test_announced_retry_makes_the_gate_suspect_for_a_short_time(
    delay: timedelta | None, seconds: int
) -> None:
    gate = after((ZERO, Suspected(delay, "asked to wait")))
    until = NOW + timedelta(seconds=seconds)

    assert not gate.is_closed
    assert can_dispatch(gate, until)
    assert can_dispatch(gate, NOW) == (seconds == 0)
    again = step_gate(gate, Suspected(timedelta(), "again"), NOW, RULES)
    assert again.suspect_until == until, "never shorter"


def test_gate_can_be_closed_by_hand_with_or_without_an_end() -> None:
    for_good = after((ZERO, Closed(None, "by hand")))
    hit = step_gate(for_good, limited(stated=HOUR), NOW, RULES)

    assert compute_gate_state(hit, NOW + 2 * A_WEEK) == "held"
    assert compute_gate_state(after((ZERO, Closed(NOW + HOUR, "by hand"))), NOW + HOUR) == "ready"


def test_gate_closed_in_the_future_is_shortened_at_the_start() -> None:
    ahead = timedelta(days=400)
    gate = after((ahead, limited(began=ahead)), (ahead, Suspected(None, "")))

    booted = step_gate(gate, Booted(is_probe_over=True), NOW, RULES)

    assert booted.until == NOW + QUARTER
    assert (booted.since, booted.hit_at, booted.suspect_until) == (NOW, NOW, None)
    assert booted.run == FIRST


def unlaunched(run: RunId, created_at: timedelta) -> NotLaunched:
    return NotLaunched(run, NOW + created_at, "launch_failed: no such program")


def test_failed_launches_make_the_gate_suspect_and_then_close_it_for_longer_and_longer() -> None:
    gate, now, states, waits = Gate("codex"), NOW, [], []
    for _ in range(10):
        gate = step_gate(gate, NotLaunched(FIRST, now, "launch_failed: why"), now, RULES)
        opens_at = find_opening_time(gate, now)
        assert opens_at
        states.append(compute_gate_state(gate, now))
        waits.append((opens_at - now).total_seconds())
        now = opens_at
        gate = step_gate(gate, Dispatched(FIRST), now, RULES)

    assert states == ["suspect"] + ["closed"] * 9
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert gate.reason == "launch_failed: why"


def test_failed_launches_of_runs_that_started_together_count_once() -> None:
    gate = after(*((ZERO, unlaunched(run, -MINUTE)) for run in (FIRST, SECOND)))

    assert (gate.failed_launches, compute_gate_state(gate, NOW)) == (1, "suspect")


def test_launch_opens_a_gate_that_failed_launches_have_closed() -> None:
    seconds = timedelta(seconds=1)
    failed = ((ZERO, unlaunched(FIRST, -MINUTE)), (3 * seconds, unlaunched(FIRST, 3 * seconds)))
    closed = after(*failed)
    probing = step_gate(closed, Dispatched(SECOND), NOW + MINUTE, RULES)
    launched = ProgramLaunched(SECOND, NOW + MINUTE)

    assert compute_gate_state(probing, NOW + MINUTE) == "probing"
    opened = step_gate(probing, launched, NOW + MINUTE, RULES)
    assert compute_gate_state(opened, NOW + MINUTE) == "open"


def test_launch_does_not_open_a_gate_that_a_limit_has_closed() -> None:
    gate = after(
        CLOSED,
        (QUARTER, Dispatched(SECOND)),
        (QUARTER, unlaunched(SECOND, QUARTER)),
        (QUARTER + MINUTE, Dispatched(SECOND)),
        (QUARTER + MINUTE, ProgramLaunched(SECOND, NOW + QUARTER + MINUTE)),
    )

    assert compute_gate_state(gate, NOW + QUARTER + MINUTE) == "probing"


def test_gate_survives_a_restart() -> None:
    gate = after(CLOSED, (QUARTER, Dispatched(SECOND)))

    alive = step_gate(gate, Booted(is_probe_over=False), NOW + QUARTER, RULES)
    over = step_gate(gate, Booted(is_probe_over=True), NOW + QUARTER, RULES)

    assert alive == gate
    assert compute_gate_state(over, NOW + QUARTER) == "ready"
    assert (over.hit_at, over.run, over.level) == (NOW, FIRST, 0)


def test_opening_time_is_known_for_closed_and_suspect_gates() -> None:
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


def test_end_of_a_run_becomes_a_gate_report() -> None:
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


def test_provider_chain_skips_closed_and_waits_for_suspect_gates() -> None:
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


def test_provider_chain_waits_for_the_gate_that_opens_first() -> None:
    hour, minute = NOW + timedelta(hours=1), NOW + timedelta(minutes=1)
    held, late = Gate("held", is_closed=True), Gate("late", is_closed=True, until=hour)
    soon, tense = Gate("soon", is_closed=True, until=minute), Gate("tense", suspect_until=hour)
    gates = [held, late, soon, tense]

    assert find_awaited_gate(gates, ["held", "late", "soon"], NOW) == soon
    assert find_awaited_gate(gates, ["held"], NOW) == held
    assert find_awaited_gate(gates, ["late", "open"], NOW) is None
    assert find_awaited_gate(gates, ["soon", "tense", "open"], NOW) == tense
    assert find_awaited_gate(gates, ["open", "late"], NOW) is None
