"""What may an agent do with the provider it has, and with what is in its home now?"""

from collections.abc import Sequence

from msgspec.structs import replace

from steadyrun.dialect import EnforcedRights, Refused
from steadyrun.driver import DriverOutput, Launcher
from steadyrun.errors import AbilityMissing
from steadyrun.model.agent import Agent
from steadyrun.model.event import Emitted, PolicyViolated, ToolCompleted
from steadyrun.model.policy import Permissions, Rights, compute_rights, find_breach


def permitted(
    drivers: Launcher, agent: Agent, file: Permissions | None = None, *, one_shot: bool = False
) -> tuple[Agent, tuple[str, ...]]:
    """The agent with the policy that its provider will keep to, and what is to be told of that; or
    `AbilityMissing`."""
    wanted = compute_rights(agent.policy, file)
    kept = require_kept(agent.provider, drivers.enforce(agent.provider, wanted, one_shot=one_shot))
    policy = replace(
        agent.policy, mode=kept.mode, tier=None, allowed_tools=wanted.tools, deny=wanted.deny
    )
    return replace(agent, policy=policy), kept.notes


def require_kept(
    provider: str, found: EnforcedRights | Refused, *, asked: str = "the limit of its tools"
) -> EnforcedRights:
    """How a provider keeps to rights; `AbilityMissing` says why it cannot."""
    if isinstance(found, Refused):
        raise AbilityMissing(provider, "tools", asked=asked, why=found.reason)
    return found


def with_breaches(heard: Sequence[DriverOutput], held: Rights) -> list[DriverOutput]:
    """What was heard; behind each tool that was used against these rights, that it was.

    A tool that failed may have been refused, and is none."""
    found: list[DriverOutput] = []
    place, moved = None, 0
    for each in heard:
        if type(each) is not Emitted:
            found.append(each)
            continue
        # Those of one frame are counted: what comes later in it moves on.
        place, moved = each.place, moved if each.place == place else 0
        found.append(replace(each, n=each.n + moved) if moved else each)
        event = each.event
        rule = find_breach(held, event.tool_name) if type(event) is ToolCompleted else None
        if rule:
            moved += 1
            violated = PolicyViolated(rule, event.tool_name)  # type: ignore[union-attr]
            found.append(replace(each, n=each.n + moved, event=violated))
    return found
