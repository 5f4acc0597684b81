"""Reads of the reference store that serve one screen or one step of the runtime each."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, tzinfo

from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.run import Run
from steadyrun.model.usage import Cost, UsageSum, count_tokens
from steadyrun.store import AgentOverview, Grouping, LaneSnapshot
from steadyrun.stores.memory import tables
from steadyrun.stores.memory.base import MemoryBase


class MemoryViews(MemoryBase):
    """The verbs of `ReadViews`."""

    async def agent_overviews(
        self, since: datetime, *, agent: AgentId | None = None
    ) -> list[AgentOverview]:
        t = self._tables
        chosen = [
            each
            for each in t.agents.values()
            if not each.is_direct and each.removed_at is None and agent in {None, each.id}
        ]
        return [
            AgentOverview(
                each,
                tables.find_lane(t, each.id),
                t.sessions.get((each.id, each.provider)),
                *tables.find_active(t, each.id),
                await self.usage(agent=each.id, since=since),
            )
            for each in sorted(chosen, key=lambda each: each.name)
        ]

    async def lane_snapshots(
        self, lanes: Mapping[AgentId, RunId | None]
    ) -> dict[AgentId, LaneSnapshot]:
        t = self._tables
        return {agent: tables.build_snapshot(t, agent, run) for agent, run in lanes.items()}

    async def run_costs(self, runs: Collection[RunId]) -> dict[RunId, Cost]:
        stored = self._tables.runs
        return {run: stored[run].cost for run in runs if run in stored}

    async def usage(
        self, *, agent: AgentId | None = None, since: datetime | None = None
    ) -> UsageSum:
        total = UsageSum()
        for run in self._list_runs(agent, since):
            total = _add_usage(total, run)
        return total

    async def usage_by(
        self,
        by: Grouping,
        *,
        agent: AgentId | None = None,
        since: datetime | None = None,
        zone: tzinfo = UTC,
    ) -> dict[str, UsageSum]:
        totals: dict[str, UsageSum] = {}
        for run in self._list_runs(agent, since):
            owner = self._tables.agents[run.agent]
            names: dict[Grouping, str] = {
                "agent": "" if owner.is_direct else owner.name,
                "provider": run.provider,
                "model": run.model or "",
                "day": run.created_at.astimezone(zone).date().isoformat(),
            }
            totals[names[by]] = _add_usage(totals.get(names[by], UsageSum()), run)
        return totals

    def _list_runs(self, agent: AgentId | None, since: datetime | None) -> list[Run]:
        return [
            run
            for run in self._tables.runs.values()
            if agent in {None, run.agent} and (since is None or run.created_at >= since)
        ]


def _add_usage(total: UsageSum, run: Run) -> UsageSum:
    usage, cost = run.usage, run.cost
    return UsageSum(
        runs=total.runs + 1,
        input_tokens=total.input_tokens + (usage.input_tokens or 0),
        output_tokens=total.output_tokens + (usage.output_tokens or 0),
        cache_read_tokens=total.cache_read_tokens + (usage.cache_read_tokens or 0),
        cache_write_tokens=total.cache_write_tokens + (usage.cache_write_tokens or 0),
        known_usd=total.known_usd + (cost.usd or 0.0 if cost.kind == "known" else 0.0),
        estimated_usd=total.estimated_usd + (cost.usd or 0.0 if cost.kind == "estimated" else 0.0),
        unknown_cost_runs=total.unknown_cost_runs + (cost.kind == "unknown"),
        unknown_tokens=total.unknown_tokens
        + (count_tokens(usage) if cost.kind == "unknown" else 0),
    )
