"""Computes budgets: limits in money and in tokens of a run, an agent, a day and a month.

Everything here is pure. An unknown cost is never counted as zero: `BudgetRules.unknown` defines how
it counts. A run belongs to the day and the month of its creation. A day is a calendar day in
`BudgetRules.zone`; it has 23 to 25 hours where clocks are changed.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import asdict, astuple

from steadyrun.model.usage import Cost, Usage, UsageSum, count_tokens

Limit = Literal["run", "agent", "day", "month"]
BudgetUnit = Literal["usd", "tokens"]
# An unknown cost counts by its tokens, ends the run, or does not count.
UnknownCostRule = Literal["tokens", "refuse", "allow"]

LIMITS: tuple[Limit, ...] = get_args(Limit)
UNITS: tuple[BudgetUnit, ...] = get_args(BudgetUnit)
WARNED, SPENT = 80, 100


class Budget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits in US dollars and in tokens; None is no limit. `agent` has no period."""

    run: float | None = None
    agent: float | None = None
    day: float | None = None
    month: float | None = None
    run_tokens: int | None = None
    agent_tokens: int | None = None
    day_tokens: int | None = None
    month_tokens: int | None = None

    def get_limit(self, limit: Limit, unit: BudgetUnit) -> float | None:
        found: float | None = getattr(self, limit if unit == "usd" else f"{limit}_tokens")
        return found

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that are set, in either unit."""
        return tuple(
            limit
            for limit in LIMITS
            if any(self.get_limit(limit, unit) is not None for unit in UNITS)
        )


class BudgetRules(Struct, frozen=True):
    """The time zone of a day, and how an unknown cost counts."""

    zone: tzinfo = UTC
    unknown: UnknownCostRule = "tokens"
    usd_per_million: float = 25.0


class Spending(Struct, frozen=True):
    """What was spent: `usd` is the known or estimated cost; unknown cost is in tokens and runs."""

    usd: float = 0.0
    tokens: int = 0
    unknown_tokens: int = 0
    unknown_runs: int = 0

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Spending") -> "Spending":
        """Never below zero: sums of fractions are not exact."""
        return Spending(
            *(max(0, a - b) for a, b in zip(astuple(self), astuple(other), strict=True))
        )


class Window(Struct, frozen=True):
    """The period of a limit: its start (None: no start), what other runs have spent in it, and the
    extended amounts, if a user has allowed more than the limit."""

    since: datetime | None = None
    before: Spending = Spending()
    extended: Mapping[BudgetUnit, float] = {}


class ReachedLimit(Struct, frozen=True):
    """A limit that is spent to `percent`: 80 or 100."""

    limit: Limit
    unit: BudgetUnit
    allowed: float
    spent: float
    percent: int
    unknown_runs: int
    since: datetime | None = None

    @property
    def name(self) -> str:
        return f"{self.limit}.{self.unit}"


class BudgetExtension(Struct, frozen=True):
    """A user has extended a limit to `allowed`."""

    limit: Limit
    unit: BudgetUnit
    allowed: float


def explain_spent(limit: Limit, unit: BudgetUnit, *, spent: float, allowed: float) -> str:
    """Explain why an agent with this budget does not continue."""
    if spent < allowed:
        return (
            f"the cost is unknown, and the budget of its {limit} requires a known cost"
            ' (budgets.unknown = "refuse")'
        )
    money = unit == "usd"
    amounts = [f"{each:.2f}" if money else f"{each:.0f}" for each in (spent, allowed)]
    unit_name = "USD" if money else "tokens"
    return f"the budget of its {limit} is spent: {amounts[0]} of {amounts[1]} {unit_name}"


def compute_run_spending(usage: Usage, cost: Cost) -> Spending:
    """What one run has spent."""
    tokens = count_tokens(usage)
    if cost.usd is None:
        return Spending(0.0, tokens, tokens, 1)
    return Spending(cost.usd, tokens)


def compute_total_spending(total: UsageSum) -> Spending:
    """What several runs have spent."""
    tokens = (
        total.input_tokens
        + total.output_tokens
        + total.cache_read_tokens
        + total.cache_write_tokens
    )
    usd = total.known_usd + total.estimated_usd
    return Spending(usd, tokens, total.unknown_tokens, total.unknown_cost_runs)


def measure_spending(spent: Spending, unit: BudgetUnit, rules: BudgetRules) -> float:
    """Convert spending to an amount of one unit, by the rules."""
    if unit == "tokens":
        return float(spent.tokens)
    by_tokens = spent.unknown_tokens * rules.usd_per_million / 1_000_000
    return spent.usd + (by_tokens if rules.unknown == "tokens" else 0.0)


def find_window_start(limit: Limit, at: datetime, zone: tzinfo) -> datetime | None:
    """The start of the day or the month of a time; None for other limits."""
    here = at.astimezone(zone)
    match limit:
        case "day":
            begin = datetime(here.year, here.month, here.day, tzinfo=zone)
        case "month":
            begin = datetime(here.year, here.month, 1, tzinfo=zone)
        case _:
            return None
    return begin.astimezone(UTC)


def find_marks(
    budget: Budget, windows: Mapping[Limit, Window], own: Spending, rules: BudgetRules
) -> list[ReachedLimit]:
    """The limits that are spent to 80 % or more, including the spending of this run."""
    found = []
    for limit in budget.limits:
        window = windows.get(limit, Window())
        for unit in UNITS:
            most = budget.get_limit(limit, unit)
            if most is not None:
                found.append(_build_mark(limit, unit, max(most, window.extended.get(unit, 0.0)),
                                   window, own, rules))  # fmt: skip
    return [mark for mark in found if mark.percent]


def _build_mark(
    limit: Limit,
    unit: BudgetUnit,
    allowed: float,
    window: Window,
    own: Spending,
    rules: BudgetRules,
) -> ReachedLimit:
    total = window.before + own
    spent = measure_spending(total, unit, rules)
    is_refused = unit == "usd" and rules.unknown == "refuse" and own.unknown_runs > 0
    percent = 0
    if spent >= allowed or is_refused:
        percent = SPENT
    elif spent >= allowed * WARNED / 100:
        percent = WARNED
    return ReachedLimit(limit, unit, allowed, spent, percent, total.unknown_runs, window.since)


def compute_extension(mark: ReachedLimit, budget: Budget) -> float | None:
    """The new amount when a user allows a spent limit once more; the same each time it is computed.
    None if there is nothing to extend: the next run starts with its full limit, or the cost is
    unknown, which an extension would not change."""
    most = budget.get_limit(mark.limit, mark.unit)
    if mark.limit == "run" or most is None or mark.spent < mark.allowed:
        return None
    return mark.spent + most


def parse_budget(words: tuple[str, ...]) -> Budget:
    """Parse a budget as it is typed: `day=5`, `run_tokens=200000`. Raise `ValueError`."""
    found: dict[str, float] = {}
    for word in words:
        name, _, amount = word.partition("=")
        if name not in Budget.__struct_fields__:
            raise ValueError(
                f"expected one of {', '.join(Budget.__struct_fields__)}, found {name!r}"
            )
        if name in found:
            raise ValueError(f"{name} is named twice")
        found[name] = _parse_amount(name, amount)
    return Budget(**found)  # type: ignore[arg-type]


def _parse_amount(name: str, text: str) -> float:
    is_tokens = name.endswith("_tokens")
    try:
        value = int(text) if is_tokens else float(text)
    except ValueError:
        value = 0
    if value > 0 and math.isfinite(value):
        return value
    what = "a whole number of tokens" if is_tokens else "a number of dollars"
    raise ValueError(f"{name}: expected {what} above 0, found {text!r}")


def format_budget(budget: Budget) -> tuple[str, ...]:
    """The words that `parse_budget` accepts."""
    amounts = asdict(budget).items()
    return tuple(
        f"{name}={str(amount).removesuffix('.0')}" for name, amount in amounts if amount is not None
    )
