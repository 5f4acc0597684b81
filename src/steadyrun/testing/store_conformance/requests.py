"""Promises about pending requests: one query returns what is requested of a holder's lanes."""

from steadyrun.model.item import Message
from steadyrun.store import PendingRequests
from steadyrun.testing.store_conformance.fixtures import set_scene, set_warm, set_working
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_there_is_no_pending_request_without_cause(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    await store.accept(Message(working.agent, "wait", followup="queue"))

    assert await store.pending_requests(working.holder) == []


async def check_a_steerable_item_is_a_pending_request(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    item = await working.send("more")

    assert await store.pending_requests(working.holder) == [
        PendingRequests(working.agent, (), True)
    ]
    await store.offer_followups(working.claim)
    assert await store.pending_requests(working.holder) == []
    await store.close_offer(working.claim, item.id, "returned")

    assert await store.pending_requests(working.holder) == [], "a returned item is not offered"


async def check_cancellations_are_pending_requests(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    offered, absorbed = [await working.send(text) for text in ("offered", "absorbed")]
    await store.offer_followups(working.claim, limit=2)
    await store.close_offer(working.claim, absorbed.id, "absorbed")
    for item in (working.claim.item, offered, absorbed):
        await (await harness.open()).cancel(item.id)

    [requests] = await store.pending_requests(working.holder)

    assert sorted(requests.cancelled) == [working.claim.item.id, offered.id, absorbed.id]
    assert (requests.agent, requests.has_steerable) == (working.agent, False)


async def check_pending_requests_are_of_running_lanes_of_the_holder(harness: StoreHarness) -> None:
    mine = await set_working(harness)
    store = mine.store
    other = await set_working(harness, "bo", store=store)
    warm = await set_warm(harness, "cy", store=store)
    free = await set_scene(harness, "di", store=store)
    for scene in (mine, other, warm, free):
        await scene.send("more")
    await store.set_paused(warm.agent, is_paused=True)
    await store.set_paused(await mine.add_agent("ed"), is_paused=True)

    assert [requests.agent for requests in await store.pending_requests(mine.holder)] == [
        mine.agent
    ]
    assert [requests.agent for requests in await store.pending_requests(other.holder)] == [
        other.agent
    ]
    assert await store.pending_requests(warm.holder) == []


async def check_pending_requests_are_sorted_by_agent(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    agents = [scene.agent, *[await scene.add_agent(name) for name in ("bo", "cy")]]
    for agent in agents[::-1]:
        await scene.send("work", to=agent)
    await scene.claim_lanes(limit=5)
    for agent in agents[::-1]:
        await scene.send("more", to=agent)

    assert [
        requests.agent for requests in await scene.store.pending_requests(scene.holder)
    ] == sorted(agents)
