"""Promises about `continue_with`: one item is settled and the next one runs, in one step."""

from collections.abc import Awaitable, Callable

from steadyrun.errors import ChangeRefused, LeaseLost, NotFound
from steadyrun.model.gate import Opened
from steadyrun.model.ids import ItemId
from steadyrun.model.item import Item, Message
from steadyrun.model.run import Created, EndStatus, Orphaned
from steadyrun.testing.store_conformance.fixtures import (
    Steered,
    claim_lanes,
    expect_refused,
    reap_claims,
    run_overlapping,
    set_scene,
    set_steered,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def _set_ending(
    harness: StoreHarness,
    followups: int,
    status: EndStatus | None = "completed",
    absorbed: int = 0,
) -> Steered:
    """A held lane whose run has ended; all of `later` but the last were offered to it."""
    ending = await set_steered(harness, followups)
    await ending.store.offer_followups(ending.claim, limit=followups - 1)
    for item in ending.later[:absorbed]:
        await ending.store.close_offer(ending.claim, item.id, "absorbed")
    if status:
        end = ending.make_end(status, text="first words")
        await ending.store.change(ending.claim, ending.run, end)
    return ending


async def check_a_followup_becomes_an_own_turn_in_one_step(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3)
    store, before = ending.store, await ending.store.lane(ending.agent)

    claim = await store.continue_with(ending.claim, ending.later[1].id)

    assert (claim.agent, claim.holder) == (ending.claim.agent, ending.claim.holder)
    assert (claim.fence, claim.item.id) == (ending.claim.fence, ending.later[1].id)
    assert claim.item == await store.item(claim.item.id)
    assert (claim.item.attempt, claim.item.run) == (1, None)
    old = await store.item(ending.claim.item.id)
    assert (old.reply, old.run, old.settled_at) == ("first words", ending.run, harness.clock.now())
    assert await ending.list_all_states() == [
        ("completed", "none"),
        ("running", "offered"),
        ("running", "own_turn"),
        ("queued", "none"),
    ]
    assert await store.lane(ending.agent) == before


async def check_an_own_turn_absorbs_the_remaining_offers(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3)
    claim = await ending.store.continue_with(ending.claim, ending.later[1].id)

    run = await ending.begin(claim)
    await ending.store.close_offer(claim, ending.later[0].id, "absorbed")
    settled = await ending.finish(claim, text="more words")

    assert (settled.id, settled.status, settled.reply) == (claim.item.id, "completed", "more words")
    shared = await ending.store.item(ending.later[0].id)
    assert (shared.status, shared.run, shared.reply) == ("completed", run, "more words")
    assert (await ending.store.item(ending.claim.item.id)).reply == "first words"
    assert (await ending.claim_next()).item.id == ending.later[2].id


async def check_continuing_settles_the_absorbed_items(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3, absorbed=1)

    await ending.store.continue_with(ending.claim, ending.later[1].id)

    shared = await ending.store.item(ending.later[0].id)
    assert (shared.status, shared.delivery, shared.run) == ("completed", "absorbed", ending.run)
    assert shared.reply == "first words"


async def check_an_unprompted_turn_is_the_last_item_of_its_lane(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2)
    store, now = ending.store, harness.clock.now()
    before = await store.lane(ending.agent)

    claim = await store.continue_with(ending.claim, ending.make_unprompted("k"))

    item = claim.item
    assert item == await store.item(item.id)
    assert (item.text, item.kind, item.seq) == ("by itself", "self", before.last_seq + 1)
    assert (item.status, item.delivery, item.attempt) == ("running", "none", 1)
    assert (item.created_at, item.started_at, item.run) == (now, now, None)
    lane = await store.lane(ending.agent)
    assert (lane.status, lane.holder, lane.fence) == ("held", claim.holder, ending.claim.fence)
    assert (lane.queued, lane.last_seq) == (before.queued, item.seq)
    assert await ending.list_all_states() == [
        ("completed", "none"),
        ("running", "offered"),
        ("queued", "none"),
    ]
    again = await store.accept(ending.make_unprompted("k"))
    assert (again.item.id, again.is_new) == (item.id, False)
    await ending.begin(claim)
    assert (await ending.finish(claim)).reply == "done"


async def check_a_used_key_starts_no_unprompted_turn(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 1)
    await ending.send(key="k")

    verb = ending.store.continue_with(ending.claim, ending.make_unprompted("k"))

    await expect_refused(ending.store, ChangeRefused, verb)


async def check_a_claim_continues_only_after_its_run_has_ended(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2, status=None)
    store, offer = ending.store, ending.later[0].id
    bo = await set_scene(harness, "bo", store=store)
    await bo.send()
    [unbegun] = await claim_lanes(store, bo.holder, agent=bo.agent)

    for to in (offer, ending.make_unprompted()):
        await expect_refused(store, ChangeRefused, store.continue_with(ending.claim, to))
    message = Message(bo.agent, "by itself", "self")
    await expect_refused(store, ChangeRefused, store.continue_with(unbegun, message))
    await store.change(ending.claim, ending.run, ending.make_end("failed"))

    assert (await store.continue_with(ending.claim, offer)).item.id == offer
    assert (await store.item(ending.claim.item.id)).status == "failed"


async def check_a_claim_continues_only_with_its_own_offers(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3, absorbed=1)
    store = ending.store
    bo = await ending.add_agent("bo")
    queued = await ending.send("not ours", to=bo)
    foreign = await _offer_elsewhere(ending, harness)

    for item in (ending.later[0], ending.later[2], ending.claim.item, queued, foreign):
        await expect_refused(store, ChangeRefused, store.continue_with(ending.claim, item.id))
    await expect_refused(
        store, ChangeRefused, store.continue_with(ending.claim, Message(bo, "by itself"))
    )
    await expect_refused(store, NotFound, store.continue_with(ending.claim, ItemId("itm_none")))


async def _offer_elsewhere(ending: Steered, harness: StoreHarness) -> Item:
    agent = await ending.add_agent("cy")
    await ending.send("work", to=agent)
    [claim] = await ending.claim_lanes(agent=agent)
    await ending.send("later", to=agent)
    [offer] = await ending.store.offer_followups(claim)
    return offer


async def check_an_invalid_claim_does_not_continue(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2)
    store = ending.store
    await store.leave(ending.holder)
    [claim] = await reap_claims(store, (await store.join("reaper")).id)

    for to in (ending.later[0].id, ending.make_unprompted()):
        error = await expect_refused(store, LeaseLost, store.continue_with(ending.claim, to))
        assert (error.agent, error.fence) == (ending.claim.agent, ending.claim.fence)

    assert (await store.continue_with(claim, ending.later[0].id)).fence == claim.fence
    assert (await store.item(ending.claim.item.id)).status == "completed"


async def check_an_item_is_settled_once(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3)
    store = ending.store
    claim = await store.continue_with(ending.claim, ending.later[0].id)
    settled = await store.item(ending.claim.item.id)

    for write in _list_writes(ending):
        await expect_refused(store, ChangeRefused, write())
    await ending.begin(claim)
    for write in _list_writes(ending):
        await expect_refused(store, ChangeRefused, write())

    assert (await ending.finish(claim)).id == claim.item.id
    assert await store.item(settled.id) == settled


async def check_an_item_that_was_absorbed_later_ends_with_that_run(harness: StoreHarness) -> None:
    """The old claim ends nothing, though its item runs again as a follow-up and has a run."""
    ending = await _set_ending(harness, 2, "rate_limited")
    store = ending.store
    claim = await store.continue_with(ending.claim, ending.later[0].id)
    run = await ending.begin(claim)
    [offer, _] = await store.offer_followups(claim, limit=2)
    assert (offer.id, offer.run) == (ending.claim.item.id, ending.run)

    for write in _list_writes(ending):
        await expect_refused(store, ChangeRefused, write())
    await store.close_offer(claim, offer.id, "absorbed")
    for write in _list_writes(ending):
        await expect_refused(store, ChangeRefused, write())

    await ending.finish(claim)
    shared = await store.item(offer.id)
    assert (shared.status, shared.run, shared.reply) == ("completed", run, "done")


def _list_writes(ending: Steered) -> list[Callable[[], Awaitable[object]]]:
    """The writes of a claim that has continued with another item."""
    store, claim = ending.store, ending.claim
    run, now, offer = ending.harness.ids.make_run(), ending.harness.clock.now(), ending.later[1].id
    created = Created(run, claim.agent, claim.item.id, "claude", now)
    return [
        lambda: store.settle(claim),
        lambda: store.settle(claim, ending.make_end("failed")),
        lambda: store.close_offer(claim, offer, "absorbed"),
        lambda: store.change(claim, run, created),
        lambda: store.continue_with(claim, offer),
        lambda: store.continue_with(claim, ending.make_unprompted()),
    ]


async def check_continuing_requeues_a_rate_limited_item(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 4, "rate_limited", absorbed=1)
    store = ending.store

    claim = await store.continue_with(ending.claim, ending.later[1].id)

    assert await ending.list_all_states() == [
        ("queued", "none"),
        ("queued", "returned"),
        ("running", "own_turn"),
        ("running", "offered"),
        ("queued", "none"),
    ]
    assert (await store.lane(ending.agent)).queued == 3
    await ending.begin(claim)
    await ending.finish(claim)
    assert (await store.lane(ending.agent)).queued == 4
    await store.update_gate("claude", Opened())
    again = await ending.claim_next()
    assert (again.item.id, again.item.attempt) == (ending.claim.item.id, 2)


async def check_a_requeued_item_may_continue_as_an_own_turn(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2, "rate_limited")
    store = ending.store
    claim = await store.continue_with(ending.claim, ending.make_unprompted())
    run = await ending.begin(claim)
    await store.offer_followups(claim)
    await store.change(claim, run, ending.make_end())

    again = await store.continue_with(claim, ending.claim.item.id)

    assert (again.item.delivery, again.item.attempt, again.item.run) == ("own_turn", 2, None)
    await ending.begin(again)
    assert (await ending.finish(again)).status == "completed"


async def check_an_interrupted_own_turn_keeps_its_place(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3)
    claim = await ending.store.continue_with(ending.claim, ending.later[0].id)

    await ending.begin(claim)
    await ending.finish(claim, "cancelled", stop_reason="shutdown")

    assert await ending.list_all_states() == [
        ("completed", "none"),
        ("queued", "none"),
        ("queued", "returned"),
        ("queued", "none"),
    ]
    assert (await ending.store.lane(ending.agent)).queued == 3
    assert (await ending.claim_next()).item.id == ending.later[0].id


async def check_a_continued_claim_is_reaped_with_its_new_item(harness: StoreHarness) -> None:
    for n, is_unasked in enumerate((False, True)):
        scene = await set_scene(harness, f"ada{n}")
        await scene.send()
        dead = await harness.claim_and_exit()
        run = await scene.begin(dead)
        await scene.send("later")
        [offer] = await scene.store.offer_followups(dead)
        await scene.store.change(dead, run, scene.make_end())
        to = Message(scene.agent, "by itself", "self") if is_unasked else offer.id
        went_on = await scene.store.continue_with(dead, to)

        [claim] = await scene.reap_claims()

        assert (claim.item, claim.fence) == (went_on.item, dead.fence + 1)
        await scene.begin(claim)
        settled = await scene.store.settle(claim, Orphaned(harness.clock.now()))
        assert (settled.id, settled.status) == (went_on.item.id, "failed")
        assert (await scene.store.item(dead.item.id)).status == "completed"
        await scene.store.set_paused(scene.agent, is_paused=True)


async def check_a_continued_lane_is_never_free(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 4)
    other = await harness.open()
    rival = (await other.join("worker")).id
    claim, [first, second] = ending.claim, [item.id for item in ending.later[:2]]
    turns: list[ItemId | Message] = [first, ending.make_unprompted(), second]
    for to in turns:
        verbs = [
            claim_lanes(other, rival),
            ending.store.continue_with(claim, to),
            claim_lanes(other, rival),
        ]

        before, claim, after = await run_overlapping(harness, verbs)

        assert before == after == await claim_lanes(other, rival) == []
        run = await ending.begin(claim)
        await ending.store.change(claim, run, ending.make_end())

    assert (await ending.store.settle(claim)).id == second
    lane = await other.lane(ending.agent)
    assert (lane.status, lane.queued, lane.fence) == ("ready", 2, ending.claim.fence)


async def check_a_paused_lane_continues(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2)
    await ending.store.set_paused(ending.agent, is_paused=True)

    claim = await ending.store.continue_with(ending.claim, ending.later[0].id)

    assert (await ending.store.lane(ending.agent)).is_paused
    await ending.begin(claim)
    assert (await ending.finish(claim)).status == "completed"
