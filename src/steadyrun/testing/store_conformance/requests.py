"""Promises about calls: a holder learns in one question what is wanted of its lanes."""

from steadyrun.model.item import Message
from steadyrun.store import PendingRequests
from steadyrun.testing.store_conformance.fixtures import (
    add_agent,
    claim_lanes,
    send,
    set_scene,
    set_warm,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_no_holder_is_called_without_a_request(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene = working.store, working.scene
    await store.accept(Message(scene.agent, "wait", followup="queue"))

    assert await store.pending_requests(scene.holder) == []


async def check_a_call_tells_what_can_be_taken(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene = working.store, working.scene
    item = await scene.send("more")

    assert await store.pending_requests(scene.holder) == [PendingRequests(scene.agent, (), True)]
    await store.offer_followups(working.claim)
    assert await store.pending_requests(scene.holder) == []
    await store.return_offer(working.claim, item.id)

    assert await store.pending_requests(scene.holder) == [], (
        "what was given back is not taken again"
    )


async def check_a_call_tells_what_shall_stop(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene = working.store, working.scene
    offered, absorbed = [await scene.send(text) for text in ("offered", "absorbed")]
    await store.offer_followups(working.claim, limit=2)
    await store.absorb(working.claim, absorbed.id)
    for item in (working.claim.item, offered, absorbed):
        await (await harness.open()).cancel(item.id)

    [call] = await store.pending_requests(scene.holder)

    assert sorted(call.cancelled) == [working.claim.item.id, offered.id, absorbed.id]
    assert (call.agent, call.has_steerable) == (scene.agent, False)


async def check_calls_are_for_running_lanes_of_the_holder(harness: StoreHarness) -> None:
    mine = await set_working(harness)
    store = mine.store
    other = await set_working(harness, "bo", store=store)
    warm = await set_warm(harness, "cy", store=store)
    free = await set_scene(harness, "di", store=store)
    for scene in (mine.scene, other.scene, warm.scene, free):
        await scene.send("more")
    await store.pause(warm.scene.agent)
    await store.pause(await add_agent(harness, store, "ed"))

    assert [call.agent for call in await store.pending_requests(mine.scene.holder)] == [
        mine.scene.agent
    ]
    assert [call.agent for call in await store.pending_requests(other.scene.holder)] == [
        other.scene.agent
    ]
    assert await store.pending_requests(warm.scene.holder) == []


async def check_calls_are_in_the_order_of_agents(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    agents = [scene.agent, *[await add_agent(harness, scene.store, name) for name in ("bo", "cy")]]
    for agent in agents[::-1]:
        await send(harness, scene.store, agent, "work")
    await claim_lanes(scene.store, scene.holder, limit=5)
    for agent in agents[::-1]:
        await send(harness, scene.store, agent, "more")

    assert [call.agent for call in await scene.store.pending_requests(scene.holder)] == sorted(
        agents
    )
