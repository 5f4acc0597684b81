"""Promises about several stores on one record: they agree, and each closes for itself."""

from steadyrun.testing.store_conformance.fixtures import (
    add_agent,
    read_everything,
    set_eventful,
    set_scene,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_closing_twice_is_fine(harness: StoreHarness) -> None:
    store = await harness.open()
    await add_agent(harness, store, "ada")

    await store.close()
    await store.close()

    assert [agent.name for agent in await (await harness.open()).agents()] == ["ada"]


async def check_one_store_closes_without_the_others(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await harness.open()

    await other.close()

    await scene.send()
    assert (await scene.claim_next()).agent == scene.agent


async def check_every_store_reads_the_same(harness: StoreHarness) -> None:
    working = await set_eventful(harness)
    other = await harness.open()

    assert await read_everything(other) == await read_everything(working.store)
    assert await other.holders() == await working.store.holders()


async def check_time_of_commits_is_given_once(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()

    longest = scene.store.take_commit_seconds()

    assert 0 <= longest < float("inf")
    assert scene.store.take_commit_seconds() == 0
