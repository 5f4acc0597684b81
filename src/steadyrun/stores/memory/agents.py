"""Agents, sessions and pauses of the reference store."""

from msgspec.structs import replace

from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Lease
from steadyrun.model.session import Session
from steadyrun.store import Lane
from steadyrun.stores import rules
from steadyrun.stores.memory import approvals, tables
from steadyrun.stores.memory.base import MemoryBase


class MemoryAgents(MemoryBase):
    """The verbs of `AgentStore`."""

    async def add_agent(self, agent: Agent) -> None:
        with self._begin_transaction([agent.id]) as t:
            tables.add_agent(t, agent)

    async def set_agent(self, agent: Agent, *, was: Agent) -> None:
        with self._begin_transaction([agent.id]) as t:
            tables.replace_agent(t, agent, was)

    async def remove_agent(self, agent: AgentId) -> None:
        with self._begin_transaction([agent]) as t:
            stored = rules.require_present(t.agents.get(agent), agent)
            rules.require_idle(stored, tables.find_lane(t, agent))
            approvals.withdraw_for_agent(t, agent)
            t.agents[agent] = replace(stored, removed_at=self._clock.now())
            del t.lanes[agent]

    async def agent(self, name: str) -> Agent:
        agents = self._tables.agents.values()
        found = (a for a in agents if name == a.id or (name == a.name and a.removed_at is None))
        return rules.require_found(next(found, None), "agent", name)

    async def agents(self) -> list[Agent]:
        agents = self._tables.agents.values()
        lasting = [a for a in agents if not a.is_direct and a.removed_at is None]
        return sorted(lasting, key=lambda a: a.name)

    async def sessions(
        self,
        agent: AgentId | None = None,
        *,
        provider: str | None = None,
        token: str | None = None,
    ) -> dict[str, Session]:
        return {
            name: session
            for (owner, name), session in sorted(self._tables.sessions.items())
            if agent in {None, owner}
            and provider in {None, name}
            and (token is None or (session.current and session.current.token == token))
        }

    async def retire_token(self, lease: Lease, provider: str, reason: str) -> None:
        with self._begin_transaction([lease.agent]) as t:
            rules.require_owner(t.lanes.get(lease.agent), lease)
            session = t.sessions.get((lease.agent, provider))
            if session:
                clean = self._scrubber.clean(reason)
                t.sessions[lease.agent, provider] = session.retire(clean)

    async def lane(self, agent: AgentId) -> Lane:
        return tables.find_lane(self._tables, agent)

    async def set_paused(self, agent: AgentId, *, is_paused: bool) -> None:
        with self._begin_transaction([agent]) as t:
            approvals.set_paused(t, agent, is_paused=is_paused)
