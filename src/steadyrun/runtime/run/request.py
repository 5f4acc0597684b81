"""Builds the agent of a direct run from the options of a caller.

Every check happens before the run is stored: an option that cannot be met is a named error.
"""

import msgspec
from msgspec.structs import replace

from steadyrun.errors import AbilityMissing, InvalidUsage, MessageTooLong
from steadyrun.model.agent import Agent
from steadyrun.model.budget import Budget
from steadyrun.model.ids import RunId
from steadyrun.model.policy import Policy, compute_rights
from steadyrun.model.text import encode_utf8
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.run.options import NEEDS, RunOptions
from steadyrun.runtime.run.permissions import apply_permissions, require_enforced

# As JSON. A keeper accepts frames of 64 MB, and a frame contains more than the message.
_LONGEST_BYTES = 60 * 1024 * 1024


def validate_prompt(text: str) -> None:
    encode_utf8(text)
    size = len(msgspec.json.encode(text))
    if size > _LONGEST_BYTES:
        raise MessageTooLong(found=size, most=_LONGEST_BYTES)


async def build_direct_agent(
    deps: Deps, run: RunId, provider: str, home: str, options: RunOptions, role: str | None = None
) -> Agent:
    """Build the agent of a direct run, which is named like the run."""
    options = await _with_model(deps, provider, home, options)
    _check_abilities(deps, provider, options)
    agent = _build_agent(deps, run, provider, home, options)
    enforced = deps.launcher.enforce(provider, compute_rights(agent.policy))
    require_enforced(provider, enforced, asked="tools")
    if role is not None:
        agent = replace(agent, role=role)
        await _check_role(deps, agent)
    return agent


async def _with_model(deps: Deps, provider: str, home: str, options: RunOptions) -> RunOptions:
    """Add the model of the conversation to resume, or else the model of the configuration, unless
    the caller names one."""
    model = await _find_conversation_model(deps, provider, home, options)
    model = model or deps.launcher.find_model(provider)
    return options if model is None else {**options, "model": options.get("model", model)}


async def _find_conversation_model(
    deps: Deps, provider: str, home: str, options: RunOptions
) -> str | None:
    """Find the model of the conversation to resume, which must belong to this directory."""
    resume = options.get("resume")
    sessions = await deps.store.sessions(provider=provider, token=resume) if resume else {}
    token = sessions[provider].current if provider in sessions else None
    if token is None:
        return None
    if token.cwd != home and not options.get("or_fresh"):
        raise InvalidUsage(
            f"the conversation {resume} belongs to {token.cwd}, not to {home}",
            hint="Resume it there, or allow a new one with or_fresh.",
        )
    return token.model or None if "model" in deps.launcher.find_abilities(provider) else None


def _check_abilities(deps: Deps, provider: str, options: RunOptions) -> None:
    abilities = deps.launcher.find_abilities(provider)
    for option in options:
        need = NEEDS.get(option)
        is_default = option == "mode" and options["mode"] == "default"
        if need and not is_default and need not in abilities:
            raise AbilityMissing(provider, need, asked=option)


async def _check_role(deps: Deps, agent: Agent) -> None:
    """Check that the files of the role can be read, and that the provider takes a system prompt."""
    if "system" not in deps.launcher.find_abilities(agent.provider):
        raise AbilityMissing(agent.provider, "system", asked="role")
    prompt = await deps.load_system_prompt(agent)
    apply_permissions(deps.launcher, agent, prompt.permissions)


def _build_agent(deps: Deps, run: RunId, provider: str, home: str, options: RunOptions) -> Agent:
    tools = options.get("tools")
    policy = Policy(
        options.get("mode", "default"),
        None if tools is None else tuple(tools),
        Budget(run=options.get("max_cost_usd")),
    )
    return Agent(
        deps.ids.make_agent(),
        run,
        (provider,),
        home,
        options.get("model"),
        policy,
        options.get("system"),
        options.get("max_turns"),
        is_direct=True,
    )
