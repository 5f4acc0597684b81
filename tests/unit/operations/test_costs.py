"""Costs of a day follow the configured time zone."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from steadyrun.model.agent import Agent
from steadyrun.model.budget import BudgetRules
from steadyrun.model.item import Message
from steadyrun.model.run import Finished
from steadyrun.model.usage import Cost, Usage, UsageSum
from steadyrun.operations.agents import ListAgentsRequest, list_agents
from steadyrun.operations.context import OperationContext
from steadyrun.operations.costs import CostRequest, show
from steadyrun.store import Grouping
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.testing.clock import FakeClock
from steadyrun.testing.store_conformance.fixtures import claim_lanes
from tests.support.fake_daemon import make_context


def midnight_at(moment: datetime) -> timezone:
    """Return a time zone in which a day begins at that moment."""
    since = timedelta(hours=moment.hour, minutes=moment.minute, seconds=moment.second)
    return timezone(-since if since <= timedelta(hours=12) else timedelta(hours=24) - since)


async def spend(context: OperationContext, agent: Agent, usd: float) -> None:
    store, now = context.store, context.clock.now()
    await store.accept(Message(agent.id, "work"))
    holder = await store.join("test")
    [claim] = await claim_lanes(store, holder.id)
    ended = Finished(now, "completed", usage=Usage(1), cost=Cost(usd, "known"))
    await store.settle(claim, ended)


class Counting(MemoryStore):
    """Counts the queries of usage."""

    asked = 0

    async def usage(self, by: Grouping, **given: Any) -> dict[str, UsageSum]:
        self.asked += 1
        return await super().usage(by, **given)


async def test_costs_of_all_time_need_as_many_queries_as_one_day(tmp_path: Path) -> None:
    clock = FakeClock()
    store = Counting(clock)
    context = make_context(store, tmp_path, clock=clock)
    ada = Agent(context.ids.make_agent(), "ada", ("scripted",), str(tmp_path))
    await store.add_agent(ada)
    await spend(context, ada, 1.0)

    found = await show(context, CostRequest(by="day", since="0001-01-02"))

    assert store.asked == 1
    assert [row.key for row in found.rows] == [clock.now().date().isoformat()]
    assert found.total.known_usd == 1.0


async def test_day_begins_at_midnight_of_the_configured_zone(tmp_path: Path) -> None:
    clock = FakeClock()
    plain = make_context(MemoryStore(clock), tmp_path, clock=clock)
    zone = midnight_at(clock.now() + timedelta(minutes=30))
    context = replace(plain, budgets=BudgetRules(zone))
    ada = Agent(context.ids.make_agent(), "ada", ("scripted",), str(tmp_path))
    await context.store.add_agent(ada)
    await spend(context, ada, 1.0)
    clock.advance(timedelta(hours=1))
    await spend(context, ada, 0.25)

    [agent] = (await list_agents(context, ListAgentsRequest())).agents
    days = await show(context, CostRequest(by="day"))
    today = await show(context, CostRequest(since="today"))

    assert agent.cost_today.usd == 0.25
    assert [row.known_usd for row in days.rows] == [1.0, 0.25]
    assert days.rows[1].key == clock.now().astimezone(zone).date().isoformat()
    assert (today.total.known_usd, days.total.known_usd) == (0.25, 1.25)
