"""What does the reference answer to those who only read?"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, tzinfo

from steadyrun.errors import NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.approval import UNSETTLED, Approval
from steadyrun.model.event import StoredEvent
from steadyrun.model.gate import Accounts, Gate, is_present_account
from steadyrun.model.ids import AgentId, ApprovalId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import Item
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.model.session import ResumeToken, Session
from steadyrun.model.usage import Cost, UsageSum
from steadyrun.store import (
    PAGE,
    AgentOverview,
    Grouping,
    Holder,
    Lane,
    LaneSnapshot,
    PendingRequests,
)
from steadyrun.stores.memory import tables as rows
from steadyrun.stores.memory.tables import Tables


class MemoryReads:
    """The verbs that only read."""

    def __init__(self, tables: Tables, accounts: Accounts) -> None:
        self.accounts = accounts
        self._tables = tables

    async def agent(self, name: str) -> Agent:
        for agent in self._tables.agents.values():
            if name == agent.id or (name == agent.name and agent.removed_at is None):
                return agent
        raise NotFound("agent", name)

    async def agents(self) -> list[Agent]:
        agents = self._tables.agents.values()
        lasting = [a for a in agents if not a.is_direct and a.removed_at is None]
        return sorted(lasting, key=lambda a: a.name)

    async def agent_overviews(
        self, since: datetime, *, agent: AgentId | None = None
    ) -> list[AgentOverview]:
        chosen = [each for each in await self.agents() if agent in {None, each.id}]
        return [
            AgentOverview(
                each,
                rows.lane_of(self._tables, each.id),
                await self.session(each.id, each.provider),
                *rows.going_on(self._tables, each.id),
                await self.usage(agent=each.id, since=since),
            )
            for each in chosen
        ]

    async def token(self, provider: str, token: str) -> ResumeToken | None:
        sessions = sorted(self._tables.sessions.items(), reverse=True)
        current = [each.current for (_, name), each in sessions if name == provider]
        return next((each for each in current if each and each.token == token), None)

    async def session(self, agent: AgentId, provider: str) -> Session | None:
        return self._tables.sessions.get((agent, provider))

    async def item(self, item: ItemId) -> Item:
        return rows.item_of(self._tables, item)

    async def items(
        self,
        agent: AgentId | None = None,
        *,
        include_settled: bool = False,
        before: ItemId | None = None,
        limit: int = PAGE,
    ) -> list[Item]:
        found = [
            item
            for item in self._tables.items.values()
            if agent in {None, item.agent}
            and (include_settled or not item.is_settled)
            and (before is None or item.id < before)
        ]
        return sorted(found, key=lambda i: i.id, reverse=True)[:limit]

    async def lane(self, agent: AgentId) -> Lane:
        return rows.lane_of(self._tables, agent)

    async def holders(self) -> list[Holder]:
        return sorted(self._tables.holders.values(), key=lambda h: h.id)

    async def pending_requests(self, holder: HolderId) -> list[PendingRequests]:
        lanes = [lane for lane in self._tables.lanes.values() if lane.status == "held"]
        calls = [rows.call_on(self._tables, lane) for lane in lanes if lane.holder == holder]
        wanted = [each for each in calls if each.cancelled or each.has_steerable or each.answers]
        return sorted(wanted, key=lambda call: call.agent)

    async def run(self, run: RunId) -> Run:
        if run not in self._tables.runs:
            raise NotFound("run", run)
        return self._tables.runs[run]

    async def runs(
        self, agent: AgentId | None = None, *, before: RunId | None = None, limit: int = 50
    ) -> list[Run]:
        found = [
            run
            for run in self._tables.runs.values()
            if agent in {None, run.agent} and (before is None or run.id < before)
        ]
        return sorted(found, key=lambda r: r.id, reverse=True)[:limit]

    async def runs_like(self, prefix: str, limit: int = 2) -> list[Run]:
        found = [run for run in self._tables.runs.values() if run.id.startswith(prefix)]
        return sorted(found, key=lambda r: r.id)[:limit]

    async def run_costs(self, runs: Collection[RunId]) -> dict[RunId, Cost]:
        known = self._tables.runs
        return {run: known[run].cost for run in runs if run in known}

    async def process(self, process: ProcessId) -> Process:
        if process not in self._tables.processes:
            raise NotFound("process", process)
        return self._tables.processes[process]

    async def open_processes(self, agent: AgentId | None = None) -> list[Process]:
        return rows.open_processes(self._tables, agent)

    async def events(
        self,
        after: int = 0,
        *,
        agent: AgentId | None = None,
        run: RunId | None = None,
        limit: int = PAGE,
    ) -> list[StoredEvent]:
        found = [e for e in self._placed(agent, run) if e.cursor > after]
        return [self._stored(e) for e in found[:limit]]

    async def last_events(
        self, *, agent: AgentId | None = None, run: RunId | None = None, limit: int = 50
    ) -> list[StoredEvent]:
        placed = self._placed(agent, run)
        return [self._stored(e) for e in placed[max(0, len(placed) - limit) :]]

    async def lane_snapshots(
        self, lanes: Mapping[AgentId, RunId | None]
    ) -> dict[AgentId, LaneSnapshot]:
        return {agent: rows.known(self._tables, agent, run) for agent, run in lanes.items()}

    async def usage(
        self, *, agent: AgentId | None = None, since: datetime | None = None
    ) -> UsageSum:
        total = UsageSum()
        for run in self._tables.runs.values():
            if agent in {None, run.agent} and (since is None or run.created_at >= since):
                total = rows.added(total, run)
        return total

    async def approval(self, approval: ApprovalId) -> Approval:
        if approval not in self._tables.approvals:
            raise NotFound("approval", approval)
        return self._tables.approvals[approval]

    async def approvals(
        self, agent: AgentId | None = None, *, include_settled: bool = False, limit: int = PAGE
    ) -> list[Approval]:
        found = [
            each
            for each in self._newest_approvals()
            if agent in {None, each.agent} and (include_settled or each.status in UNSETTLED)
        ]
        return found[:limit]

    async def approvals_like(self, part: str, limit: int = 2) -> list[Approval]:
        found = self._newest_approvals()
        return [a for a in found if a.id.startswith(part) or a.id.endswith(part)][:limit]

    def _newest_approvals(self) -> list[Approval]:
        found = self._tables.approvals.values()
        return sorted(found, key=lambda a: (a.asked_at, a.id), reverse=True)

    async def usage_by(
        self,
        by: Grouping,
        *,
        agent: AgentId | None = None,
        since: datetime | None = None,
        zone: tzinfo = UTC,
    ) -> dict[str, UsageSum]:
        totals: dict[str, UsageSum] = {}
        for run in self._tables.runs.values():
            owner = self._tables.agents[run.agent]
            names: dict[Grouping, str] = {
                "agent": "" if owner.is_direct else owner.name,
                "provider": run.provider,
                "model": run.model or "",
                "day": run.created_at.astimezone(zone).date().isoformat(),
            }
            if agent in {None, run.agent} and (since is None or run.created_at >= since):
                name = names[by]
                totals[name] = rows.added(totals.get(name, UsageSum()), run)
        return totals

    async def get(self, key: str) -> bytes | None:
        return self._tables.kv.get(key)

    async def gates(self, *, include_others: bool = False) -> list[Gate]:
        found = sorted(self._tables.gates.items())
        return [g for key, g in found if include_others or is_present_account(*key, self.accounts)]

    def _placed(self, agent: AgentId | None, run: RunId | None) -> list[rows.Placed]:
        return [e for e in self._tables.events if agent in {None, e.agent} and run in {None, e.run}]

    def _stored(self, placed: rows.Placed) -> StoredEvent:
        emitted = placed.emitted
        return StoredEvent(
            cursor=placed.cursor,
            seq=placed.seq,
            id=placed.id,
            at=emitted.at,
            agent=self._tables.agents[placed.agent].name if placed.agent else None,
            run=placed.run,
            provider=self._tables.runs[placed.run].provider if placed.run else None,
            event=emitted.event,
        )
