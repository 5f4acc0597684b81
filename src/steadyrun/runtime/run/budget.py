"""How much has it spent, and may it go on? What a run uses, held against the budget of its agent.

Nothing of this has a table: what was spent is read from the runs, and what a person has allowed
beyond a limit is a value of that limit's window.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

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
    Mark,
    Spending,
    Window,
    compute_extension,
    compute_run_spending,
    compute_total_spending,
    explain_spent,
    find_marks,
    find_window_start,
)
from steadyrun.model.event import ApprovalRequested, BudgetReached
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.usage import Cost, Usage
from steadyrun.store import Store

# The name of the question, where others have a tool's.
BUDGET = "budget"


class BudgetMeter:
    """Counts what one run spends. Of each limit it tells 80 % and 100 % once."""

    def __init__(
        self,
        budget: Budget,
        windows: dict[Limit, Window],
        rules: BudgetRules,
        told: Iterable[BudgetReached] = (),
    ) -> None:
        """`told` is what the record of the run says already."""
        self._budget, self._windows, self._rules = budget, windows, rules
        # Who begins beyond a limit is told so, all the same; that it was warned before is known.
        before = find_marks(budget, windows, Spending(), rules)
        self._told = {mark.name: min(mark.percent, WARNED) for mark in before}
        self._told |= {f"{each.limit}.{each.unit}": each.percent for each in told}

    def hear(self, usage: Usage, cost: Cost) -> list[BudgetReached]:
        """The run has used so much so far: what is to be told of it."""
        found = find_marks(
            self._budget, self._windows, compute_run_spending(usage, cost), self._rules
        )
        news = [mark for mark in found if mark.percent > self._told.get(mark.name, 0)]
        self._told |= {mark.name: mark.percent for mark in news}
        return [_told_by(mark) for mark in news]


def _told_by(mark: Mark) -> BudgetReached:
    return BudgetReached(
        mark.limit, mark.unit, mark.allowed, mark.spent, mark.percent, mark.unknown_runs
    )


def spent_of(reached: Iterable[BudgetReached]) -> list[BudgetReached]:
    """The limits of which nothing is left."""
    return [each for each in reached if each.percent == SPENT]


def why_reached(reached: BudgetReached) -> str:
    return explain_spent(reached.limit, reached.unit, spent=reached.spent, allowed=reached.allowed)


def budget_question(run: RunId, reached: Sequence[BudgetReached]) -> ApprovalRequested:
    """How shall an agent go on whose run has reached these limits?"""
    limits = [
        {"limit": each.limit, "unit": each.unit, "spent": each.spent, "allowed": each.allowed}
        for each in reached
    ]
    asked = {"why": "; ".join(map(why_reached, reached)), "limits": limits}
    return ApprovalRequested(f"{BUDGET}-{run}", None, BUDGET, asked, about="budget")


async def load_budget_meter(
    store: Store, agent: Agent, run: RunId, rules: BudgetRules, told: Iterable[BudgetReached]
) -> BudgetMeter:
    """What the agent has spent before, in the windows that the run belongs to."""
    found = await store.run(run)
    own = compute_run_spending(found.usage, found.cost)
    windows = await _windows(store, agent, found.created_at, rules, own)
    return BudgetMeter(agent.policy.budget, windows, rules, told)


async def extend(
    store: Store, agent: Agent, rules: BudgetRules, now: datetime
) -> tuple[BudgetExtension, ...]:
    """Allow every limit once more that is spent; said again it is once."""
    extended, budget = [], agent.policy.budget
    for mark in find_marks(
        budget, await _windows(store, agent, now, rules, Spending()), Spending(), rules
    ):
        allowed = compute_extension(mark, budget)
        if allowed is not None:
            key = _key(agent.id, mark.limit, mark.unit, mark.since)
            await store.put(key, msgspec.json.encode(allowed))
            extended.append(BudgetExtension(mark.limit, mark.unit, allowed))
    return tuple(extended)


async def _windows(
    store: Store, agent: Agent, at: datetime, rules: BudgetRules, but: Spending
) -> dict[Limit, Window]:
    """What the agent has spent in the windows of a moment, without `but`."""
    windows: dict[Limit, Window] = {}
    for limit in agent.policy.budget.limits:
        if limit != "run":
            since = find_window_start(limit, at, rules.zone)
            total = compute_total_spending(await store.usage(agent=agent.id, since=since))
            windows[limit] = Window(since, total - but, await _extended(store, agent, limit, since))
    return windows


async def _extended(
    store: Store, agent: Agent, limit: Limit, since: datetime | None
) -> dict[BudgetUnit, float]:
    found: dict[BudgetUnit, float] = {}
    for unit in UNITS:
        if agent.policy.budget.get_limit(limit, unit) is not None:
            kept = await store.get(_key(agent.id, limit, unit, since))
            if kept:
                found[unit] = msgspec.json.decode(kept, type=float)
    return found


def _key(agent: AgentId, limit: Limit, unit: BudgetUnit, since: datetime | None) -> str:
    return f"budget/{agent}/{limit}.{unit}/{since.isoformat() if since else 'ever'}"
