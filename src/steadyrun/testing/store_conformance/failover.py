"""Promises about chains: the first provider that is not closed does the work, and the first in the
chain gets it back as soon as its gate lets a run through."""

from collections.abc import Callable
from datetime import timedelta

from steadyrun.errors import ChangeRefused
from steadyrun.model.agent import Agent
from steadyrun.model.gate import Closed, Opened, Suspected
from steadyrun.model.item import Item, Message
from steadyrun.model.run import Created
from steadyrun.store import Start, Started
from steadyrun.testing.store_conformance.fixtures import (
    Scene,
    claim_lanes,
    expect_refused,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

MINUTE = timedelta(minutes=1)


async def check_a_closed_gate_is_passed_by(harness: StoreHarness) -> None:
    """However the item is begun; with the conversation that the agent has with the other one."""
    scene = await set_scene(harness, fallback=["codex"])
    await _close(scene, "claude")
    await scene.send()
    [started] = await _started(scene)
    assert (started.run.provider, started.is_probe) == ("codex", False)
    assert started.agent == (await scene.store.agent("ada")).with_provider("codex")
    assert (started.agent.providers, started.agent.model) == (("codex", "claude"), None)
    await scene.finish(started.claim)

    message = Message(scene.agent, "at once")
    accepted = await scene.store.accept(message, Start(scene.holder, _opened(harness)))
    assert accepted.started
    assert accepted.started.agent.provider == accepted.started.run.provider == "codex"
    await scene.finish(accepted.started.claim)

    bo = Agent(harness.ids.make_agent(), "bo", ("claude", "codex"), "/home/bo")
    hired = await scene.store.start_direct(
        scene.holder, bo, Message(bo.id, "work"), _opened(harness)
    )
    assert (hired.agent, hired.run.provider) == (bo.with_provider("codex"), "codex")
    await scene.finish(hired.claim)

    await scene.send()
    assert (await scene.claim()).agent == scene.agent


async def check_the_first_provider_has_the_next_item_when_its_gate_opens(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    await _close(scene, "claude")
    for _ in range(2):
        await scene.send()
    [first] = await _started(scene)
    await scene.store.update_gate("claude", Opened())
    assert await _started(scene) == [], "what runs goes on where it is"
    await scene.store.settle(first.claim, scene.ended(), keep_warm=True)

    [second] = await _started(scene)

    assert [each.run.provider for each in (first, second)] == ["codex", "claude"]
    assert second.agent == await scene.store.agent("ada")
    assert second.claim.fence == first.claim.fence


async def check_a_run_that_is_limited_goes_on_elsewhere(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex", "shell"])
    await scene.send()
    providers = []
    for _ in range(3):
        [started] = await _started(scene)
        providers.append(started.run.provider)
        item = await scene.finish(started.claim, "rate_limited")
        assert item.status == "queued"

    assert providers == ["claude", "codex", "shell"]
    assert await _started(scene) == [], "every provider is closed"


async def check_a_suspicion_changes_no_provider(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    await scene.send()
    await scene.store.update_gate("claude", Suspected(timedelta(seconds=2), "asked to wait"))
    assert await _started(scene) == []
    assert await claim_lanes(scene.store, scene.holder) == []

    harness.clock.advance(timedelta(seconds=2))

    [started] = await _started(scene)
    assert started.run.provider == "claude"
    await scene.finish(started.claim)
    await scene.send()
    await _close(scene, "claude")
    await scene.store.update_gate("codex", Suspected(timedelta(seconds=2), "asked to wait"))
    assert await _started(scene) == [], "nor that of the fallback"


async def check_a_provider_that_is_full_is_waited_for(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    await scene.send()
    store, opened = scene.store, _opened(harness)
    assert await store.start(scene.holder, opened, excluded={"claude"}) == []
    await _close(scene, "claude")
    assert await store.start(scene.holder, opened, excluded={"codex"}) == []
    assert len(await store.start(scene.holder, opened, excluded={"claude"})) == 1


async def check_who_is_not_the_probe_goes_to_the_fallback(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    crew = [scene, await set_scene(harness, "bo", store=scene.store)]
    crew += [await set_scene(harness, "cy", store=scene.store, fallback=["codex"])]
    for each in crew:
        await each.send()
    await _close(scene, "claude")
    harness.clock.advance(MINUTE)

    started = await _started(scene)

    assert [(each.agent.name, each.run.provider, each.is_probe) for each in started] == [
        ("ada", "claude", True),
        ("cy", "codex", False),
    ]
    await scene.finish(started[0].claim)
    [left] = await _started(scene)
    assert (left.agent.name, left.run.provider) == ("bo", "claude")


async def check_a_changed_chain_is_the_one_that_counts(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    was = await scene.store.agent("ada")
    await scene.store.set_agent(was.with_provider("shell"), was=was)
    await _close(scene, "shell")
    await _close(scene, "claude")
    await scene.send()

    [started] = await _started(scene)

    assert started.run.provider == "codex"


async def check_a_direct_run_is_refused_if_its_whole_chain_is_closed(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    for provider in ("claude", "codex"):
        await _close(scene, provider)
    bo = Agent(harness.ids.make_agent(), "bo", ("claude", "codex"), "/home/bo")

    verb = scene.store.start_direct(scene.holder, bo, Message(bo.id, "work"), _opened(harness))

    await expect_refused(scene.store, ChangeRefused, verb)


async def check_a_process_that_waits_has_its_own_conversation(harness: StoreHarness) -> None:
    """Nothing runs: the conversation is that with the provider of the process."""
    working = await set_working(harness, fallback=["codex"])
    store, scene = working.store, working.scene
    await store.append(working.claim, working.batch(0, 10, token=working.token("one")))
    await store.close_process(working.claim, working.process)
    await store.settle(working.claim, scene.ended(), keep_warm=True)
    assert (await store.lane_snapshots({scene.agent: None}))[scene.agent].session

    await _close(scene, "claude")
    await scene.send()
    [started] = await _started(scene)
    await scene.open_process(started.claim, provider="codex")
    await store.settle(started.claim, scene.ended(), keep_warm=True)

    assert (await store.lane_snapshots({scene.agent: None}))[scene.agent].session is None


async def _close(scene: Scene, provider: str) -> None:
    until = scene.harness.clock.now() + MINUTE
    await scene.store.update_gate(provider, Closed(until, "limit"))


async def _started(scene: Scene) -> list[Started]:
    return await scene.store.start(scene.holder, _opened(scene.harness), limit=5)


def _opened(harness: StoreHarness) -> Callable[[Agent, Item], Created]:
    def opened(agent: Agent, item: Item) -> Created:
        now = harness.clock.now()
        return Created(harness.ids.make_run(), agent.id, item.id, agent.provider, now)

    return opened
