"""Adds, shows, changes, removes, pauses and resumes agents."""

from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import asdict, replace

from steadyrun.errors import (
    AbilityMissing,
    ChangeRefused,
    Conflict,
    InvalidUsage,
    ReadOnly,
)
from steadyrun.model.agent import NAME_RULE, RETIRED, Agent, OnLimited, is_agent_name
from steadyrun.model.budget import Budget, parse_budget
from steadyrun.model.item import Followup, OnLost
from steadyrun.model.policy import Mode, Policy, Tier, check_tool_names, check_tools, compute_rights
from steadyrun.model.quotation import quote
from steadyrun.model.session import Session
from steadyrun.model.validation import check_timeout
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import (
    AgentDocument,
    AgentPage,
    AgentsDocument,
    RemovedDocument,
    TokenDocument,
)
from steadyrun.operations.fields import arg
from steadyrun.operations.gates import (
    CloseGateRequest,
    OpenGateRequest,
    close_gate,
    open_gate,
    require_provider,
)
from steadyrun.operations.lookup import (
    explain_question,
    find_agent,
    find_budget_question,
)
from steadyrun.operations.views import build_agent_document, build_agent_documents
from steadyrun.runtime.prompt.system import require_home, require_role
from steadyrun.runtime.run.permissions import require_enforced

# A name with one of these prefixes would look like an id.
_ID_PREFIXES = ("agt_", "run_", "itm_", "prc_", "hld_")
_CLEARED = {
    "role": "role", "model": "model", "fallback": "fallback", "timeout": "wall_seconds",
    "system": "system", "budget": "policy", "tier": "policy", "tools": "policy", "deny": "policy",
    "approvers": "approvers",
}  # fmt: skip
_CLEARED_OTHERWISE = ("fallback", "policy")
# The settings that have the same name in a request and in the agent.
_SAME_NAME = (
    "home", "role", "model", "system", "followup", "on_lost", "on_limited", "approvers",
)  # fmt: skip
# Lists that must not be empty. An empty list of tools is valid: it allows no tools.
_NEVER_EMPTY = ("deny", "fallback", "budget", "approvers", "clear")

NameArg = Annotated[str, arg("the name of the agent", metavar="NAME")]
RoleArg = Annotated[str | None, arg("the role: a file in roles/", metavar="ROLE")]
ModelArg = Annotated[str | None, arg("the model of the provider", metavar="MODEL")]
FallbackArg = Annotated[
    tuple[str, ...] | None,
    arg("providers to use while the first one is not available", metavar="P,…"),
]
TimeoutArg = Annotated[
    float | None, arg("the time limit of a run: 500ms, 6s, 10m, 2h", metavar="DURATION")
]
BudgetArg = Annotated[
    tuple[str, ...] | None,
    arg("spending limits: run, agent, day, month in USD, run_tokens, …", metavar="day=5,…"),
]
TierArg = Annotated[Tier | None, arg("the tier of tools; custom requires --tools", metavar="TIER")]
ToolsArg = Annotated[
    tuple[str, ...] | None, arg("allow only these tools; '' allows none", metavar="A,B")
]
DenyArg = Annotated[tuple[str, ...] | None, arg("tools that are never allowed", metavar="A,B")]
ApproversArg = Annotated[
    tuple[str, ...] | None,
    arg("users who may answer its requests: cli:USER,… (all)", metavar="WHO,…"),
]
SystemArg = Annotated[str | None, arg("text added to the system prompt", metavar="TEXT")]


class AddAgentRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: NameArg
    provider: Annotated[
        str, arg("the provider: see `steadyrun providers`", metavar="P", flag="--provider")
    ]
    home: Annotated[str, arg("the working directory", metavar="DIR", flag="--home", kind="path")]
    role: RoleArg = None
    model: ModelArg = None
    mode: Annotated[Mode, arg("what is allowed without approval", metavar="MODE")] = "default"
    tier: TierArg = None
    tools: ToolsArg = None
    deny: DenyArg = None
    fallback: FallbackArg = None
    followup: Annotated[Followup, arg("whether a new message may join the current run (steer)")] = (
        "steer"
    )
    on_lost: Annotated[
        OnLost, arg("what happens to a message whose run was lost (resume)")
    ] = "resume"  # fmt: skip
    on_limited: Annotated[
        OnLimited, arg("whether to wait or to pause after a rate limit (wait)")
    ] = "wait"
    budget: BudgetArg = None
    approvers: ApproversArg = None
    timeout: TimeoutArg = None
    system: SystemArg = None


class AgentRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: NameArg


class SetAgentRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field that is None is not changed."""

    name: NameArg
    provider: Annotated[str | None, arg("the provider: see `steadyrun providers`", metavar="P")] = (
        None
    )
    home: Annotated[
        str | None, arg("the working directory", metavar="DIR", kind="path")
    ] = None  # fmt: skip
    role: RoleArg = None
    model: ModelArg = None
    mode: Annotated[Mode | None, arg("what is allowed without approval", metavar="MODE")] = None
    tier: TierArg = None
    tools: ToolsArg = None
    deny: DenyArg = None
    fallback: FallbackArg = None
    followup: Annotated[Followup | None, arg("whether a new message may join the current run")] = (
        None
    )
    on_lost: Annotated[
        OnLost | None, arg("what happens to a message whose run was lost")
    ] = None  # fmt: skip
    on_limited: Annotated[
        OnLimited | None, arg("whether to wait or to pause after a rate limit")
    ] = None
    budget: BudgetArg = None
    approvers: ApproversArg = None
    timeout: TimeoutArg = None
    system: SystemArg = None
    clear: Annotated[
        tuple[str, ...] | None,
        arg(f"settings to remove: {', '.join(_CLEARED)}", metavar="A,B"),
    ] = None


class ListAgentsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The request has no fields."""


class AgentSelection(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str | None, arg("the name of the agent", metavar="AGENT", is_word=True)] = None
    all: Annotated[bool, arg("all agents")] = False
    provider: Annotated[
        str | None,
        arg("the gate of a provider, for all agents that use it", metavar="P", flag="--provider"),
    ] = None


async def add(context: OperationContext, request: AddAgentRequest) -> AgentDocument:
    _check_name(request.name)
    _check_lists(request, hint="Leave it out.")
    agent = Agent(
        context.ids.make_agent(),
        request.name,
        (request.provider, *(request.fallback or ())),
        request.home,
        request.model,
        Policy(
            request.mode,
            request.tools,
            _parse_budget(request.budget or ()),
            tier=request.tier,
            deny=request.deny or (),
        ),
        request.system,
        role=request.role,
        followup=request.followup,
        on_lost=request.on_lost,
        on_limited=request.on_limited,
        approvers=request.approvers or (),
        wall_seconds=request.timeout,
    )
    await _check_agent(context, agent)
    await context.store.add_agent(agent)
    return await build_agent_document(context, agent)


async def show(context: OperationContext, request: AgentRequest) -> AgentPage:
    agent = await find_agent(context, request.name)
    fields = asdict(await build_agent_document(context, agent))
    sessions = await context.store.sessions(agent.id)
    tokens = tuple(
        token
        for provider in agent.providers
        if provider in sessions
        for token in _build_tokens(sessions[provider])
    )
    return AgentPage(
        **fields, system=agent.system, timeout_seconds=agent.wall_seconds, tokens=tokens
    )


async def change(context: OperationContext, request: SetAgentRequest) -> AgentDocument:
    was = await find_agent(context, request.name)
    if was.origin == "config":
        raise ReadOnly(was.name)
    agent = _apply_changes(was, request)
    await _check_agent(context, agent)
    await context.store.set_agent(agent, was=was)
    return await build_agent_document(context, agent)


async def remove(context: OperationContext, request: AgentRequest) -> RemovedDocument:
    agent = await find_agent(context, request.name)
    is_retired = bool(await context.store.get(RETIRED + agent.id))
    if agent.origin == "config" and not is_retired:
        raise ReadOnly(agent.name)
    if context.daemon:
        # An idle process of the agent is closed first.
        await context.daemon.release(agent.id)
    try:
        await context.store.remove_agent(agent.id)
    except ChangeRefused as refused:
        if (await context.store.lane(agent.id)).status == "warm":
            hint = "Its daemon was killed. A new one closes the process: steadyrun up"
            raise Conflict(f"{agent.name} still has a process", hint=hint) from refused
        hint = f"Cancel the work, or wait for it: steadyrun inbox {agent.name}"
        raise Conflict(f"{agent.name} has work: {refused.found}", hint=hint) from refused
    return RemovedDocument(agent.id, agent.name)


async def list_agents(context: OperationContext, _: ListAgentsRequest) -> AgentsDocument:
    return AgentsDocument(await build_agent_documents(context))


async def pause(context: OperationContext, request: AgentSelection) -> AgentsDocument:
    chosen = await _choose_agents(context, request)
    if request.provider is not None:
        await close_gate(context, CloseGateRequest(request.provider))
    for agent in chosen if request.provider is None else ():
        await context.store.set_paused(agent.id, is_paused=True)
    return AgentsDocument(await build_agent_documents(context, chosen))


async def resume(context: OperationContext, request: AgentSelection) -> AgentsDocument:
    """End a pause. An agent that has spent its budget needs an approval instead."""
    chosen = await _choose_agents(context, request)
    if request.provider is not None:
        await open_gate(context, OpenGateRequest(request.provider))
    for agent in chosen if request.provider is None else ():
        refused = await _find_resume_conflict(context, agent)
        if refused is None:
            await context.store.set_paused(agent.id, is_paused=False)
        elif request.name is not None:
            raise refused
    return AgentsDocument(await build_agent_documents(context, chosen))


async def _find_resume_conflict(context: OperationContext, agent: Agent) -> Conflict | None:
    """Return the error if the agent cannot be resumed by a command."""
    missing = [name for name in agent.providers if context.abilities(name) is None]
    if missing:
        hint = (
            f"Configure providers.{missing[0]}, or: steadyrun agent set {agent.name} --provider P"
        )
        return Conflict(
            f"{agent.name} needs the provider {missing[0]!r}, which does not exist", hint=hint
        )
    if await context.store.get(RETIRED + agent.id):
        hint = f"Add it to the configuration again, or: steadyrun agent rm {agent.name}"
        return Conflict(f"{agent.name} is not in the configuration any more", hint=hint)
    asked = await find_budget_question(context.store, agent.id)
    if asked is None:
        return None
    hint = f"Use steadyrun approve {asked.id}, or steadyrun deny {asked.id} --reason …"
    return Conflict(f"{agent.name} waits for an approval: {explain_question(asked)}", hint=hint)


async def build_switched(context: OperationContext, agent: Agent, provider: str) -> Agent:
    """The agent with another provider first; the previous one becomes the first fallback."""
    if provider == agent.provider:
        return agent
    if agent.origin == "config":
        raise ReadOnly(agent.name)
    switched = agent.with_provider(provider)
    await _check_agent(context, switched)
    return switched


async def _choose_agents(context: OperationContext, request: AgentSelection) -> list[Agent]:
    """Find the selected agents; with a provider, the agents that use it first."""
    if (request.name is not None) + request.all + (request.provider is not None) != 1:
        hint = "`steadyrun agents` lists them."
        raise InvalidUsage("expected an agent's name, --all or --provider", hint=hint)
    if request.name is not None:
        return [await find_agent(context, request.name)]
    if request.provider is not None:
        require_provider(context, request.provider)
    return [
        agent
        for agent in await context.store.agents()
        if request.provider in {None, agent.provider}
    ]


def _build_tokens(session: Session) -> list[TokenDocument]:
    current = () if session.current is None else (session.current,)
    return [
        TokenDocument(
            session.provider, token.token, token.cwd, token.model, token.bound_at, token.ended
        )
        for token in (*session.history, *current)
    ]


def _check_name(name: str) -> None:
    if not is_agent_name(name):
        raise InvalidUsage(f"{name!r} is not a valid agent name", hint=NAME_RULE)
    if name.startswith(_ID_PREFIXES):
        hint = f"Choose one that does not begin with {', '.join(_ID_PREFIXES)}."
        raise InvalidUsage(f"{name!r} looks like an id", hint=hint)


def _check_lists(request: AddAgentRequest | SetAgentRequest, *, hint: str) -> None:
    """Refuse an empty list. It may come from a variable that is not set, so it removes nothing."""
    for name in _NEVER_EMPTY:
        if getattr(request, name, None) == ():
            raise InvalidUsage(f"--{name} is empty", hint=hint)


def _apply_changes(was: Agent, request: SetAgentRequest) -> Agent:
    _check_lists(request, hint="Leave it out, or remove the setting with --clear.")
    clear = request.clear or ()
    unknown = [name for name in clear if name not in _CLEARED]
    if unknown:
        hint = f"It accepts: {', '.join(_CLEARED)}"
        raise InvalidUsage(f"--clear does not accept {unknown[0]!r}", hint=hint)
    twice = [name for name in clear if getattr(request, name) is not None]
    if twice:
        raise InvalidUsage(f"{twice[0]} is set and cleared at once", hint="Leave one of them out.")
    fallback = () if "fallback" in clear else request.fallback or was.providers[1:]
    new = {
        **{name: getattr(request, name) for name in _SAME_NAME},
        "wall_seconds": request.timeout,
        "policy": _apply_policy_changes(was.policy, request),
    }
    changes = {name: value for name, value in new.items() if value is not None}
    none = {
        field: () if field == "approvers" else None
        for name in clear
        if (field := _CLEARED[name]) not in _CLEARED_OTHERWISE
    }
    if not changes and not clear and not request.fallback and request.provider is None:
        raise InvalidUsage(
            "there is nothing to set", hint="`steadyrun agent set --help` lists the settings."
        )
    return replace(was, providers=(request.provider or was.provider, *fallback), **changes, **none)


def _apply_policy_changes(was: Policy, request: SetAgentRequest) -> Policy | None:
    """Apply the changes of the policy; None if there are none."""
    new: dict[str, Any] = {}
    clear = request.clear or ()
    if request.mode is not None:
        new["mode"] = request.mode
    if request.tier or request.tools is not None or {"tier", "tools"} & set(clear):
        # Tier and tools depend on each other, so a change of one resets both.
        new |= {"tier": request.tier, "allowed_tools": request.tools}
    if request.deny or "deny" in clear:
        new["deny"] = request.deny or ()
    if request.budget or "budget" in clear:
        # Limits that are not named stay as they are.
        named = asdict(_parse_budget(request.budget or ()))
        budget = Budget() if "budget" in clear else was.budget
        changes = {name: value for name, value in named.items() if value is not None}
        new["budget"] = replace(budget, **changes)
    return replace(was, **new) if new else None


def _parse_budget(words: tuple[str, ...]) -> Budget:
    try:
        return parse_budget(words)
    except ValueError as error:
        raise InvalidUsage(
            f"--budget: {error}", hint="For example: --budget day=5,run_tokens=200000"
        ) from error


async def _check_agent(context: OperationContext, agent: Agent) -> None:
    """Check everything before anything is written."""
    _check_texts(agent)
    if len(set(agent.providers)) < len(agent.providers):
        raise InvalidUsage("a provider is listed twice", hint="Name each provider once.")
    abilities, *_ = [require_provider(context, provider) for provider in agent.providers]
    if agent.policy.mode != "default" and "modes" not in abilities:
        raise AbilityMissing(agent.provider, "modes", asked="--mode")
    if agent.model is not None and "model" not in abilities:
        raise AbilityMissing(agent.provider, "model", asked="--model")
    for provider in agent.providers if agent.policy.budget != Budget() else ():
        # A fallback provider must obey the budget as well.
        if "usage" not in require_provider(context, provider):
            why = "it reports no usage, so that a budget could not be enforced"
            raise AbilityMissing(provider, "usage", asked="--budget", why=why)
    _check_rights(context, agent)
    await anyio.to_thread.run_sync(_check_files, context.home, agent)


def _check_texts(agent: Agent) -> None:
    """Check what the types of the fields do not check."""
    for name in ("model", "system"):
        text = getattr(agent, name)
        if text is not None and (not text or "\0" in text):
            raise InvalidUsage(
                f"--{name}: expected a text, found {quote(text)}", hint="Leave it out."
            )
    if not all(agent.approvers):
        raise InvalidUsage("--approvers: expected names, found ''", hint="Leave it out.")
    if agent.wall_seconds is not None and (flaw := check_timeout(agent.wall_seconds)):
        raise InvalidUsage(f"--timeout: {flaw.problem}", hint=flaw.hint)


def _check_rights(context: OperationContext, agent: Agent) -> None:
    """Check that every provider of the agent can enforce its rights."""
    policy = agent.policy
    flaw = check_tools(policy.tier, policy.allowed_tools) or check_tool_names(policy.deny)
    if flaw:
        raise InvalidUsage(flaw.problem, hint=flaw.hint)
    for provider in agent.providers:
        found = context.enforce(provider, compute_rights(policy))
        require_enforced(provider, found, asked="--tier, --tools and --deny")


def _check_files(home: Path, agent: Agent) -> None:
    if not Path(agent.home).is_absolute():
        raise InvalidUsage(
            f"expected an absolute path, found {agent.home!r}",
            hint="Use a path that begins with /.",
        )
    require_home(agent)
    if agent.role is not None:
        require_role(agent.role, home)
