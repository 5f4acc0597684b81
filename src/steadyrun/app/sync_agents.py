"""Updates the agents of the store from the configuration.

An agent that is no longer in the configuration is paused, not removed: its record and its queue
stay, and it is resumed when it is back.
"""

import os
from collections.abc import Mapping

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.app.providers import make_dialect
from steadyrun.config import AgentSettings, Config
from steadyrun.dialect import Ability
from steadyrun.errors import AbilityMissing, NameTaken
from steadyrun.model.agent import RETIRED, Agent
from steadyrun.model.budget import Budget
from steadyrun.model.ids import AgentId, Ids
from steadyrun.model.policy import Policy, compute_rights
from steadyrun.runtime.prompt.system import require_home, require_role
from steadyrun.runtime.run.permissions import require_enforced
from steadyrun.store import Store

_NOT_YET = AgentId("")


# Stored for an agent that was already paused when it was removed from the configuration.
_WAS_PAUSED = b"was paused"


class SyncReport(Struct, frozen=True):
    """The names of the agents that were changed; `paused` has the reasons."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    paused: Mapping[str, str] = {}


async def sync_agents(config: Config, store: Store, ids: Ids) -> SyncReport:
    """Add, change, resume and pause agents; those that were added by hand are not touched.

    If any agent cannot work, because its home or role is missing, its name is taken or its provider
    lacks an ability, no agent is changed. A second call changes nothing.
    """
    wanted = await anyio.to_thread.run_sync(_build_agents, config)
    known = {agent.name: agent for agent in await store.agents()}
    for name in wanted:
        if name in known and known[name].origin != "config":
            hint = f"Rename agents.{name} in the configuration, or: steadyrun agent rm {name}"
            raise NameTaken(name, hint=hint)
    added, changed, resumed = [], [], []
    for name, agent in wanted.items():
        if name not in known:
            await store.add_agent(replace(agent, id=ids.make_agent()))
            added.append(name)
            continue
        updated = replace(agent, id=known[name].id)
        if updated != known[name]:
            await store.set_agent(updated, was=known[name])
            changed.append(name)
        if await _resume_agent(store, known[name].id):
            resumed.append(name)
    gone = [agent for name, agent in known.items() if name not in wanted]
    paused = {
        agent.name: await _retire_agent(store, agent) for agent in gone if agent.origin == "config"
    }
    return SyncReport(tuple(added), tuple(changed), tuple(resumed), paused)


def _build_agents(config: Config) -> dict[str, Agent]:
    return {name: _build_agent(config, name, each) for name, each in config.settings.agents.items()}


def _build_agent(config: Config, name: str, settings: AgentSettings) -> Agent:
    agent = Agent(
        _NOT_YET,
        name,
        (settings.provider, *settings.fallback),
        os.path.realpath(config.resolve_agent_home(name)),
        settings.model,
        Policy(
            settings.mode, settings.tools, settings.budget, tier=settings.tier, deny=settings.deny
        ),
        settings.system,
        role=settings.role,
        followup=settings.followup,
        on_lost=settings.on_lost,
        on_limited=settings.on_limited,
        approvers=settings.approvers,
        wall_seconds=settings.wall_seconds,
        origin="config",
    )
    for provider in agent.providers:
        _check_provider(config, provider, agent)
    require_home(agent)
    if agent.role is not None:
        require_role(agent.role, config.locations.home)
    return agent


def _check_provider(config: Config, provider: str, agent: Agent) -> None:
    """Check that the provider has the abilities of the agent and can enforce its rights."""
    dialect, policy = make_dialect(config, provider), agent.policy
    needs: dict[Ability, tuple[str, bool]] = {
        "modes": ("mode", policy.mode != "default"),
        "model": ("model", agent.model is not None),
        "usage": ("budget", policy.budget != Budget()),
    }
    for ability, (setting, is_asked) in needs.items():
        if is_asked and ability not in dialect.abilities:
            raise AbilityMissing(provider, ability, asked=f"agents.{agent.name}.{setting}")
    asked = f"tier, tools and deny of agents.{agent.name}"
    require_enforced(provider, dialect.enforce(compute_rights(policy)), asked=asked)


async def _retire_agent(store: Store, agent: Agent) -> str:
    """Pause an agent, and store whether it was paused before: then it is not resumed later."""
    if not await store.get(RETIRED + agent.id):
        was_paused = (await store.lane(agent.id)).is_paused
        await store.put(RETIRED + agent.id, _WAS_PAUSED if was_paused else b"yes")
    await store.set_paused(agent.id, is_paused=True)
    return (
        f"agents.{agent.name} is no longer in the configuration: add it again, "
        f"or: steadyrun agent rm {agent.name}"
    )


async def _resume_agent(store: Store, agent: AgentId) -> bool:
    """Resume an agent that was paused because it was not in the configuration."""
    retired = await store.get(RETIRED + agent)
    if not retired:
        return False
    if retired != _WAS_PAUSED:
        await store.set_paused(agent, is_paused=False)
    await store.put(RETIRED + agent, b"")
    return retired != _WAS_PAUSED
