"""Reads of the reference store that serve one screen or one step of the runtime each."""

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo

from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.run import Run
from steadyrun.model.usage import UsageSum, add_up, count_tokens
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
                add_up((await self.usage("agent", agent=each.id, since=since)).values()),
            )
            for each in sorted(chosen, key=lambda each: each.name)
        ]

    async def lane_snapshots(
        self, lanes: Mapping[AgentId, RunId | None]
    ) -> dict[AgentId, LaneSnapshot]:
        t = self._tables
        return {agent: tables.build_snapshot(t, agent, run) for agent, run in lanes.items()}

    async def usage(
        self,
        by: Grouping,
        *,
        agent: AgentId | None = None,
        since: datetime | None = None,
        zone: tzinfo = UTC,
    ) -> dict[str, UsageSum]:
        found: dict[str, list[UsageSum]] = {}
        for run in self._tables.runs.values():
            if agent in {None, run.agent} and (since is None or run.created_at >= since):
                found.setdefault(self._choose_group(run, by, zone), []).append(_to_sum(run))
        return {name: add_up(sums) for name, sums in found.items()}

    def _choose_group(self, run: Run, by: Grouping, zone: tzinfo) -> str:
        agent = self._tables.agents[run.agent]
        match by:
            case "agent":
                return "" if agent.is_direct else agent.name
            case "provider":
                return run.provider
            case "model":
                return run.model or ""
            case "day":
                return run.created_at.astimezone(zone).date().isoformat()


def _to_sum(run: Run) -> UsageSum:
    """The totals of a single run."""
    usd, kind = run.cost.usd or 0.0, run.cost.kind
    return UsageSum(
        1,
        run.usage.input_tokens or 0,
        run.usage.output_tokens or 0,
        run.usage.cache_read_tokens or 0,
        run.usage.cache_write_tokens or 0,
        usd if kind == "known" else 0.0,
        usd if kind == "estimated" else 0.0,
        int(kind == "unknown"),
        count_tokens(run.usage) if kind == "unknown" else 0,
    )
