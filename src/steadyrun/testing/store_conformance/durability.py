"""Promises about a record whose stores were all closed: what was acknowledged is there."""

from dataclasses import replace

from steadyrun.model.item import Message
from steadyrun.store import DEDUP_RETENTION
from steadyrun.testing.store_conformance.fixtures import (
    read_everything,
    read_process,
    reap_claims,
    set_eventful,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_reopened_store_reads_the_same(harness: StoreHarness) -> None:
    working = await set_eventful(harness)
    before = await read_everything(working.store)
    await working.store.close()

    store = await harness.open()

    assert await read_everything(store) == before


async def check_keys_are_remembered_after_reopening(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    item = await scene.send(key="k")
    await scene.store.close()

    store = await harness.open()

    assert (await store.accept(Message(scene.agent, "again", key="k"))).item == item
    harness.clock.advance(DEDUP_RETENTION)
    assert (await store.accept(Message(scene.agent, "again", key="k"))).is_new


async def check_a_closed_store_holds_no_lane(harness: StoreHarness) -> None:
    working = await set_eventful(harness)
    await working.store.close()

    store = await harness.open()
    reaper = await store.join("reaper")
    [claim] = await reap_claims(store, reaper.id)

    assert (claim.agent, claim.fence) == (working.claim.agent, working.claim.fence + 1)
    assert claim.item.run == working.run


async def check_reaping_removes_dead_holders(harness: StoreHarness) -> None:
    idle, busy = await harness.open(), await set_working(harness)
    await idle.join("worker")
    await idle.close()
    await busy.store.close()

    store = await harness.open()
    reaper = await store.join("reaper")
    await store.reap(reaper.id)

    assert await store.holders() == [reaper]


async def check_numbers_go_on_after_reopening(harness: StoreHarness) -> None:
    working = await set_eventful(harness)
    count = len(await working.store.events())
    await working.store.close()
    store = await harness.open()
    reaper = await store.join("reaper")
    [claim] = await reap_claims(store, reaper.id)
    offset = (await read_process(store, working.process)).offset

    appended = await store.append(claim, working.make_batch(offset, offset + 10))

    assert (appended.count, appended.cursor) == (1, count + 1)
    assert [e.cursor for e in await store.events()] == list(range(1, count + 2))
    item = await replace(working, store=store).send("next")
    assert item.seq == (await store.lane(claim.agent)).last_seq == 4


async def check_writes_of_a_killed_process_are_stored(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    dead = await harness.claim_and_exit()
    await scene.store.close()

    store = await harness.open()

    lane = await store.lane(dead.agent)
    assert (lane.status, lane.holder, lane.fence) == ("held", dead.holder, dead.fence)
    assert await store.item(dead.item.id) == dead.item
