"""Promises about trying again: the same claim, another run, and nothing that came with it lost."""

from steadyrun.errors import ChangeRefused
from steadyrun.model.event import ErrorFact
from steadyrun.testing.store_conformance.fixtures import (
    expect_refused,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_an_item_is_run_again_under_its_claim(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene = working.store, working.scene
    await store.change(working.claim, working.run, scene.ended("failed"))
    lane = await store.lane(scene.agent)

    claim = await store.retry(working.claim, spends=True)

    assert (claim.agent, claim.holder) == (working.claim.agent, working.claim.holder)
    assert (claim.fence, claim.item.id) == (working.claim.fence, working.claim.item.id)
    item = claim.item
    assert item == await store.item(item.id)
    assert (item.status, item.run, item.before) == ("running", None, working.run)
    assert (item.attempt, item.tries) == (2, 1)
    assert await store.lane(scene.agent) == lane
    run = await scene.begin(claim)
    settled = await scene.finish(claim, text="at last")
    assert (settled.status, settled.reply) == ("completed", "at last")
    assert (settled.run, settled.before) == (run, working.run)


async def check_only_what_it_costs_is_counted_as_a_try(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim()

    for n, spends in enumerate((False, True, False, True), start=2):
        run = await scene.begin(claim)
        await scene.store.change(claim, run, scene.ended("failed"))
        claim = await scene.store.retry(claim, spends=spends)
        assert (claim.item.attempt, claim.item.tries, claim.item.before) == (n, (n - 1) // 2, run)

    await scene.begin(claim)
    await scene.finish(claim, "cancelled", stop_reason="shutdown")
    assert (await scene.claim()).item.tries == 2, "it is the item's, not the claim's"


async def check_what_came_with_the_run_is_back_in_its_place(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene, claim = working.store, working.scene, working.claim
    later = [await scene.send(text) for text in ("absorbed", "offered", "stopped", "queued")]
    await store.offer_followups(claim, limit=3)
    await store.absorb(claim, later[0].id)
    await store.cancel(later[2].id)
    await store.change(claim, working.run, scene.ended("failed"))

    await store.retry(claim, spends=False)

    found = [await store.item(item.id) for item in later]
    assert [(item.status, item.delivery) for item in found] == [
        ("queued", "returned"),
        ("queued", "returned"),
        ("cancelled", "offered"),
        ("queued", "none"),
    ]
    assert (await store.lane(scene.agent)).queued == 3
    taken = await store.offer_followups(claim, limit=5)
    assert [item.id for item in taken] == [later[3].id]


async def check_an_own_turn_is_told_when_it_is_run_again(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene, claim = working.store, working.scene, working.claim
    await scene.send("later")
    [later] = await store.offer_followups(claim)
    await store.change(claim, working.run, scene.ended("completed"))
    own = await store.continue_with(claim, later.id)
    run = await scene.begin(own)
    await store.change(own, run, scene.ended("failed"))

    again = await store.retry(own, spends=True)

    assert own.item.delivery == "own_turn"
    assert (again.item.id, again.item.delivery) == (later.id, "none")


async def check_only_what_has_ended_is_run_again(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store = scene.store
    await scene.send()
    claim = await scene.claim()
    await expect_refused(store, ChangeRefused, store.retry(claim, spends=True))
    run = await scene.begin(claim)
    await expect_refused(store, ChangeRefused, store.retry(claim, spends=True))
    await store.change(claim, run, scene.ended("failed"))
    await store.cancel(claim.item.id)

    await expect_refused(store, ChangeRefused, store.retry(claim, spends=True))

    assert (await store.settle(claim)).status == "cancelled"


async def check_an_item_that_failed_says_why(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    error = ErrorFact("crashed", f"it said {harness.secret.reveal()}", "Try again.", True)

    async def settled(status: str) -> ErrorFact | None:
        await scene.send()
        claim = await scene.claim()
        await scene.begin(claim)
        item = await scene.finish(claim, status, error=error)  # type: ignore[arg-type]
        assert item == await scene.store.item(item.id)
        return item.error

    found = await settled("failed")
    assert found is not None
    assert (found.code, found.hint, found.retryable) == ("crashed", "Try again.", True)
    assert harness.secret.reveal() not in found.message
    assert await settled("completed") is None
    assert await settled("cancelled") is None
