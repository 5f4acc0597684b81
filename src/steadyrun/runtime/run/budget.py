"""Counts what a run spends and compares it with the budget of its agent.

There is no table for budgets: what was spent is read from the runs, and what a person has allowed
beyond a limit is a value of that limit's window in the key-value table.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from steadyrun.dialect import TurnEnded
from steadyrun.model.agent import Agent
from steadyrun.model.budget import (
    SPENT,
    UNITS,
    WARNED,
    Budget,
    BudgetExtension,
    BudgetRules,
    BudgetUnit,
    Limit,
    Spending,
    Window,
    compute_extension,
    compute_run_spending,
    compute_total_spending,
    explain_spent,
    find_marks,
    find_window_start,
)
from steadyrun.model.event import ApprovalRequested, BudgetReached, UsageUpdated
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.run import Finished, Run, Touched
from steadyrun.model.usage import Cost, Usage, add_costs, add_up, add_usage
from steadyrun.store import Store

# The name of the question, in the place of the name of a tool.
BUDGET = "budget"


class BudgetMeter:
    """Counts what one run spends, and reports 80 % and 100 % of each limit once."""

    def __init__(
        self,
        budget: Budget,
        windows: dict[Limit, Window],
        rules: BudgetRules,
        reported: Iterable[BudgetReached] = (),
    ) -> None:
        """`reported` is what the record of the run has already."""
        self._budget, self._windows, self._rules = budget, windows, rules
        # A run that starts beyond a limit still reports the limit, but not the 80 % warning.
        before = find_marks(budget, windows, Spending(), rules)
        self._reported = {mark.name: min(mark.percent, WARNED) for mark in before}
        self._reported |= {f"{each.limit}.{each.unit}": each.percent for each in reported}

    def count(self, usage: Usage, cost: Cost) -> list[BudgetReached]:
        """Count the usage of the run so far, and return the events to report."""
        found = find_marks(
            self._budget, self._windows, compute_run_spending(usage, cost), self._rules
        )
        new = [mark for mark in found if mark.percent > self._reported.get(mark.name, 0)]
        self._reported |= {mark.name: mark.percent for mark in new}
        return [
            BudgetReached(
                mark.limit, mark.unit, mark.allowed, mark.spent, mark.percent, mark.unknown_runs
            )
            for mark in new
        ]


class RunBudget:
    """What one run has used and paid so far, held against the budget of its agent.

    A run may have turns that its provider has begun before the run's own turn: `_spent` is their
    sum, `_turn` the last counts of the turn that is open. `ActiveRun` owns it.
    """

    def __init__(self, store: Store, agent: Agent, run: RunId, rules: BudgetRules) -> None:
        # The limits that the run has reached.
        self.reached: list[BudgetReached] = []
        self._store, self._agent, self._run, self._rules = store, agent, run, rules
        self._spent: tuple[Usage, Cost] | None = None
        self._turn: UsageUpdated | None = None
        self._meter: BudgetMeter | None = None

    def load(self, run: Run) -> None:
        """Take over the state of the record; the reached limits follow from its events."""
        self._meter, self.reached = None, []
        if (run.usage, run.cost) != (Usage(), Cost()):
            self._spent = (run.usage, run.cost)

    def set_spent(self, usage: Usage, cost: Cost) -> None:
        """Set the sum of the turns that ended before the run's own turn."""
        self._spent, self._turn = (usage, cost), None

    def compute_total(self, ended: TurnEnded) -> tuple[Usage | None, Cost | None]:
        """What the run has used with this turn. A turn that was cut off has no sum of its own: its
        last counts are used."""
        turn = self._turn
        if ended.usage is None and turn:
            return self._add_spent(turn.usage, turn.cost)
        if self._spent is None:
            return ended.usage, ended.cost
        return self._add_spent(ended.usage or Usage(), ended.cost or Cost())

    async def count_turn(self, turn: UsageUpdated) -> list[BudgetReached]:
        """Count the usage of the open turn so far, and return the events to report."""
        self._turn = turn
        return await self._count(*self._add_spent(turn.usage, turn.cost))

    async def count_end(self, change: Finished | Touched) -> list[BudgetReached]:
        """As `count_turn`, for a turn that has ended: `change` has the sum of the run."""
        return await self._count(change.usage or Usage(), change.cost or Cost())

    @property
    def overspent(self) -> str | None:
        """Why the run must end, if a limit is spent."""
        spent = find_spent(self.reached)
        return explain_reached(spent[0]) if spent else None

    def build_question(self, change: Finished | Touched) -> tuple[ApprovalRequested, ...]:
        """The question to the owner of the agent at the end of the run.

        A run that completed beyond its own limit does not pause the agent.
        """
        spent = find_spent(self.reached)
        if self._agent.is_direct or not isinstance(change, Finished) or not spent:
            return ()
        if change.stop_reason != "budget":
            spent = [each for each in spent if each.limit != "run"]
        return (build_budget_question(self._run, spent),) if spent else ()

    async def _count(self, usage: Usage, cost: Cost) -> list[BudgetReached]:
        if self._agent.policy.budget == Budget():
            return []
        if self._meter is None:
            self._meter = await self._load_meter()
        reached = self._meter.count(usage, cost)
        self.reached += reached
        return reached

    async def _load_meter(self) -> BudgetMeter:
        """A meter that starts with what the agent has spent before, in the windows of the run."""
        agent, rules, found = self._agent, self._rules, await self._store.run(self._run)
        own = compute_run_spending(found.usage, found.cost)
        windows = await _load_windows(self._store, agent, found.created_at, rules, own)
        return BudgetMeter(agent.policy.budget, windows, rules, self.reached)

    def _add_spent(self, usage: Usage, cost: Cost) -> tuple[Usage, Cost]:
        if self._spent is None:
            return usage, cost
        before, paid = self._spent
        return add_usage(before, usage), add_costs(paid, cost)


def find_spent(reached: Iterable[BudgetReached]) -> list[BudgetReached]:
    """The limits that are spent."""
    return [each for each in reached if each.percent == SPENT]


def explain_reached(reached: BudgetReached) -> str:
    return explain_spent(reached.limit, reached.unit, spent=reached.spent, allowed=reached.allowed)


def build_budget_question(run: RunId, reached: Sequence[BudgetReached]) -> ApprovalRequested:
    """The question to the owner of an agent whose run has reached these limits."""
    limits = [
        {"limit": each.limit, "unit": each.unit, "spent": each.spent, "allowed": each.allowed}
        for each in reached
    ]
    asked = {"why": "; ".join(map(explain_reached, reached)), "limits": limits}
    return ApprovalRequested(f"{BUDGET}-{run}", None, BUDGET, asked, about="budget")


async def compute_extensions(
    store: Store, agent: Agent, rules: BudgetRules, now: datetime
) -> dict[str, BudgetExtension]:
    """What allows every spent limit once more, by the key under which it is stored."""
    extended: dict[str, BudgetExtension] = {}
    budget = agent.policy.budget
    for mark in find_marks(
        budget, await _load_windows(store, agent, now, rules, Spending()), Spending(), rules
    ):
        allowed = compute_extension(mark, budget)
        if allowed is not None:
            key = _build_key(agent.id, mark.limit, mark.unit, mark.since)
            extended[key] = BudgetExtension(mark.limit, mark.unit, allowed)
    return extended


def encode_extensions(extended: Mapping[str, BudgetExtension]) -> dict[str, bytes]:
    """The values to store, by their keys."""
    return {key: msgspec.json.encode(each.allowed) for key, each in extended.items()}


async def _load_windows(
    store: Store, agent: Agent, at: datetime, rules: BudgetRules, except_for: Spending
) -> dict[Limit, Window]:
    """What the agent has spent in the windows of a moment, without `except_for`."""
    windows: dict[Limit, Window] = {}
    for limit in agent.policy.budget.limits:
        if limit != "run":
            since = find_window_start(limit, at, rules.zone)
            usage = await store.usage("provider", agent=agent.id, since=since)
            total = compute_total_spending(add_up(usage.values()))
            windows[limit] = Window(
                since, total - except_for, await _load_extensions(store, agent, limit, since)
            )
    return windows


async def _load_extensions(
    store: Store, agent: Agent, limit: Limit, since: datetime | None
) -> dict[BudgetUnit, float]:
    found: dict[BudgetUnit, float] = {}
    for unit in UNITS:
        if agent.policy.budget.get_limit(limit, unit) is not None:
            kept = await store.get(_build_key(agent.id, limit, unit, since))
            if kept:
                found[unit] = msgspec.json.decode(kept, type=float)
    return found


def _build_key(agent: AgentId, limit: Limit, unit: BudgetUnit, since: datetime | None) -> str:
    return f"budget/{agent}/{limit}.{unit}/{since.isoformat() if since else 'ever'}"
