"""Agents, sessions and pauses of the reference store."""

from msgspec.structs import replace

from steadyrun.errors import NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Lease
from steadyrun.model.session import ResumeToken, Session
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
            stored = rules.require_present(t.agents.get(agent.id), agent.id)
            rules.require_unchanged(stored, agent, was)
            tables.require_free_name(t, agent)
            t.agents[agent.id] = agent

    async def remove_agent(self, agent: AgentId) -> None:
        with self._begin_transaction([agent]) as t:
            stored = rules.require_present(t.agents.get(agent), agent)
            rules.require_idle(stored, tables.find_lane(t, agent))
            approvals.withdraw_of_agent(t, agent)
            t.agents[agent] = replace(stored, removed_at=self._clock.now())
            del t.lanes[agent]

    async def agent(self, name: str) -> Agent:
        for agent in self._tables.agents.values():
            if name == agent.id or (name == agent.name and agent.removed_at is None):
                return agent
        raise NotFound("agent", name)

    async def agents(self) -> list[Agent]:
        agents = self._tables.agents.values()
        lasting = [a for a in agents if not a.is_direct and a.removed_at is None]
        return sorted(lasting, key=lambda a: a.name)

    async def session(self, agent: AgentId, provider: str) -> Session | None:
        return self._tables.sessions.get((agent, provider))

    async def token(self, provider: str, token: str) -> ResumeToken | None:
        sessions = sorted(self._tables.sessions.items(), reverse=True)
        current = [each.current for (_, name), each in sessions if name == provider]
        return next((each for each in current if each and each.token == token), None)

    async def retire_token(self, lease: Lease, provider: str, reason: str) -> None:
        with self._begin_transaction([lease.agent]) as t:
            rules.require_owner(t.lanes.get(lease.agent), lease)
            session = t.sessions.get((lease.agent, provider))
            if session:
                clean = self._scrubber.clean(reason)
                t.sessions[lease.agent, provider] = session.retire(clean)

    async def lane(self, agent: AgentId) -> Lane:
        return tables.find_lane(self._tables, agent)

    async def pause(self, agent: AgentId) -> None:
        with self._begin_transaction([agent]) as t:
            approvals.pause(t, agent)

    async def resume(self, agent: AgentId) -> None:
        with self._begin_transaction([agent]) as t:
            tables.set_paused(t, agent, is_paused=False)
