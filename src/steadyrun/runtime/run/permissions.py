"""Computes the rights of an agent with its provider, and finds violations of them."""

from collections.abc import Sequence

from msgspec.structs import replace

from steadyrun.dialect import EnforcedRights, Refused
from steadyrun.driver import DriverOutput, Launcher
from steadyrun.errors import AbilityMissing
from steadyrun.model.agent import Agent
from steadyrun.model.event import Emitted, PolicyViolated, ToolCompleted
from steadyrun.model.policy import Permissions, Rights, compute_rights, find_breach


def apply_permissions(
    launcher: Launcher, agent: Agent, file: Permissions | None = None, *, one_shot: bool = False
) -> tuple[Agent, tuple[str, ...]]:
    """The agent with the policy that its provider enforces, and notes about it. Raises
    `AbilityMissing` if the provider cannot enforce it."""
    wanted = compute_rights(agent.policy, file)
    kept = require_enforced(
        agent.provider, launcher.enforce(agent.provider, wanted, one_shot=one_shot)
    )
    policy = replace(
        agent.policy, mode=kept.mode, tier=None, allowed_tools=wanted.tools, deny=wanted.deny
    )
    return replace(agent, policy=policy), kept.notes


def require_enforced(
    provider: str, found: EnforcedRights | Refused, *, asked: str = "the limit of its tools"
) -> EnforcedRights:
    """How a provider enforces rights; raises `AbilityMissing` with the reason if it cannot."""
    if isinstance(found, Refused):
        raise AbilityMissing(provider, "tools", asked=asked, why=found.reason)
    return found


def with_breaches(output: Sequence[DriverOutput], held: Rights) -> list[DriverOutput]:
    """The output, with a `PolicyViolated` after each tool that was used against these rights.

    A tool that failed may have been refused, and is no violation."""
    found: list[DriverOutput] = []
    place, moved = None, 0
    for each in output:
        if type(each) is not Emitted:
            found.append(each)
            continue
        # The events of one frame are numbered: an added event moves the later ones.
        place, moved = each.place, moved if each.place == place else 0
        found.append(replace(each, n=each.n + moved) if moved else each)
        event = each.event
        rule = find_breach(held, event.tool_name) if type(event) is ToolCompleted else None
        if rule:
            moved += 1
            violated = PolicyViolated(rule, event.tool_name)  # type: ignore[union-attr]
            found.append(replace(each, n=each.n + moved, event=violated))
    return found
