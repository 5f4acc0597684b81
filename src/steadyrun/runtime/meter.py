"""How much has it spent, and may it go on? What a run uses, held against the budget of its agent.

Nothing of this has a table: what was spent is read from the runs, and what a person has allowed
beyond a limit is a value of that limit's window.
"""

from collections.abc import Iterable
from datetime import datetime

import msgspec
from msgspec import Struct

from steadyrun.model.agent import Agent
from steadyrun.model.budget import (
    SPENT,
    UNITS,
    WARNED,
    Budget,
    BudgetRules,
    Limit,
    Mark,
    Spent,
    Unit,
    Window,
    begin_of,
    extended_by,
    marks,
    spent_by,
    spent_in,
)
from steadyrun.model.event import BudgetReached
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.usage import Cost, Usage
from steadyrun.store import Store

_paused = msgspec.json.Decoder(tuple[Mark, ...])


class Meter:
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
        before = marks(budget, windows, Spent(), rules)
        self._told = {mark.name: min(mark.percent, WARNED) for mark in before}
        self._told |= {f"{each.limit}.{each.unit}": each.percent for each in told}
        # The limits that are spent.
        self.spent: tuple[Mark, ...] = ()

    def hear(self, usage: Usage, cost: Cost) -> list[Mark]:
        """The run has used so much so far: what is to be told of it."""
        found = marks(self._budget, self._windows, spent_by(usage, cost), self._rules)
        self.spent = tuple(mark for mark in found if mark.percent == SPENT)
        news = [mark for mark in found if mark.percent > self._told.get(mark.name, 0)]
        self._told |= {mark.name: mark.percent for mark in news}
        return news

    @property
    def pauses(self) -> bool:
        """Whether the agent shall do nothing more. A run that was done in spite of its own limit
        does not keep the next one from work."""
        return any(mark.limit != "run" for mark in self.spent)


async def load_meter(
    store: Store, agent: Agent, run: RunId, rules: BudgetRules, told: Iterable[BudgetReached]
) -> Meter:
    """What the agent has spent before, in the windows that the run belongs to."""
    found = await store.run(run)
    own = spent_by(found.usage, found.cost)
    windows: dict[Limit, Window] = {}
    for limit in agent.policy.budget.limits:
        if limit != "run":
            since = begin_of(limit, found.created_at, rules.zone)
            total = spent_in(await store.usage(agent=agent.id, since=since))
            extended = await _extended(store, agent, limit, since)
            windows[limit] = Window(since, total - own, extended)
    return Meter(agent.policy.budget, windows, rules, told)


def told_by(mark: Mark) -> BudgetReached:
    return BudgetReached(
        mark.limit, mark.unit, mark.allowed, mark.spent, mark.percent, mark.unknown_runs
    )


# -- what a person knows and allows


async def note_spent(store: Store, agent: AgentId, spent: tuple[Mark, ...]) -> None:
    """Remember why the agent is about to be paused."""
    await store.remember(_pause_key(agent), msgspec.json.encode(spent))


async def spent_of(store: Store, agent: AgentId) -> tuple[Mark, ...]:
    """The limits because of which a paused agent is paused."""
    return _paused.decode(await store.recall(_pause_key(agent)) or b"[]")


class Extended(Struct, frozen=True):
    """So much may be spent now."""

    limit: Limit
    unit: Unit
    allowed: float


async def extend(store: Store, agent: Agent, rules: BudgetRules, now: datetime) -> list[Extended]:
    """Allow every limit once more that has paused the agent, if its window is not over; said again
    it is once. The agent is not paused because of them any more."""
    extended = []
    for mark in await spent_of(store, agent.id):
        allowed = extended_by(mark, agent.policy.budget)
        if allowed is not None and mark.since == begin_of(mark.limit, now, rules.zone):
            key = _key(agent.id, mark.limit, mark.unit, mark.since)
            await store.remember(key, msgspec.json.encode(allowed))
            extended.append(Extended(mark.limit, mark.unit, allowed))
    await note_spent(store, agent.id, ())
    return extended


async def _extended(
    store: Store, agent: Agent, limit: Limit, since: datetime | None
) -> dict[Unit, float]:
    found: dict[Unit, float] = {}
    for unit in UNITS:
        if agent.policy.budget.of(limit, unit) is not None:
            kept = await store.recall(_key(agent.id, limit, unit, since))
            if kept:
                found[unit] = msgspec.json.decode(kept, type=float)
    return found


def _key(agent: AgentId, limit: Limit, unit: Unit, since: datetime | None) -> str:
    return f"budget/{agent}/{limit}.{unit}/{since.isoformat() if since else 'ever'}"


def _pause_key(agent: AgentId) -> str:
    return f"budget/{agent}/spent"
