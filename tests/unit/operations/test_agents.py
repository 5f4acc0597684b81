"""Agents are added, changed, paused and removed; an invalid request writes nothing."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import pytest
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import (
    AbilityMissing,
    AgentHomeMissing,
    ConfigInvalid,
    Conflict,
    InvalidUsage,
    NameTaken,
    NotFound,
    ReadOnly,
    RoleMissing,
    SteadyrunError,
)
from steadyrun.model.agent import Agent
from steadyrun.model.gate import Closed, Opened
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Message
from steadyrun.model.run import Finished
from steadyrun.operations.agents import (
    AddAgentRequest,
    AgentRequest,
    AgentSelection,
    ListAgentsRequest,
    SetAgentRequest,
    add,
    change,
    list_agents,
    pause,
    remove,
    resume,
    show,
)
from steadyrun.operations.context import OperationContext
from steadyrun.store import MaintainedStore
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.testing.clock import START, FakeClock
from steadyrun.testing.store_conformance.fixtures import claim_lanes
from tests.support.fake_daemon import FakeDaemon, make_context

T = TypeVar("T")


@pytest.fixture
def context(tmp_path: Path) -> OperationContext:
    clock = FakeClock()
    store = MemoryStore(clock)
    plain = make_context(store, tmp_path, clock=clock)
    return make_context(
        store, tmp_path, clock=clock, daemon=FakeDaemon(store, tmp_path, clock, plain.ids)
    )


def daemon(context: OperationContext) -> FakeDaemon:
    assert isinstance(context.daemon, FakeDaemon)
    return context.daemon


def do(
    verb: Callable[[OperationContext, Any], Awaitable[T]], context: OperationContext, given: Struct
) -> T:
    return anyio.run(verb, context, given)


def ada(context: OperationContext, **fields: Any) -> AddAgentRequest:
    usual = AddAgentRequest(name="ada", provider="scripted", home=str(context.home))
    return replace(usual, **fields)


@pytest.mark.parametrize("name", ["a", "7", "ada-2_x", "a" * 64])
def test_add_accepts_a_valid_name(context: OperationContext, name: str) -> None:
    assert do(add, context, ada(context, name=name)).name == name


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "Ada", "-a", "_a", "a b", "a/b", "a.b", "ä", "a" * 65, "a\n", "run_x", "itm_x",
        "agt_x", "prc_x", "hld_x",
    ],
)  # fmt: skip
def test_add_refuses_an_invalid_name(context: OperationContext, name: str) -> None:
    with pytest.raises(InvalidUsage) as found:
        do(add, context, ada(context, name=name))

    assert repr(name) in found.value.message
    assert found.value.hint
    assert do(list_agents, context, ListAgentsRequest()).agents == ()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"provider": "missing"}, InvalidUsage),
        ({"fallback": ("missing",)}, InvalidUsage),
        ({"fallback": ("scripted",)}, InvalidUsage),
        ({"fallback": ("shell", "shell")}, InvalidUsage),
        ({"provider": "shell", "mode": "plan"}, AbilityMissing),
        ({"provider": "shell", "model": "m"}, AbilityMissing),
        ({"provider": "shell", "tier": "readonly"}, AbilityMissing),
        ({"fallback": ("shell",), "deny": ("Bash",)}, AbilityMissing),
        ({"tier": "custom"}, InvalidUsage),
        ({"tier": "readonly", "tools": ("Read",)}, InvalidUsage),
        ({"tools": ("Raed",)}, InvalidUsage),
        ({"deny": ("",)}, InvalidUsage),
        ({"timeout": -1.0}, InvalidUsage),
        ({"timeout": 0.0}, InvalidUsage),
        ({"model": ""}, InvalidUsage),
        ({"system": "a\0b"}, InvalidUsage),
        ({"approvers": ("",)}, InvalidUsage),
        ({"home": "here"}, InvalidUsage),
        ({"home": "/no/such/directory"}, AgentHomeMissing),
        ({"role": "tester"}, RoleMissing),
        ({"role": "../tester"}, InvalidUsage),
        ({"role": ".hidden"}, InvalidUsage),
        ({"role": ""}, InvalidUsage),
    ],
)
def test_add_refuses_an_invalid_agent_and_writes_nothing(
    context: OperationContext, fields: dict[str, Any], kind: type[SteadyrunError]
) -> None:
    with pytest.raises(kind) as found:
        do(add, context, ada(context, **fields))

    assert found.value.hint
    assert do(list_agents, context, ListAgentsRequest()).agents == ()


def test_add_refuses_a_file_as_working_directory(context: OperationContext) -> None:
    (context.home / "file").touch()

    with pytest.raises(AgentHomeMissing):
        do(add, context, ada(context, home=str(context.home / "file")))


def test_add_requires_the_file_of_the_role(context: OperationContext) -> None:
    (context.home / "roles").mkdir()
    (context.home / "roles" / "tester.md").write_text("Test.")

    assert do(add, context, ada(context, role="tester")).role == "tester"


def test_add_names_a_provider_with_invalid_options(context: OperationContext) -> None:
    def abilities(name: str) -> None:
        raise ConfigInvalid(f"providers.{name}.options: no", file=None)

    broken = OperationContext(
        context.store, context.clock, context.ids, context.home, abilities, context.enforce
    )

    with pytest.raises(ConfigInvalid):
        do(add, broken, ada(context))


def test_add_refuses_a_name_in_use(context: OperationContext) -> None:
    do(add, context, ada(context))

    with pytest.raises(NameTaken):
        do(add, context, ada(context))


def test_set_changes_only_the_named_fields(context: OperationContext) -> None:
    given = ada(context, fallback=("shell",), system="be kind", timeout=5.0, model="m")
    was = do(add, context, given)

    changed = do(change, context, SetAgentRequest(name="ada", on_lost="fail", mode="plan"))
    cleared = do(
        change, context, SetAgentRequest(name="ada", clear=("model", "timeout", "fallback"))
    )
    page = do(show, context, AgentRequest("ada"))

    assert changed == replace(was, on_lost="fail", mode="plan")
    assert cleared == replace(changed, model=None, fallback=())
    assert (page.system, page.timeout_seconds) == ("be kind", None)


def test_set_replaces_tools_by_a_tier_and_a_tier_by_tools(context: OperationContext) -> None:
    def changed(**fields: Any) -> tuple[Any, ...]:
        now = do(change, context, SetAgentRequest(name="ada", **fields))
        return now.tier, now.tools, now.deny

    do(add, context, ada(context, tools=("Read",), deny=("Bash",)))

    assert changed(mode="plan") == (None, ("Read",), ("Bash",))
    assert changed(tier="standard") == ("standard", None, ("Bash",))
    assert changed(tools=("Grep",), deny=("Edit",)) == (None, ("Grep",), ("Edit",))
    assert changed(tier="custom", tools=("Glob",)) == ("custom", ("Glob",), ("Edit",))
    assert changed(clear=("tools", "deny")) == (None, None, ())


def test_empty_list_of_tools_allows_no_tools(context: OperationContext) -> None:
    def changed(**fields: Any) -> tuple[Any, ...]:
        now = do(change, context, SetAgentRequest(name="ada", **fields))
        return now.tier, now.tools, now.model

    assert do(add, context, ada(context, tools=())).tools == ()
    assert changed(tools=("Read",)) == (None, ("Read",), None)
    assert changed(tools=(), model="m") == (None, (), "m")
    assert changed(tier="custom", tools=()) == ("custom", (), "m")
    assert changed(clear=("tools",)) == (None, None, "m")


@pytest.mark.parametrize("field", ["deny", "fallback", "budget", "approvers", "clear"])
def test_set_refuses_an_empty_list_other_than_tools(context: OperationContext, field: str) -> None:
    before = do(add, context, ada(context, deny=("Bash",), approvers=("cli:a",)))
    changed, empty = SetAgentRequest(name="ada", model="m"), {field: ()}

    with pytest.raises(InvalidUsage, match=f"--{field} is empty"):
        do(change, context, replace(changed, **empty))
    if field != "clear":
        with pytest.raises(InvalidUsage, match=f"--{field} is empty"):
            do(add, context, ada(context, name="bob", **empty))

    assert do(list_agents, context, ListAgentsRequest()).agents == (before,)


def test_add_suggests_the_nearest_name_for_an_unknown_tool(context: OperationContext) -> None:
    with pytest.raises(InvalidUsage) as found:
        do(add, context, ada(context, tools=("Read", "Gerp")))

    assert (found.value.message, found.value.hint) == (
        "unknown tool 'Gerp'",
        "Did you mean 'Grep'?",
    )


def test_set_provider_keeps_the_fallback(context: OperationContext) -> None:
    do(add, context, ada(context, fallback=("shell",)))

    with pytest.raises(InvalidUsage, match="listed twice"):
        do(change, context, SetAgentRequest(name="ada", provider="shell"))
    changed = do(
        change, context, SetAgentRequest(name="ada", provider="shell", clear=("fallback",))
    )

    assert (changed.provider, changed.fallback) == ("shell", ())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (SetAgentRequest(name="ada"), "nothing to set"),
        (SetAgentRequest(name="ada", clear=("home",)), "does not accept 'home'"),
        (SetAgentRequest(name="ada", model="m", clear=("model",)), "set and cleared"),
        (SetAgentRequest(name="ada", tools=(), clear=("tools",)), "set and cleared"),
        (SetAgentRequest(name="ada", home="/no/such"), "no directory"),
    ],
)
def test_set_refuses_an_invalid_change(
    context: OperationContext, given: SetAgentRequest, said: str
) -> None:
    before = do(add, context, ada(context))

    with pytest.raises((InvalidUsage, AgentHomeMissing), match=said):
        do(change, context, given)

    assert do(list_agents, context, ListAgentsRequest()).agents == (before,)


def test_set_refuses_an_agent_of_the_configuration(context: OperationContext) -> None:
    agent = Agent(AgentId("agt_1"), "ada", ("scripted",), str(context.home), origin="config")
    anyio.run(context.store.add_agent, agent)

    for verb, given in (
        (change, SetAgentRequest(name="ada", model="m")),
        (remove, AgentRequest("ada")),
    ):
        with pytest.raises(ReadOnly) as found:
            do(verb, context, given)
        assert (found.value.exit_code, found.value.code) == (4, "read_only")
    assert do(pause, context, AgentSelection("ada")).agents[0].state == "paused"


def test_remove_refuses_an_agent_with_work(context: OperationContext) -> None:
    added = do(add, context, ada(context))
    item = anyio.run(context.store.accept, Message(AgentId(added.id), "go")).item

    with pytest.raises(Conflict, match="ada has work"):
        do(remove, context, AgentRequest("ada"))
    anyio.run(context.store.cancel, item.id)
    removed = do(remove, context, AgentRequest("ada"))

    assert (removed.id, removed.name) == (added.id, "ada")
    with pytest.raises(NotFound, match="ada"):
        do(show, context, AgentRequest("ada"))
    # By its id it is still there for its record, but it is no agent that can be told anything.
    with pytest.raises(NotFound):
        do(show, context, AgentRequest(added.id))


def test_remove_refuses_an_agent_with_a_warm_process_of_a_dead_daemon(
    context: OperationContext,
) -> None:
    added = do(add, context, ada(context))

    async def rest() -> None:
        store, agent, now = context.store, AgentId(added.id), context.clock.now()
        await store.accept(Message(agent, "go"))
        [claim] = await claim_lanes(store, (await store.join("test")).id)
        await store.settle(claim, Finished(now, "completed"), keep_warm=True)

    anyio.run(rest)

    with pytest.raises(Conflict, match="ada still has a process"):
        do(remove, context, AgentRequest("ada"))


def test_show_does_not_find_a_direct_agent(context: OperationContext) -> None:
    direct = Agent(AgentId("agt_1"), "run_1", ("scripted",), str(context.home), is_direct=True)
    anyio.run(context.store.add_agent, direct)

    with pytest.raises(NotFound):
        do(show, context, AgentRequest("run_1"))


@pytest.mark.parametrize("given", [AgentSelection(), AgentSelection("ada", all=True)])
def test_pause_requires_exactly_one_kind_of_selection(
    context: OperationContext, given: AgentSelection
) -> None:
    do(add, context, ada(context))

    with pytest.raises(InvalidUsage, match="--all"):
        do(pause, context, given)


def test_pause_and_resume_change_all_agents(context: OperationContext) -> None:
    for name in ("ada", "bob"):
        do(add, context, ada(context, name=name))

    paused = do(pause, context, AgentSelection(all=True)).agents
    one = do(resume, context, AgentSelection("bob")).agents

    assert [(agent.name, agent.state) for agent in paused] == [("ada", "paused"), ("bob", "paused")]
    assert [(agent.name, agent.state) for agent in one] == [("bob", "idle")]


def test_state_of_an_agent_follows_its_lane_and_gate(context: OperationContext) -> None:
    added = do(add, context, ada(context))

    async def states() -> list[Any]:
        found: list[Any] = []

        async def look() -> None:
            agent = await show(context, AgentRequest("ada"))
            found.append((agent.state, agent.now, agent.process))

        store, agent_id = context.store, AgentId(added.id)
        await store.update_gate("scripted", Closed(START.replace(year=2027), "limit"))
        await look()
        await store.update_gate("scripted", Opened())
        await store.accept(Message(agent_id, "fix\n the  test"))
        holder = await store.join("test")
        [claim] = await claim_lanes(store, holder.id)
        daemon(context).processes[agent_id] = "busy"
        await look()
        daemon(context).waiting.add(agent_id)
        await look()
        await store.set_paused(agent_id, is_paused=True)
        await look()
        await store.settle(claim, Finished(context.clock.now(), "completed"))
        await store.set_paused(agent_id, is_paused=False)
        await look()
        return found

    assert anyio.run(states) == [
        ("gated", None, None),
        ("running", "fix the test", "busy"),
        ("waiting", "fix the test", "busy"),
        ("paused", "fix the test", "busy"),
        ("idle", None, "busy"),
    ]


class Counted:
    """Counts the calls of another store."""

    def __init__(self, store: MaintainedStore) -> None:
        self.asked = 0
        self._store = store

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self._store, name)


def test_listing_a_hundred_agents_needs_as_many_queries_as_one(
    context: OperationContext, tmp_path: Path
) -> None:
    async def asked(count: int) -> int:
        for _ in range(count):
            name = f"agent{len(await context.store.agents())}"
            agent = Agent(context.ids.make_agent(), name, ("scripted",), str(tmp_path))
            await context.store.add_agent(agent)
        counted = Counted(context.store)
        seen = make_context(cast("MaintainedStore", counted), tmp_path, clock=context.clock)
        await list_agents(seen, ListAgentsRequest())
        return counted.asked

    one = anyio.run(asked, 1)

    assert anyio.run(asked, 99) == one
