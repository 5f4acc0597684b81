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
from steadyrun.model.run import Created, Finished
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
from steadyrun.store import Store
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.testing.clock import START, FakeClock
from tests.support.fake_daemon import SmallDaemon, desk_of

T = TypeVar("T")


@pytest.fixture
def desk(tmp_path: Path) -> OperationContext:
    clock = FakeClock()
    store = MemoryStore(clock)
    plain = desk_of(store, tmp_path, clock=clock)
    return desk_of(
        store, tmp_path, clock=clock, daemon=SmallDaemon(store, tmp_path, clock, plain.ids)
    )


def daemon(desk: OperationContext) -> SmallDaemon:
    assert isinstance(desk.daemon, SmallDaemon)
    return desk.daemon


def do(
    verb: Callable[[OperationContext, Any], Awaitable[T]], desk: OperationContext, given: Struct
) -> T:
    return anyio.run(verb, desk, given)


def ada(desk: OperationContext, **fields: Any) -> AddAgentRequest:
    usual = AddAgentRequest(name="ada", provider="scripted", home=str(desk.home))
    return replace(usual, **fields)


@pytest.mark.parametrize("name", ["a", "7", "ada-2_x", "a" * 64])
def test_add_accepts_a_valid_name(desk: OperationContext, name: str) -> None:
    assert do(add, desk, ada(desk, name=name)).name == name


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "Ada", "-a", "_a", "a b", "a/b", "a.b", "ä", "a" * 65, "a\n", "run_x", "itm_x",
        "agt_x", "prc_x", "hld_x",
    ],
)  # fmt: skip
def test_add_refuses_an_invalid_name(desk: OperationContext, name: str) -> None:
    with pytest.raises(InvalidUsage) as found:
        do(add, desk, ada(desk, name=name))

    assert repr(name) in found.value.message
    assert found.value.hint
    assert do(list_agents, desk, ListAgentsRequest()).agents == ()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"provider": "nobody"}, InvalidUsage),
        ({"fallback": ("nobody",)}, InvalidUsage),
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
    desk: OperationContext, fields: dict[str, Any], kind: type[SteadyrunError]
) -> None:
    with pytest.raises(kind) as found:
        do(add, desk, ada(desk, **fields))

    assert found.value.hint
    assert do(list_agents, desk, ListAgentsRequest()).agents == ()


def test_add_refuses_a_file_as_working_directory(desk: OperationContext) -> None:
    (desk.home / "file").touch()

    with pytest.raises(AgentHomeMissing):
        do(add, desk, ada(desk, home=str(desk.home / "file")))


def test_add_requires_the_file_of_the_role(desk: OperationContext) -> None:
    (desk.home / "roles").mkdir()
    (desk.home / "roles" / "tester.md").write_text("Test.")

    assert do(add, desk, ada(desk, role="tester")).role == "tester"


def test_add_names_a_provider_with_invalid_options(desk: OperationContext) -> None:
    def abilities(name: str) -> None:
        raise ConfigInvalid(f"providers.{name}.options: no", file=None)

    broken = OperationContext(desk.store, desk.clock, desk.ids, desk.home, abilities, desk.enforce)

    with pytest.raises(ConfigInvalid):
        do(add, broken, ada(desk))


def test_add_refuses_a_name_in_use(desk: OperationContext) -> None:
    do(add, desk, ada(desk))

    with pytest.raises(NameTaken):
        do(add, desk, ada(desk))


def test_set_changes_only_the_named_fields(desk: OperationContext) -> None:
    given = ada(desk, fallback=("shell",), system="be kind", timeout=5.0, model="m")
    was = do(add, desk, given)

    changed = do(change, desk, SetAgentRequest(name="ada", on_lost="fail", mode="plan"))
    cleared = do(change, desk, SetAgentRequest(name="ada", clear=("model", "timeout", "fallback")))
    page = do(show, desk, AgentRequest("ada"))

    assert changed == replace(was, on_lost="fail", mode="plan")
    assert cleared == replace(changed, model=None, fallback=())
    assert (page.system, page.timeout_seconds) == ("be kind", None)


def test_set_replaces_tools_by_a_tier_and_a_tier_by_tools(desk: OperationContext) -> None:
    def changed(**fields: Any) -> tuple[Any, ...]:
        now = do(change, desk, SetAgentRequest(name="ada", **fields))
        return now.tier, now.tools, now.deny

    do(add, desk, ada(desk, tools=("Read",), deny=("Bash",)))

    assert changed(mode="plan") == (None, ("Read",), ("Bash",))
    assert changed(tier="standard") == ("standard", None, ("Bash",))
    assert changed(tools=("Grep",), deny=("Edit",)) == (None, ("Grep",), ("Edit",))
    assert changed(tier="custom", tools=("Glob",)) == ("custom", ("Glob",), ("Edit",))
    assert changed(clear=("tools", "deny")) == (None, None, ())


def test_empty_list_of_tools_allows_no_tools(desk: OperationContext) -> None:
    def changed(**fields: Any) -> tuple[Any, ...]:
        now = do(change, desk, SetAgentRequest(name="ada", **fields))
        return now.tier, now.tools, now.model

    assert do(add, desk, ada(desk, tools=())).tools == ()
    assert changed(tools=("Read",)) == (None, ("Read",), None)
    assert changed(tools=(), model="m") == (None, (), "m")
    assert changed(tier="custom", tools=()) == ("custom", (), "m")
    assert changed(clear=("tools",)) == (None, None, "m")


@pytest.mark.parametrize("field", ["deny", "fallback", "budget", "approvers", "clear"])
def test_set_refuses_an_empty_list_other_than_tools(desk: OperationContext, field: str) -> None:
    before = do(add, desk, ada(desk, deny=("Bash",), approvers=("cli:a",)))
    changed, empty = SetAgentRequest(name="ada", model="m"), {field: ()}

    with pytest.raises(InvalidUsage, match=f"--{field} names nothing"):
        do(change, desk, replace(changed, **empty))
    if field != "clear":
        with pytest.raises(InvalidUsage, match=f"--{field} names nothing"):
            do(add, desk, ada(desk, name="bob", **empty))

    assert do(list_agents, desk, ListAgentsRequest()).agents == (before,)


def test_add_suggests_the_nearest_name_for_an_unknown_tool(desk: OperationContext) -> None:
    with pytest.raises(InvalidUsage) as found:
        do(add, desk, ada(desk, tools=("Read", "Gerp")))

    assert (found.value.message, found.value.hint) == (
        "unknown tool 'Gerp'",
        "Did you mean 'Grep'?",
    )


def test_set_provider_keeps_the_fallback(desk: OperationContext) -> None:
    do(add, desk, ada(desk, fallback=("shell",)))

    with pytest.raises(InvalidUsage, match="named twice"):
        do(change, desk, SetAgentRequest(name="ada", provider="shell"))
    changed = do(change, desk, SetAgentRequest(name="ada", provider="shell", clear=("fallback",)))

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
    desk: OperationContext, given: SetAgentRequest, said: str
) -> None:
    before = do(add, desk, ada(desk))

    with pytest.raises((InvalidUsage, AgentHomeMissing), match=said):
        do(change, desk, given)

    assert do(list_agents, desk, ListAgentsRequest()).agents == (before,)


def test_set_refuses_an_agent_of_the_configuration(desk: OperationContext) -> None:
    agent = Agent(AgentId("agt_1"), "ada", ("scripted",), str(desk.home), origin="config")
    anyio.run(desk.store.add_agent, agent)

    for verb, given in (
        (change, SetAgentRequest(name="ada", model="m")),
        (remove, AgentRequest("ada")),
    ):
        with pytest.raises(ReadOnly) as found:
            do(verb, desk, given)
        assert (found.value.exit_code, found.value.code) == (4, "read_only")
    assert do(pause, desk, AgentSelection("ada")).agents[0].state == "paused"


def test_remove_refuses_an_agent_with_work(desk: OperationContext) -> None:
    added = do(add, desk, ada(desk))
    item = anyio.run(desk.store.accept, Message(AgentId(added.id), "go")).item

    with pytest.raises(Conflict, match="ada has work"):
        do(remove, desk, AgentRequest("ada"))
    anyio.run(desk.store.cancel, item.id)
    removed = do(remove, desk, AgentRequest("ada"))

    assert (removed.id, removed.name) == (added.id, "ada")
    with pytest.raises(NotFound, match="ada"):
        do(show, desk, AgentRequest("ada"))
    # By its id it is still there for its record, but it is no agent that can be told anything.
    with pytest.raises(NotFound):
        do(show, desk, AgentRequest(added.id))


def test_remove_refuses_an_agent_with_a_warm_process_of_a_dead_daemon(
    desk: OperationContext,
) -> None:
    added = do(add, desk, ada(desk))

    async def rest() -> None:
        store, agent, now = desk.store, AgentId(added.id), desk.clock.now()
        await store.accept(Message(agent, "go"))
        [claim] = await store.claim((await store.join("test")).id)
        run = desk.ids.new_run()
        await store.change(claim, run, Created(run, agent, claim.item.id, "scripted", now))
        await store.rest(claim, Finished(now, "completed"))

    anyio.run(rest)

    with pytest.raises(Conflict, match="ada still has a process"):
        do(remove, desk, AgentRequest("ada"))


def test_show_does_not_find_a_direct_agent(desk: OperationContext) -> None:
    direct = Agent(AgentId("agt_1"), "run_1", ("scripted",), str(desk.home), is_direct=True)
    anyio.run(desk.store.add_agent, direct)

    with pytest.raises(NotFound):
        do(show, desk, AgentRequest("run_1"))


@pytest.mark.parametrize("given", [AgentSelection(), AgentSelection("ada", all=True)])
def test_pause_requires_exactly_one_kind_of_selection(
    desk: OperationContext, given: AgentSelection
) -> None:
    do(add, desk, ada(desk))

    with pytest.raises(InvalidUsage, match="--all"):
        do(pause, desk, given)


def test_pause_and_resume_change_all_agents(desk: OperationContext) -> None:
    for name in ("ada", "bob"):
        do(add, desk, ada(desk, name=name))

    paused = do(pause, desk, AgentSelection(all=True)).agents
    one = do(resume, desk, AgentSelection("bob")).agents

    assert [(agent.name, agent.state) for agent in paused] == [("ada", "paused"), ("bob", "paused")]
    assert [(agent.name, agent.state) for agent in one] == [("bob", "idle")]


def test_state_of_an_agent_follows_its_lane_and_gate(desk: OperationContext) -> None:
    added = do(add, desk, ada(desk))

    async def states() -> list[Any]:
        found: list[Any] = []

        async def look() -> None:
            agent = await show(desk, AgentRequest("ada"))
            found.append((agent.state, agent.now, agent.process))

        store, agent_id = desk.store, AgentId(added.id)
        await store.update_gate("scripted", Closed(START.replace(year=2027), "limit"))
        await look()
        await store.update_gate("scripted", Opened())
        await store.accept(Message(agent_id, "fix\n the  test"))
        holder = await store.join("test")
        [claim] = await store.claim(holder.id)
        run = desk.ids.new_run()
        await store.change(
            claim, run, Created(run, agent_id, claim.item.id, "scripted", desk.clock.now())
        )
        daemon(desk).processes[agent_id] = "busy"
        await look()
        daemon(desk).waiting.add(agent_id)
        await look()
        await store.pause(agent_id)
        await look()
        await store.settle(claim, Finished(desk.clock.now(), "completed"))
        await store.resume(agent_id)
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

    def __init__(self, store: Store) -> None:
        self.asked = 0
        self._store = store

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self._store, name)


def test_listing_a_hundred_agents_needs_as_many_queries_as_one(
    desk: OperationContext, tmp_path: Path
) -> None:
    async def asked(count: int) -> int:
        for _ in range(count):
            name = f"agent{len(await desk.store.agents())}"
            agent = Agent(desk.ids.new_agent(), name, ("scripted",), str(tmp_path))
            await desk.store.add_agent(agent)
        counted = Counted(desk.store)
        seen = desk_of(cast("Store", counted), tmp_path, clock=desk.clock)
        await list_agents(seen, ListAgentsRequest())
        return counted.asked

    one = anyio.run(asked, 1)

    assert anyio.run(asked, 99) == one
