"""The agents of the store are updated from the configuration."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from msgspec.structs import replace

from steadyrun.app.sync_agents import SyncReport, sync_agents
from steadyrun.config import load
from steadyrun.errors import (
    AbilityMissing,
    AgentHomeMissing,
    ConfigInvalid,
    NameTaken,
    RoleMissing,
    SteadyrunError,
)
from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.budget import Budget
from steadyrun.model.ids import AgentId, Ids
from steadyrun.model.item import Message
from steadyrun.model.policy import Policy
from steadyrun.store import Store
from steadyrun.stores.sqlite import SqliteStore

T = TypeVar("T")


class Desk:
    """A home with a configuration, a store, and directories for agents."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder
        (self.home / "roles").mkdir(parents=True)
        (self.home / "roles" / "reviewer.md").write_text("Review.")
        for name in ("ada", "bob"):
            (self.home / name).mkdir()
        self.ids = Ids(SystemClock().now)

    async def sync(self, store: Store, text: str) -> SyncReport:
        (self.home / "config.toml").write_text(text)
        config = load(self.home, self.folder, {"HOME": str(self.folder)})
        return await sync_agents(config, store, self.ids)

    def with_store(self, act: Callable[[Store], Awaitable[T]]) -> T:
        async def main() -> T:
            store = await SqliteStore.open(self.home)
            try:
                return await act(store)
            finally:
                await store.close()

        return anyio.run(main)

    def refused(self, text: str, kind: type[SteadyrunError]) -> SteadyrunError:
        """It is refused, and bob, who comes first, was not added either."""

        async def act(store: Store) -> SteadyrunError:
            with pytest.raises(kind) as refused:
                await self.sync(store, BOB + text)
            assert await store.agents() == []
            return refused.value

        return self.with_store(act)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path.resolve())


ADA = '[agents.ada]\nprovider = "claude"\nhome = "ada"\n'
BOB = '[agents.bob]\nprovider = "scripted"\nhome = "bob"\n'


def test_an_agent_is_added_as_it_is_written(desk: Desk) -> None:
    text = ADA + (
        'fallback = ["scripted"]\nmodel = "opus"\nmode = "full_auto"\nbudget = {run = 1, day = 5}\n'
        'role = "reviewer"\nsystem = "Be brief."\nfollowup = "queue"\non_lost = "fail"\n'
        "wall_seconds = 60\n"
    )

    async def act(store: Store) -> tuple[SyncReport, Agent]:
        return await desk.sync(store, text), await store.agent("ada")

    synced, ada = desk.with_store(act)

    assert synced == SyncReport(added=("ada",))
    assert ada.id.startswith("agt_")
    assert replace(ada, id=AgentId("")) == Agent(
        AgentId(""),
        "ada",
        ("claude", "scripted"),
        str(desk.home / "ada"),
        "opus",
        Policy("full_auto", budget=Budget(run=1.0, day=5.0)),
        "Be brief.",
        role="reviewer",
        followup="queue",
        on_lost="fail",
        wall_seconds=60.0,
        origin="config",
    )


def test_said_again_it_changes_nothing(desk: Desk) -> None:
    async def act(store: Store) -> tuple[SyncReport, list[Agent], list[Agent]]:
        await desk.sync(store, ADA + BOB)
        before = await store.agents()
        return await desk.sync(store, ADA + BOB), before, await store.agents()

    synced, before, after = desk.with_store(act)

    assert synced == SyncReport()
    assert before == after
    assert [agent.name for agent in after] == ["ada", "bob"]


def test_a_changed_one_stays_the_same_agent(desk: Desk) -> None:
    async def act(store: Store) -> tuple[SyncReport, Agent, Agent]:
        await desk.sync(store, ADA + BOB)
        before = await store.agent("ada")
        await store.accept(Message(before.id, "what waits"))
        synced = await desk.sync(store, ADA + 'model = "opus"\n' + BOB)
        assert len(await store.items(before.id)) == 1
        return synced, before, await store.agent("ada")

    synced, before, after = desk.with_store(act)

    assert synced == SyncReport(changed=("ada",))
    assert after == replace(before, model="opus")


def test_one_that_is_gone_is_paused_and_goes_on_when_it_is_back(desk: Desk) -> None:
    async def act(store: Store) -> None:
        await desk.sync(store, ADA + BOB)
        ada = await store.agent("ada")

        for _ in range(2):
            gone = await desk.sync(store, BOB)
            assert list(gone.paused) == ["ada"]
            assert "agents.ada is no longer in the configuration" in gone.paused["ada"]
            assert (await store.lane(ada.id)).is_paused

        assert await desk.sync(store, ADA + BOB) == SyncReport(resumed=("ada",))
        assert not (await store.lane(ada.id)).is_paused
        assert await desk.sync(store, ADA + BOB) == SyncReport()
        assert (await store.agent("ada")).id == ada.id

    desk.with_store(act)


def test_agent_paused_by_a_user_stays_paused(desk: Desk) -> None:
    async def act(store: Store) -> None:
        await desk.sync(store, ADA)
        ada = await store.agent("ada")
        await store.pause(ada.id)

        await desk.sync(store, "")
        assert await desk.sync(store, ADA) == SyncReport()
        assert (await store.lane(ada.id)).is_paused

        # Also if we had paused it once before.
        await store.resume(ada.id)
        await desk.sync(store, "")
        await desk.sync(store, ADA)
        await store.pause(ada.id)
        assert await desk.sync(store, ADA) == SyncReport()
        assert (await store.lane(ada.id)).is_paused

    desk.with_store(act)


def test_who_was_added_by_hand_is_left_alone(desk: Desk) -> None:
    async def act(store: Store) -> None:
        by_hand = Agent(AgentId("agt_1"), "eve", ("scripted",), "/nowhere")
        await store.add_agent(by_hand)

        assert await desk.sync(store, BOB) == SyncReport(added=("bob",))
        assert await store.agent("eve") == by_hand
        assert not (await store.lane(by_hand.id)).is_paused

    desk.with_store(act)


def test_name_of_an_existing_agent_is_refused(desk: Desk) -> None:
    async def act(store: Store) -> None:
        by_hand = Agent(AgentId("agt_1"), "ada", ("scripted",), "/nowhere")
        await store.add_agent(by_hand)

        with pytest.raises(NameTaken) as refused:
            await desk.sync(store, BOB + ADA)

        assert refused.value.name == "ada"
        assert "steadyrun agent rm ada" in refused.value.hint
        assert await store.agents() == [by_hand]

    desk.with_store(act)


@pytest.mark.parametrize("setting", ["provider", "fallback"])
def test_an_unknown_provider_is_refused(desk: Desk, setting: str) -> None:
    text = ADA.replace('"claude"', '"amp"') if setting == "provider" else ADA + 'fallback=["amp"]\n'

    error = desk.refused(text, ConfigInvalid)

    assert f"agents.ada.{setting}: unknown provider 'amp'" in error.message
    assert error.hint == "Valid here: claude, codex, scripted, shell."


@pytest.mark.parametrize("home", ["gone", "loop"])
def test_a_home_that_is_not_there_is_refused(desk: Desk, home: str) -> None:
    (desk.home / "loop").symlink_to("loop")

    error = desk.refused(ADA.replace('"ada"', f'"{home}"'), AgentHomeMissing)

    assert str(desk.home / home) in error.message


def test_a_role_that_is_not_there_is_refused(desk: Desk) -> None:
    error = desk.refused(ADA + 'role = "poet"\n', RoleMissing)

    assert error.message == "no role 'poet'"


@pytest.mark.parametrize(
    ("setting", "ability"),
    [('model = "m"', "model"), ("budget.run = 1.0", "usage")],
)
def test_what_its_provider_cannot_do_is_refused(desk: Desk, setting: str, ability: str) -> None:
    error = desk.refused(ADA.replace("claude", "shell") + setting + "\n", AbilityMissing)

    assert ability in error.message
    assert f"agents.ada.{setting.split(' ', maxsplit=1)[0].split('.', maxsplit=1)[0]}" in error.hint


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ('provider = "codex"\ntier = "standard"', "one tool to write and to edit"),
        ('provider = "codex"\ndeny = ["Bash"]', "Bash cannot be denied"),
        ('provider = "claude"\nfallback = ["codex"]\ntools = ["Edit"]', "one tool to write"),
        ('provider = "shell"\ntier = "readonly"', "allow Bash"),
    ],
)
def test_what_one_of_its_providers_cannot_keep_to_is_refused(
    desk: Desk, settings: str, why: str
) -> None:
    text = ADA.replace('provider = "claude"', settings)

    error = desk.refused(text, AbilityMissing)

    assert "cannot do this: tools (" in error.message
    assert why in error.message
    assert "tier, tools and deny of agents.ada" in error.hint


def test_its_tier_its_tools_and_what_is_denied_are_kept(desk: Desk) -> None:
    text = ADA + 'tools = ["Read", "Bash"]\ntier = "custom"\ndeny = ["mcp__a__b"]\n'

    async def act(store: Store) -> Policy:
        await desk.sync(store, text)
        return (await store.agent("ada")).policy

    policy = desk.with_store(act)

    assert policy == Policy("default", ("Read", "Bash"), tier="custom", deny=("mcp__a__b",))


def test_a_home_may_be_reached_by_a_link(desk: Desk) -> None:
    (desk.home / "link").symlink_to(desk.home / "ada")

    async def act(store: Store) -> Agent:
        await desk.sync(store, ADA.replace('"ada"', '"link"'))
        return await store.agent("ada")

    assert desk.with_store(act).home == str(desk.home / "ada")
