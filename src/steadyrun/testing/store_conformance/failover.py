"""Promises about chains: the first provider that is not closed does the work, and the first in the
chain gets it back as soon as its gate lets a run through."""

from datetime import timedelta

from steadyrun.errors import ChangeRefused
from steadyrun.model.agent import Agent
from steadyrun.model.gate import Closed, Opened, Suspected
from steadyrun.model.item import Message
from steadyrun.store import Start
from steadyrun.testing.store_conformance.fixtures import (
    Scene,
    expect_refused,
    make_run_creator,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

MINUTE = timedelta(minutes=1)


async def check_a_closed_gate_moves_the_work_to_the_next_provider(harness: StoreHarness) -> None:
    """However the item is begun; with the conversation that the agent has with the other one."""
    scene = await set_scene(harness, fallback=["codex"])
    await _close(scene, "claude")
    await scene.send()
    [started] = await scene.start()
    assert (started.run.provider, started.is_probe) == ("codex", False)
    assert started.agent == (await scene.store.agent("ada")).with_provider("codex")
    assert (started.agent.providers, started.agent.model) == (("codex", "claude"), None)
    await scene.finish(started.claim)

    message = Message(scene.agent, "at once")
    accepted = await scene.store.accept(message, Start(scene.holder, make_run_creator()))
    assert accepted.started
    assert accepted.started.agent.provider == accepted.started.run.provider == "codex"
    await scene.finish(accepted.started.claim)

    bo = Agent(harness.ids.make_agent(), "bo", ("claude", "codex"), "/home/bo")
    direct = await scene.store.start_direct(
        scene.holder, bo, Message(bo.id, "work"), make_run_creator()
    )
    assert (direct.agent, direct.run.provider) == (bo.with_provider("codex"), "codex")
    await scene.finish(direct.claim)

    await scene.send()
    assert (await scene.claim_next()).agent == scene.agent


async def check_the_first_provider_has_the_next_item_when_its_gate_opens(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    await _close(scene, "claude")
    for _ in range(2):
        await scene.send()
    [first] = await scene.start()
    await scene.store.update_gate("claude", Opened())
    assert await scene.start() == [], "a run in progress keeps its provider"
    await scene.store.settle(first.claim, scene.make_end(), keep_warm=True)

    [second] = await scene.start()

    assert [each.run.provider for each in (first, second)] == ["codex", "claude"]
    assert second.agent == await scene.store.agent("ada")
    assert second.claim.fence == first.claim.fence


async def check_a_rate_limited_item_goes_to_the_next_provider(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex", "shell"])
    await scene.send()
    providers = []
    for _ in range(3):
        [started] = await scene.start()
        providers.append(started.run.provider)
        item = await scene.finish(started.claim, "rate_limited")
        assert item.status == "queued"

    assert providers == ["claude", "codex", "shell"]
    assert await scene.start() == [], "every provider is closed"


async def check_a_suspicion_changes_no_provider(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    await scene.send()
    await scene.store.update_gate("claude", Suspected(timedelta(seconds=2), "asked to wait"))
    assert await scene.start() == []

    harness.clock.advance(timedelta(seconds=2))

    [started] = await scene.start()
    assert started.run.provider == "claude"
    await scene.finish(started.claim)
    await scene.send()
    await _close(scene, "claude")
    await scene.store.update_gate("codex", Suspected(timedelta(seconds=2), "asked to wait"))
    assert await scene.start() == [], "a suspect fallback gets no run"


async def check_an_excluded_provider_does_not_move_the_work(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    await scene.send()
    assert await scene.start(excluded={"claude"}) == []
    await _close(scene, "claude")
    assert await scene.start(excluded={"codex"}) == []
    assert len(await scene.start(excluded={"claude"})) == 1


async def check_only_the_probe_uses_a_ready_gate(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    workers = [scene, await set_scene(harness, "bo", store=scene.store)]
    workers += [await set_scene(harness, "cy", store=scene.store, fallback=["codex"])]
    for each in workers:
        await each.send()
    await _close(scene, "claude")
    harness.clock.advance(MINUTE)

    started = await scene.start()

    assert [(each.agent.name, each.run.provider, each.is_probe) for each in started] == [
        ("ada", "claude", True),
        ("cy", "codex", False),
    ]
    await scene.finish(started[0].claim)
    [left] = await scene.start()
    assert (left.agent.name, left.run.provider) == ("bo", "claude")


async def check_a_changed_chain_is_used_at_once(harness: StoreHarness) -> None:
    scene = await set_scene(harness, fallback=["codex"])
    was = await scene.store.agent("ada")
    await scene.store.set_agent(was.with_provider("shell"), was=was)
    await _close(scene, "shell")
    await _close(scene, "claude")
    await scene.send()

    [started] = await scene.start()

    assert started.run.provider == "codex"


async def check_a_direct_run_is_refused_if_its_whole_chain_is_closed(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    for provider in ("claude", "codex"):
        await _close(scene, provider)
    bo = Agent(harness.ids.make_agent(), "bo", ("claude", "codex"), "/home/bo")

    verb = scene.store.start_direct(scene.holder, bo, Message(bo.id, "work"), make_run_creator())

    await expect_refused(scene.store, ChangeRefused, verb)


async def check_a_warm_process_has_the_session_of_its_provider(harness: StoreHarness) -> None:
    """In a warm lane the session is the one with the provider of the process."""
    working = await set_working(harness, fallback=["codex"])
    store = working.store
    await store.append(working.claim, working.make_batch(0, 10, token=working.make_token("one")))
    await store.close_process(working.claim, working.process)
    await store.settle(working.claim, working.make_end(), keep_warm=True)
    assert (await store.lane_snapshots({working.agent: None}))[working.agent].session

    await _close(working, "claude")
    await working.send()
    [started] = await working.start()
    await working.open_process(started.claim, provider="codex")
    await store.settle(started.claim, working.make_end(), keep_warm=True)

    assert (await store.lane_snapshots({working.agent: None}))[working.agent].session is None


async def _close(scene: Scene, provider: str) -> None:
    until = scene.harness.clock.now() + MINUTE
    await scene.store.update_gate(provider, Closed(until, "limit"))
