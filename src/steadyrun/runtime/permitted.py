"""What may an agent do with the provider it has, and with what is in its home now?"""

from msgspec.structs import replace

from steadyrun.errors import AbilityMissing
from steadyrun.model.agent import Agent
from steadyrun.model.policy import Permissions, rights
from steadyrun.provider import Drivers, Enforced, Refused


def permitted(
    drivers: Drivers, agent: Agent, file: Permissions | None = None, *, one_shot: bool = False
) -> tuple[Agent, tuple[str, ...]]:
    """The agent with the policy that its provider will keep to, and what is to be told of that; or
    `AbilityMissing`."""
    wanted = rights(agent.policy, file)
    kept = require_kept(agent.provider, drivers.enforce(agent.provider, wanted, one_shot=one_shot))
    policy = replace(
        agent.policy, mode=kept.mode, tier=None, allowed_tools=wanted.tools, deny=wanted.deny
    )
    return replace(agent, policy=policy), kept.notes


def require_kept(
    provider: str, found: Enforced | Refused, *, asked: str = "the limit of its tools"
) -> Enforced:
    """How a provider keeps to rights; `AbilityMissing` says why it cannot."""
    if isinstance(found, Refused):
        raise AbilityMissing(provider, "tools", asked=asked, why=found.reason)
    return found
