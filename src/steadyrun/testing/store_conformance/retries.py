"""Promises about `retry`: the claim stays, another run is created, and no follow-up is lost."""

from steadyrun.errors import ChangeRefused
from steadyrun.model.event import ErrorFact
from steadyrun.testing.store_conformance.fixtures import expect_refused, set_scene, set_working
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_an_item_is_run_again_under_its_claim(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    await store.change(working.claim, working.run, working.make_end("failed"))
    lane = await store.lane(working.agent)

    claim = await store.retry(working.claim, spends=True)

    assert (claim.agent, claim.holder) == (working.claim.agent, working.claim.holder)
    assert (claim.fence, claim.item.id) == (working.claim.fence, working.claim.item.id)
    item = claim.item
    assert item == await store.item(item.id)
    assert (item.status, item.run, item.before) == ("running", None, working.run)
    assert (item.attempt, item.tries) == (2, 1)
    assert await store.lane(working.agent) == lane
    run = await working.begin(claim)
    settled = await working.finish(claim, text="at last")
    assert (settled.status, settled.reply) == ("completed", "at last")
    assert (settled.run, settled.before) == (run, working.run)


async def check_only_a_retry_that_spends_counts_as_a_try(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next()

    for n, spends in enumerate((False, True, False, True), start=2):
        run = await scene.begin(claim)
        await scene.store.change(claim, run, scene.make_end("failed"))
        claim = await scene.store.retry(claim, spends=spends)
        assert (claim.item.attempt, claim.item.tries, claim.item.before) == (n, (n - 1) // 2, run)

    await scene.begin(claim)
    await scene.finish(claim, "cancelled", stop_reason="shutdown")
    assert (await scene.claim_next()).item.tries == 2, (
        "tries are counted for the item, not for the claim"
    )


async def check_a_retry_requeues_offered_and_absorbed_items(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    later = [await working.send(text) for text in ("absorbed", "offered", "stopped", "queued")]
    await store.offer_followups(claim, limit=3)
    await store.close_offer(claim, later[0].id, "absorbed")
    await store.cancel(later[2].id)
    await store.change(claim, working.run, working.make_end("failed"))

    await store.retry(claim, spends=False)

    found = [await store.item(item.id) for item in later]
    assert [(item.status, item.delivery) for item in found] == [
        ("queued", "returned"),
        ("queued", "returned"),
        ("cancelled", "offered"),
        ("queued", "none"),
    ]
    assert (await store.lane(working.agent)).queued == 3
    offered = await store.offer_followups(claim, limit=5)
    assert [item.id for item in offered] == [later[3].id]


async def check_a_retried_own_turn_is_sent_like_any_other_item(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    await working.send("later")
    [later] = await store.offer_followups(claim)
    await store.change(claim, working.run, working.make_end("completed"))
    own = await store.continue_with(claim, later.id)
    run = await working.begin(own)
    await store.change(own, run, working.make_end("failed"))

    again = await store.retry(own, spends=True)

    assert own.item.delivery == "own_turn"
    assert (again.item.id, again.item.delivery) == (later.id, "none")


async def check_only_an_ended_run_is_retried(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store = scene.store
    await scene.send()
    claim = await scene.claim_next()
    await expect_refused(store, ChangeRefused, store.retry(claim, spends=True))
    run = await scene.begin(claim)
    await expect_refused(store, ChangeRefused, store.retry(claim, spends=True))
    await store.change(claim, run, scene.make_end("failed"))
    await store.cancel(claim.item.id)

    await expect_refused(store, ChangeRefused, store.retry(claim, spends=True))

    assert (await store.settle(claim)).status == "cancelled"


async def check_a_failed_item_has_the_error_of_its_run(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    error = ErrorFact("crashed", f"it said {harness.secret.reveal()}", "Try again.", True)

    async def settle_with(status: str) -> ErrorFact | None:
        await scene.send()
        claim = await scene.claim_next()
        item = await scene.finish(claim, status, error=error)  # type: ignore[arg-type]
        assert item == await scene.store.item(item.id)
        return item.error

    found = await settle_with("failed")
    assert found is not None
    assert (found.code, found.hint, found.retryable) == ("crashed", "Try again.", True)
    assert harness.secret.reveal() not in found.message
    assert await settle_with("completed") is None
    assert await settle_with("cancelled") is None
