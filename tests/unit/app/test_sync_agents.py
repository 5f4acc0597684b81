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


class SyncHarness:
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
def harness(tmp_path: Path) -> SyncHarness:
    return SyncHarness(tmp_path.resolve())


ADA = '[agents.ada]\nprovider = "claude"\nhome = "ada"\n'
BOB = '[agents.bob]\nprovider = "scripted"\nhome = "bob"\n'


def test_configured_agent_is_added_with_all_settings(harness: SyncHarness) -> None:
    text = ADA + (
        'fallback = ["scripted"]\nmodel = "opus"\nmode = "full_auto"\nbudget = {run = 1, day = 5}\n'
        'role = "reviewer"\nsystem = "Be brief."\nfollowup = "queue"\non_lost = "fail"\n'
        "wall_seconds = 60\n"
    )

    async def act(store: Store) -> tuple[SyncReport, Agent]:
        return await harness.sync(store, text), await store.agent("ada")

    synced, ada = harness.with_store(act)

    assert synced == SyncReport(added=("ada",))
    assert ada.id.startswith("agt_")
    assert replace(ada, id=AgentId("")) == Agent(
        AgentId(""),
        "ada",
        ("claude", "scripted"),
        str(harness.home / "ada"),
        "opus",
        Policy("full_auto", budget=Budget(run=1.0, day=5.0)),
        "Be brief.",
        role="reviewer",
        followup="queue",
        on_lost="fail",
        wall_seconds=60.0,
        origin="config",
    )


def test_unchanged_configuration_changes_nothing(harness: SyncHarness) -> None:
    async def act(store: Store) -> tuple[SyncReport, list[Agent], list[Agent]]:
        await harness.sync(store, ADA + BOB)
        before = await store.agents()
        return await harness.sync(store, ADA + BOB), before, await store.agents()

    synced, before, after = harness.with_store(act)

    assert synced == SyncReport()
    assert before == after
    assert [agent.name for agent in after] == ["ada", "bob"]


def test_changed_agent_keeps_its_id_and_items(harness: SyncHarness) -> None:
    async def act(store: Store) -> tuple[SyncReport, Agent, Agent]:
        await harness.sync(store, ADA + BOB)
        before = await store.agent("ada")
        await store.accept(Message(before.id, "what waits"))
        synced = await harness.sync(store, ADA + 'model = "opus"\n' + BOB)
        assert len(await store.items(before.id)) == 1
        return synced, before, await store.agent("ada")

    synced, before, after = harness.with_store(act)

    assert synced == SyncReport(changed=("ada",))
    assert after == replace(before, model="opus")


def test_removed_agent_is_paused_and_resumed_when_it_returns(harness: SyncHarness) -> None:
    async def act(store: Store) -> None:
        await harness.sync(store, ADA + BOB)
        ada = await store.agent("ada")

        for _ in range(2):
            gone = await harness.sync(store, BOB)
            assert list(gone.paused) == ["ada"]
            assert "agents.ada is no longer in the configuration" in gone.paused["ada"]
            assert (await store.lane(ada.id)).is_paused

        assert await harness.sync(store, ADA + BOB) == SyncReport(resumed=("ada",))
        assert not (await store.lane(ada.id)).is_paused
        assert await harness.sync(store, ADA + BOB) == SyncReport()
        assert (await store.agent("ada")).id == ada.id

    harness.with_store(act)


def test_agent_paused_by_a_user_stays_paused(harness: SyncHarness) -> None:
    async def act(store: Store) -> None:
        await harness.sync(store, ADA)
        ada = await store.agent("ada")
        await store.set_paused(ada.id, is_paused=True)

        await harness.sync(store, "")
        assert await harness.sync(store, ADA) == SyncReport()
        assert (await store.lane(ada.id)).is_paused

        # Also if we had paused it once before.
        await store.set_paused(ada.id, is_paused=False)
        await harness.sync(store, "")
        await harness.sync(store, ADA)
        await store.set_paused(ada.id, is_paused=True)
        assert await harness.sync(store, ADA) == SyncReport()
        assert (await store.lane(ada.id)).is_paused

    harness.with_store(act)


def test_agent_added_by_hand_is_unchanged(harness: SyncHarness) -> None:
    async def act(store: Store) -> None:
        by_hand = Agent(AgentId("agt_1"), "eve", ("scripted",), "/nowhere")
        await store.add_agent(by_hand)

        assert await harness.sync(store, BOB) == SyncReport(added=("bob",))
        assert await store.agent("eve") == by_hand
        assert not (await store.lane(by_hand.id)).is_paused

    harness.with_store(act)


def test_name_of_an_existing_agent_is_refused(harness: SyncHarness) -> None:
    async def act(store: Store) -> None:
        by_hand = Agent(AgentId("agt_1"), "ada", ("scripted",), "/nowhere")
        await store.add_agent(by_hand)

        with pytest.raises(NameTaken) as refused:
            await harness.sync(store, BOB + ADA)

        assert refused.value.name == "ada"
        assert "steadyrun agent rm ada" in refused.value.hint
        assert await store.agents() == [by_hand]

    harness.with_store(act)


@pytest.mark.parametrize("setting", ["provider", "fallback"])
def test_unknown_provider_is_refused(harness: SyncHarness, setting: str) -> None:
    text = ADA.replace('"claude"', '"amp"') if setting == "provider" else ADA + 'fallback=["amp"]\n'

    error = harness.refused(text, ConfigInvalid)

    assert f"agents.ada.{setting}: unknown provider 'amp'" in error.message
    assert error.hint == "Valid here: claude, codex, scripted, shell."


@pytest.mark.parametrize("home", ["gone", "loop"])
def test_missing_agent_home_is_refused(harness: SyncHarness, home: str) -> None:
    (harness.home / "loop").symlink_to("loop")

    error = harness.refused(ADA.replace('"ada"', f'"{home}"'), AgentHomeMissing)

    assert str(harness.home / home) in error.message


def test_missing_role_is_refused(harness: SyncHarness) -> None:
    error = harness.refused(ADA + 'role = "poet"\n', RoleMissing)

    assert error.message == "no role 'poet'"


@pytest.mark.parametrize(
    ("setting", "ability"),
    [('model = "m"', "model"), ("budget.run = 1.0", "usage")],
)
def test_setting_that_the_provider_lacks_is_refused(
    harness: SyncHarness, setting: str, ability: str
) -> None:
    error = harness.refused(ADA.replace("claude", "shell") + setting + "\n", AbilityMissing)

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
def test_policy_that_a_provider_cannot_enforce_is_refused(
    harness: SyncHarness, settings: str, why: str
) -> None:
    text = ADA.replace('provider = "claude"', settings)

    error = harness.refused(text, AbilityMissing)

    assert "cannot do this: tools (" in error.message
    assert why in error.message
    assert "tier, tools and deny of agents.ada" in error.hint


def test_tier_tools_and_denied_tools_are_stored(harness: SyncHarness) -> None:
    text = ADA + 'tools = ["Read", "Bash"]\ntier = "custom"\ndeny = ["mcp__a__b"]\n'

    async def act(store: Store) -> Policy:
        await harness.sync(store, text)
        return (await store.agent("ada")).policy

    policy = harness.with_store(act)

    assert policy == Policy("default", ("Read", "Bash"), tier="custom", deny=("mcp__a__b",))


def test_agent_home_may_be_a_link(harness: SyncHarness) -> None:
    (harness.home / "link").symlink_to(harness.home / "ada")

    async def act(store: Store) -> Agent:
        await harness.sync(store, ADA.replace('"ada"', '"link"'))
        return await store.agent("ada")

    assert harness.with_store(act).home == str(harness.home / "ada")
