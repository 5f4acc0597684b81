"""How do agents come, change, pause and go?"""

from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import asdict, replace

from steadyrun.dialect import Ability
from steadyrun.errors import (
    AbilityMissing,
    ChangeRefused,
    Conflict,
    InvalidUsage,
    ReadOnly,
)
from steadyrun.model.agent import NAME_RULE, RETIRED, Agent, OnLimited, is_agent_name
from steadyrun.model.budget import Budget, parsed
from steadyrun.model.item import Followup, OnLost
from steadyrun.model.policy import Mode, Policy, Tier, check_tool_names, check_tools, rights
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
    build_agent_document,
    build_agent_documents,
    explain_question,
    find_agent,
    find_budget_question,
)
from steadyrun.runtime.prompt.system import require_home, require_role
from steadyrun.runtime.run.permissions import require_kept

# What begins so is an id.
_ID_PREFIXES = ("agt_", "run_", "itm_", "prc_", "hld_")
_CLEARED = {
    "role": "role", "model": "model", "fallback": "fallback", "timeout": "wall_seconds",
    "system": "system", "budget": "policy", "tier": "policy", "tools": "policy", "deny": "policy",
    "approvers": "approvers",
}  # fmt: skip
_CLEARED_OTHERWISE = ("fallback", "policy")
# Lists that say nothing if they are empty. One of tools says that there are none.
_NEVER_EMPTY = ("deny", "fallback", "budget", "approvers", "clear")

NameArg = Annotated[str, arg("the agent's name", metavar="NAME")]
RoleArg = Annotated[str | None, arg("the file in roles/ that says its work", metavar="ROLE")]
ModelArg = Annotated[str | None, arg("the provider's model", metavar="MODEL")]
FallbackArg = Annotated[
    tuple[str, ...] | None, arg("who takes over where its provider cannot", metavar="P,…")
]
TimeoutArg = Annotated[
    float | None, arg("how long a run may take: 500ms, 6s, 10m, 2h", metavar="DURATION")
]
BudgetArg = Annotated[
    tuple[str, ...] | None,
    arg("how much it may spend: run, agent, day, month in USD, run_tokens, …", metavar="day=5,…"),
]
TierArg = Annotated[
    Tier | None, arg("the tools it may use; custom goes with --tools", metavar="TIER")
]
ToolsArg = Annotated[
    tuple[str, ...] | None, arg("the only tools it may use; '' is none", metavar="A,B")
]
DenyArg = Annotated[tuple[str, ...] | None, arg("tools it may not use", metavar="A,B")]
ApproversArg = Annotated[
    tuple[str, ...] | None,
    arg("who may answer what it asks: cli:USER,… (whoever can)", metavar="WHO,…"),
]
SystemArg = Annotated[str | None, arg("what it is always told", metavar="TEXT")]


class AddAgentRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: NameArg
    provider: Annotated[
        str, arg("who does its work: `steadyrun providers`", metavar="P", flag="--provider")
    ]
    home: Annotated[
        str, arg("the directory it works in", metavar="DIR", flag="--home", kind="path")
    ]
    role: RoleArg = None
    model: ModelArg = None
    mode: Annotated[Mode, arg("what it may do unasked", metavar="MODE")] = "default"
    tier: TierArg = None
    tools: ToolsArg = None
    deny: DenyArg = None
    fallback: FallbackArg = None
    followup: Annotated[
        Followup, arg("whether a message may enter a run that is going on (steer)")
    ] = "steer"
    on_lost: Annotated[
        OnLost, arg("what becomes of a message whose run was lost (resume)")
    ] = "resume"  # fmt: skip
    on_limited: Annotated[
        OnLimited, arg("whether it goes on by itself after a rate limit (wait)")
    ] = "wait"
    budget: BudgetArg = None
    approvers: ApproversArg = None
    timeout: TimeoutArg = None
    system: SystemArg = None


class AgentRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: NameArg


class SetAgentRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is None stays as it is."""

    name: NameArg
    provider: Annotated[
        str | None, arg("who does its work: `steadyrun providers`", metavar="P")
    ] = None
    home: Annotated[
        str | None, arg("the directory it works in", metavar="DIR", kind="path")
    ] = None  # fmt: skip
    role: RoleArg = None
    model: ModelArg = None
    mode: Annotated[Mode | None, arg("what it may do unasked", metavar="MODE")] = None
    tier: TierArg = None
    tools: ToolsArg = None
    deny: DenyArg = None
    fallback: FallbackArg = None
    followup: Annotated[
        Followup | None, arg("whether a message may enter a run that is going on")
    ] = None
    on_lost: Annotated[
        OnLost | None, arg("what becomes of a message whose run was lost")
    ] = None  # fmt: skip
    on_limited: Annotated[
        OnLimited | None, arg("whether it goes on by itself after a rate limit")
    ] = None
    budget: BudgetArg = None
    approvers: ApproversArg = None
    timeout: TimeoutArg = None
    system: SystemArg = None
    clear: Annotated[
        tuple[str, ...] | None,
        arg(f"what it shall have no more: {', '.join(_CLEARED)}", metavar="A,B"),
    ] = None


class ListAgentsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """There is nothing to say."""


class AgentSelection(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str | None, arg("the agent's name", metavar="AGENT", is_word=True)] = None
    all: Annotated[bool, arg("every agent")] = False
    provider: Annotated[
        str | None, arg("every agent that works with it: its gate", metavar="P", flag="--provider")
    ] = None


async def add(desk: OperationContext, given: AddAgentRequest) -> AgentDocument:
    _check_name(given.name)
    _check_lists(given, hint="Leave it out.")
    agent = Agent(
        desk.ids.agent(),
        given.name,
        (given.provider, *(given.fallback or ())),
        given.home,
        given.model,
        Policy(
            given.mode,
            given.tools,
            _parse_budget(given.budget or ()),
            tier=given.tier,
            deny=given.deny or (),
        ),
        given.system,
        role=given.role,
        followup=given.followup,
        on_lost=given.on_lost,
        on_limited=given.on_limited,
        approvers=given.approvers or (),
        wall_seconds=given.timeout,
    )
    await _check_agent(desk, agent)
    await desk.store.add_agent(agent)
    return await build_agent_document(desk, agent)


async def show(desk: OperationContext, given: AgentRequest) -> AgentPage:
    agent = await find_agent(desk, given.name)
    document = await build_agent_document(desk, agent)
    known = {name: getattr(document, name) for name in AgentDocument.__struct_fields__}
    sessions = [await desk.store.session(agent.id, provider) for provider in agent.providers]
    tokens = tuple(token for session in sessions if session for token in _build_tokens(session))
    return AgentPage(
        **known, system=agent.system, timeout_seconds=agent.wall_seconds, tokens=tokens
    )


async def change(desk: OperationContext, given: SetAgentRequest) -> AgentDocument:
    was = await find_agent(desk, given.name)
    if was.origin == "config":
        raise ReadOnly(was.name)
    agent = _apply_changes(was, given)
    await _check_agent(desk, agent)
    await desk.store.set_agent(agent, was=was)
    return await build_agent_document(desk, agent)


async def remove(desk: OperationContext, given: AgentRequest) -> RemovedDocument:
    agent = await find_agent(desk, given.name)
    is_retired = bool(await desk.store.get(RETIRED + agent.id))
    if agent.origin == "config" and not is_retired:
        raise ReadOnly(agent.name)
    if desk.daemon:
        # Its process may be waiting for what will never come.
        await desk.daemon.release(agent.id)
    try:
        await desk.store.remove_agent(agent.id)
    except ChangeRefused as refused:
        if (await desk.store.lane(agent.id)).status == "warm":
            hint = "A daemon was killed: start one, it will close it. steadyrun up"
            raise Conflict(f"{agent.name} still has a process", hint=hint) from refused
        hint = f"Cancel it, or wait for it: steadyrun inbox {agent.name}"
        raise Conflict(f"{agent.name} has work: {refused.found}", hint=hint) from refused
    return RemovedDocument(agent.id, agent.name)


async def list_agents(desk: OperationContext, _: ListAgentsRequest) -> AgentsDocument:
    return AgentsDocument(await build_agent_documents(desk))


async def pause(desk: OperationContext, given: AgentSelection) -> AgentsDocument:
    chosen = await _choose_agents(desk, given)
    if given.provider is not None:
        await close_gate(desk, CloseGateRequest(given.provider))
    for agent in chosen if given.provider is None else ():
        await desk.store.pause(agent.id)
    return AgentsDocument(await build_agent_documents(desk, chosen))


async def resume(desk: OperationContext, given: AgentSelection) -> AgentsDocument:
    """End a pause. Who has spent a budget goes on when its owner has said how."""
    chosen = await _choose_agents(desk, given)
    if given.provider is not None:
        await open_gate(desk, OpenGateRequest(given.provider))
    for agent in chosen if given.provider is None else ():
        refused = await _find_resume_conflict(desk, agent)
        if refused is None:
            await desk.store.resume(agent.id)
        elif given.name is not None:
            raise refused
    return AgentsDocument(await build_agent_documents(desk, chosen))


async def _find_resume_conflict(desk: OperationContext, agent: Agent) -> Conflict | None:
    """Why it takes more than a word to have it go on."""
    missing = [name for name in agent.providers if desk.abilities(name) is None]
    if missing:
        hint = (
            f"Configure providers.{missing[0]}, or: steadyrun agent set {agent.name} --provider P"
        )
        return Conflict(
            f"{agent.name} needs the provider {missing[0]!r}, which does not exist", hint=hint
        )
    if await desk.store.get(RETIRED + agent.id):
        hint = f"Write it there again, or: steadyrun agent rm {agent.name}"
        return Conflict(f"{agent.name} is not in the configuration any more", hint=hint)
    asked = await find_budget_question(desk.store, agent.id)
    if asked is None:
        return None
    hint = f"Allow it: steadyrun approve {asked.id}. Or not: steadyrun deny {asked.id} --reason …"
    return Conflict(f"{agent.name} waits for its owner: {explain_question(asked)}", hint=hint)


async def switch_provider(desk: OperationContext, agent: Agent, provider: str) -> Agent:
    """Let another provider do the agent's work; the one it had is the next in line."""
    if provider == agent.provider:
        return agent
    if agent.origin == "config":
        raise ReadOnly(agent.name)
    switched = agent.on(provider)
    await _check_agent(desk, switched)
    await desk.store.set_agent(switched, was=agent)
    return switched


async def _choose_agents(desk: OperationContext, given: AgentSelection) -> list[Agent]:
    """Those who are meant; with a provider, those whose work it does."""
    if (given.name is not None) + given.all + (given.provider is not None) != 1:
        hint = "`steadyrun agents` lists them."
        raise InvalidUsage("expected an agent's name, --all or --provider", hint=hint)
    if given.name is not None:
        return [await find_agent(desk, given.name)]
    if given.provider is not None:
        require_provider(desk, given.provider)
    return [
        agent for agent in await desk.store.agents() if given.provider in {None, agent.provider}
    ]


def _build_tokens(session: Session) -> list[TokenDocument]:
    present = () if session.current is None else (session.current,)
    return [
        TokenDocument(
            session.provider, token.token, token.cwd, token.model, token.bound_at, token.ended
        )
        for token in (*session.history, *present)
    ]


def _check_name(name: str) -> None:
    if not is_agent_name(name):
        raise InvalidUsage(f"{name!r} cannot be the name of an agent", hint=NAME_RULE)
    if name.startswith(_ID_PREFIXES):
        hint = f"Choose one that does not begin with {', '.join(_ID_PREFIXES)}."
        raise InvalidUsage(f"{name!r} looks like an id", hint=hint)


def _check_lists(given: AddAgentRequest | SetAgentRequest, *, hint: str) -> None:
    """An empty list may be a variable that nobody has set: nothing is taken away by that."""
    for name in _NEVER_EMPTY:
        if getattr(given, name, None) == ():
            raise InvalidUsage(f"--{name} names nothing", hint=hint)


def _apply_changes(was: Agent, given: SetAgentRequest) -> Agent:
    _check_lists(given, hint="Leave it out, or take away what it has with --clear.")
    clear = given.clear or ()
    unknown = [name for name in clear if name not in _CLEARED]
    if unknown:
        hint = f"It may be: {', '.join(_CLEARED)}"
        raise InvalidUsage(f"--clear cannot take {unknown[0]!r}", hint=hint)
    twice = [name for name in clear if getattr(given, name) is not None]
    if twice:
        raise InvalidUsage(f"{twice[0]} is set and cleared at once", hint="Leave one of both out.")
    fallback = () if "fallback" in clear else given.fallback or was.providers[1:]
    new = {
        "home": given.home,
        "role": given.role,
        "model": given.model,
        "system": given.system,
        "followup": given.followup,
        "on_lost": given.on_lost,
        "on_limited": given.on_limited,
        "wall_seconds": given.timeout,
        "approvers": given.approvers,
        "policy": _apply_policy_changes(was.policy, given),
    }
    said_ = {name: value for name, value in new.items() if value is not None}
    none = {
        field: () if field == "approvers" else None
        for name in clear
        if (field := _CLEARED[name]) not in _CLEARED_OTHERWISE
    }
    if not said_ and not clear and not given.fallback and given.provider is None:
        raise InvalidUsage("there is nothing to set", hint="`steadyrun agent set --help` lists it.")
    return replace(was, providers=(given.provider or was.provider, *fallback), **said_, **none)


def _apply_policy_changes(was: Policy, given: SetAgentRequest) -> Policy | None:
    """The policy with what was said of it; None if nothing was."""
    new: dict[str, Any] = {}
    clear = given.clear or ()
    if given.mode is not None:
        new["mode"] = given.mode
    if given.tier or given.tools is not None or {"tier", "tools"} & set(clear):
        # One is said by the other: what is left would contradict it.
        new |= {"tier": given.tier, "allowed_tools": given.tools}
    if given.deny or "deny" in clear:
        new["deny"] = given.deny or ()
    if given.budget or "budget" in clear:
        # What is named is set, and the rest stays.
        named = asdict(_parse_budget(given.budget or ()))
        budget = Budget() if "budget" in clear else was.budget
        said_ = {name: value for name, value in named.items() if value is not None}
        new["budget"] = replace(budget, **said_)
    return replace(was, **new) if new else None


def _parse_budget(words: tuple[str, ...]) -> Budget:
    try:
        return parsed(words)
    except ValueError as error:
        raise InvalidUsage(
            f"--budget: {error}", hint="Say it like --budget day=5,run_tokens=200000."
        ) from error


async def _check_agent(desk: OperationContext, agent: Agent) -> None:
    """Whatever is wrong with it, before anything is written."""
    _check_texts(agent)
    if len(set(agent.providers)) < len(agent.providers):
        raise InvalidUsage("a provider is named twice", hint="Name each in --fallback once.")
    abilities, *_ = [_require_abilities(desk, provider) for provider in agent.providers]
    if agent.policy.mode != "default" and "modes" not in abilities:
        raise AbilityMissing(agent.provider, "modes", asked="--mode")
    if agent.model is not None and "model" not in abilities:
        raise AbilityMissing(agent.provider, "model", asked="--model")
    for provider in agent.providers if agent.policy.budget != Budget() else ():
        # Whoever takes over is to be stopped as well.
        if "usage" not in _require_abilities(desk, provider):
            raise AbilityMissing(provider, "usage", asked="--budget")
    _check_rights(desk, agent)
    await anyio.to_thread.run_sync(_check_files, desk.home, agent)


def _check_texts(agent: Agent) -> None:
    """What the types of its fields leave open."""
    for name in ("model", "system"):
        text = getattr(agent, name)
        if text is not None and (not text or "\0" in text):
            raise InvalidUsage(
                f"--{name}: expected a text, found {text[:80]!r}", hint="Leave it out."
            )
    if not all(agent.approvers):
        raise InvalidUsage("--approvers: expected names, found ''", hint="Leave it out.")
    if agent.wall_seconds is not None and (flaw := check_timeout(agent.wall_seconds)):
        raise InvalidUsage(f"--timeout: {flaw.problem}", hint=flaw.hint)


def _check_rights(desk: OperationContext, agent: Agent) -> None:
    """Each provider that may come to work for it keeps to what it may do."""
    policy = agent.policy
    flaw = check_tools(policy.tier, policy.allowed_tools) or check_tool_names(policy.deny)
    if flaw:
        raise InvalidUsage(flaw.problem, hint=flaw.hint)
    for provider in agent.providers:
        found = desk.enforce(provider, rights(policy))
        require_kept(provider, found, asked="--tier, --tools and --deny")


def _require_abilities(desk: OperationContext, provider: str) -> frozenset[Ability]:
    found = desk.abilities(provider)
    if found is None:
        raise InvalidUsage(f"no provider {provider!r}", hint="`steadyrun providers` lists them.")
    return found


def _check_files(home: Path, agent: Agent) -> None:
    if not Path(agent.home).is_absolute():
        raise InvalidUsage(
            f"expected an absolute path, found {agent.home!r}", hint="Name it from / on."
        )
    require_home(agent)
    if agent.role is not None:
        require_role(agent.role, home)
