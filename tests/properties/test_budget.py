"""Tests that a limit is reached once, at its time, and that an unknown cost is not zero."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given
from hypothesis import strategies as st

from steadyrun.model.budget import (
    LIMITS,
    Budget,
    BudgetRules,
    Limit,
    Spending,
    UnknownCostRule,
    Window,
    compute_extension,
    compute_run_spending,
    find_marks,
    find_window_start,
    format_budget,
    measure_spending,
    parse_budget,
)
from steadyrun.model.event import BudgetReached
from steadyrun.model.usage import Cost, Usage
from steadyrun.runtime.run.budget import BudgetMeter

ZONES = sorted(available_timezones() - {"localtime"})
MOMENTS = st.datetimes(datetime(1970, 1, 3), datetime(2037, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
DOLLARS = st.floats(0.01, 1e6)
TOKENS = st.integers(1, 10**9)
BUDGETS = st.builds(
    Budget,
    **{limit: st.none() | DOLLARS for limit in LIMITS},
    **{f"{limit}_tokens": st.none() | TOKENS for limit in LIMITS},
)
COSTS = st.just(Cost()) | st.builds(
    Cost, st.floats(0, 1e6), st.sampled_from(["known", "estimated"])
)
USAGES = st.builds(Usage, *[st.none() | st.integers(0, 10**8)] * 4)
SPENT = st.builds(Spending, st.floats(0, 1e6), *[st.integers(0, 10**8)] * 2, st.integers(0, 9))
WINDOWS = st.dictionaries(
    st.sampled_from(LIMITS[1:]), st.builds(Window, st.none(), SPENT, st.just({}))
)
RULES = st.builds(
    BudgetRules,
    st.just(UTC),
    st.sampled_from(["tokens", "refuse", "allow"]),
    st.floats(0.01, 1000),
)


@given(st.sampled_from(ZONES), MOMENTS)
def test_day_begins_with_its_date_in_every_time_zone(zone: str, at: datetime) -> None:
    here = ZoneInfo(zone)
    begin = find_window_start("day", at, here)
    assert begin is not None
    date = at.astimezone(here).date()

    assert at - timedelta(hours=48) < begin <= at
    assert begin.astimezone(here).date() == date
    assert (begin - timedelta(microseconds=1)).astimezone(here).date() < date


@given(st.sampled_from(ZONES), MOMENTS)
def test_month_begins_with_its_first_day(zone: str, at: datetime) -> None:
    here = ZoneInfo(zone)
    begin = find_window_start("month", at, here)
    assert begin is not None
    local = at.astimezone(here)

    assert begin <= at
    assert (begin.astimezone(here).year, begin.astimezone(here).month) == (local.year, local.month)
    before = (begin - timedelta(microseconds=1)).astimezone(here)
    assert (before.year, before.month) < (local.year, local.month)


def test_day_has_the_length_of_its_time_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")

    def hours(day: datetime) -> float:
        begin = find_window_start("day", day, berlin)
        following = find_window_start("day", day + timedelta(hours=26), berlin)
        assert begin
        assert following
        return (following - begin).total_seconds() / 3600

    assert hours(datetime(2026, 3, 29, 0, tzinfo=UTC)) == 23
    assert hours(datetime(2026, 10, 25, 0, tzinfo=UTC)) == 25
    assert hours(datetime(2026, 7, 1, 0, tzinfo=UTC)) == 24
    # 23:30 in London is half past midnight of the next day in Berlin.
    late = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)
    assert find_window_start("month", late, berlin) == datetime(2026, 1, 31, 23, tzinfo=UTC)
    assert find_window_start("month", late, UTC) == datetime(2026, 1, 1, tzinfo=UTC)


def test_run_and_agent_limits_have_no_start() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert (find_window_start("run", now, UTC), find_window_start("agent", now, UTC)) == (
        None,
        None,
    )


@given(BUDGETS, WINDOWS, RULES, st.lists(st.tuples(USAGES, COSTS), max_size=12))
def test_each_budget_mark_is_reported_once_and_in_order(
    budget: Budget,
    windows: dict[Limit, Window],
    rules: BudgetRules,
    heard: list[tuple[Usage, Cost]],
) -> None:
    meter = BudgetMeter(budget, windows, rules)
    told: list[BudgetReached] = []
    for usage, cost in heard:
        told += meter.count(usage, cost)
        # A meter that is built later from the record reports none of the marks again.
        again = BudgetMeter(budget, windows, rules, told)
        assert again.count(usage, cost) == []

    def name(reached: BudgetReached) -> tuple[str, str]:
        return reached.limit, reached.unit

    for _, group in itertools.groupby(sorted(told, key=name), key=name):
        percents = [mark.percent for mark in group]
        assert percents in ([80], [100], [80, 100])


@given(BUDGETS, WINDOWS, RULES, SPENT, SPENT)
def test_higher_spending_reaches_no_fewer_marks(
    budget: Budget, windows: dict[Limit, Window], rules: BudgetRules, own: Spending, more: Spending
) -> None:
    before = {mark.name: mark.percent for mark in find_marks(budget, windows, own, rules)}
    after = {mark.name: mark.percent for mark in find_marks(budget, windows, own + more, rules)}

    assert all(after.get(name, 0) >= percent for name, percent in before.items())


@given(BUDGETS, WINDOWS, RULES, SPENT)
def test_mark_states_the_reached_percentage(
    budget: Budget, windows: dict[Limit, Window], rules: BudgetRules, own: Spending
) -> None:
    found = {mark.name: mark for mark in find_marks(budget, windows, own, rules)}
    for limit in budget.limits:
        total = windows.get(limit, Window()).before + own
        for unit in ("usd", "tokens"):
            allowed, mark = budget.get_limit(limit, unit), found.get(f"{limit}.{unit}")
            is_refused = unit == "usd" and rules.unknown == "refuse" and own.unknown_runs > 0
            spent = measure_spending(total, unit, rules)
            if allowed is None:
                assert mark is None
            elif spent >= allowed or is_refused:
                assert mark is not None
                assert mark.percent == 100
            elif mark is not None:
                assert mark.percent == 80
                assert spent >= allowed * 0.8


@given(USAGES, st.sampled_from(["tokens", "refuse", "allow"]), st.floats(0.01, 1000))
def test_unknown_cost_is_not_zero(usage: Usage, unknown: UnknownCostRule, rate: float) -> None:
    rules = BudgetRules(UTC, unknown, rate)
    spent = compute_run_spending(usage, Cost())
    [*reached] = find_marks(Budget(run=1e-12), {}, spent, rules)

    assert spent.unknown_runs == 1
    if unknown == "tokens":
        assert (measure_spending(spent, "usd", rules) > 0) == (spent.tokens > 0)
    elif unknown == "refuse":
        assert [mark.percent for mark in reached] == [100]
    else:
        assert measure_spending(spent, "usd", rules) == 0


@given(BUDGETS, WINDOWS, SPENT)
def test_extended_limit_allows_the_same_amount_again(
    budget: Budget, windows: dict[Limit, Window], own: Spending
) -> None:
    rules = BudgetRules()
    for mark in find_marks(budget, windows, own, rules):
        allowed = compute_extension(mark, budget)
        if mark.percent < 100 or mark.limit == "run":
            continue
        assert allowed is not None
        assert allowed > mark.spent
        window = windows.get(mark.limit, Window())
        wider = Window(window.since, window.before, {mark.unit: allowed})
        again = find_marks(budget, {**windows, mark.limit: wider}, own, rules)
        assert mark.name not in {each.name for each in again if each.percent == 100}


@given(BUDGETS)
def test_budget_is_parsed_as_it_was_formatted(budget: Budget) -> None:
    assert parse_budget(format_budget(budget)) == budget
