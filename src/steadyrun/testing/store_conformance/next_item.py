"""Promises about going on: one item is settled and the next one runs, in one step."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from steadyrun.errors import ChangeRefused, LeaseLost, NotFound
from steadyrun.model.gate import Opened
from steadyrun.model.ids import ItemId, RunId
from steadyrun.model.item import Claim, Item, Message
from steadyrun.model.run import Created, EndStatus, Orphaned
from steadyrun.store import Store
from steadyrun.testing.store_conformance.fixtures import (
    Scene,
    add_agent,
    claim_lanes,
    expect_refused,
    reap_claims,
    run_overlapping,
    send,
    set_scene,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


@dataclass(frozen=True)
class _Ending:
    """A held lane whose run has ended; `later` was offered to it, the last of them is queued."""

    scene: Scene
    claim: Claim
    run: RunId
    later: list[Item]

    @property
    def store(self) -> Store:
        return self.scene.store

    def unasked(self, key: str | None = None) -> Message:
        return Message(self.scene.agent, "by itself", "self", key)

    async def statuses(self) -> list[tuple[str, str]]:
        items = [await self.store.item(item.id) for item in (self.claim.item, *self.later)]
        return [(item.status, item.delivery) for item in items]


async def _set_ending(
    harness: StoreHarness,
    followups: int,
    status: EndStatus | None = "completed",
    absorbed: int = 0,
) -> _Ending:
    scene = await set_scene(harness)
    await scene.send("main")
    claim = await scene.claim()
    run = await scene.begin(claim)
    later = [await scene.send(f"later {n}") for n in range(followups)]
    await scene.store.offer_followups(claim, limit=followups - 1)
    for item in later[:absorbed]:
        await scene.store.absorb(claim, item.id)
    if status:
        await scene.store.change(claim, run, scene.ended(status, text="first words"))
    return _Ending(scene, claim, run, later)


async def check_a_followup_becomes_an_own_turn_in_one_step(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3)
    store, before = ending.store, await ending.store.lane(ending.scene.agent)

    claim = await store.continue_with(ending.claim, ending.later[1].id)

    assert (claim.agent, claim.holder) == (ending.claim.agent, ending.claim.holder)
    assert (claim.fence, claim.item.id) == (ending.claim.fence, ending.later[1].id)
    assert claim.item == await store.item(claim.item.id)
    assert (claim.item.attempt, claim.item.run) == (1, None)
    old = await store.item(ending.claim.item.id)
    assert (old.reply, old.run, old.settled_at) == ("first words", ending.run, harness.clock.now())
    assert await ending.statuses() == [
        ("completed", "none"),
        ("running", "offered"),
        ("running", "own_turn"),
        ("queued", "none"),
    ]
    assert await store.lane(ending.scene.agent) == before


async def check_an_own_turn_absorbs_the_offers_that_stayed(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3)
    claim = await ending.store.continue_with(ending.claim, ending.later[1].id)

    run = await ending.scene.begin(claim)
    await ending.store.absorb(claim, ending.later[0].id)
    settled = await ending.scene.finish(claim, text="more words")

    assert (settled.id, settled.status, settled.reply) == (claim.item.id, "completed", "more words")
    shared = await ending.store.item(ending.later[0].id)
    assert (shared.status, shared.run, shared.reply) == ("completed", run, "more words")
    assert (await ending.store.item(ending.claim.item.id)).reply == "first words"
    assert (await ending.scene.claim()).item.id == ending.later[2].id


async def check_what_the_run_absorbed_is_settled_on_going_on(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3, absorbed=1)

    await ending.store.continue_with(ending.claim, ending.later[1].id)

    shared = await ending.store.item(ending.later[0].id)
    assert (shared.status, shared.delivery, shared.run) == ("completed", "absorbed", ending.run)
    assert shared.reply == "first words"


async def check_a_turn_without_a_request_is_last_in_the_lane(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2)
    store, now = ending.store, harness.clock.now()
    before = await store.lane(ending.scene.agent)

    claim = await store.continue_with(ending.claim, ending.unasked("k"))

    item = claim.item
    assert item == await store.item(item.id)
    assert (item.text, item.kind, item.seq) == ("by itself", "self", before.last_seq + 1)
    assert (item.status, item.delivery, item.attempt) == ("running", "none", 1)
    assert (item.created_at, item.started_at, item.run) == (now, now, None)
    lane = await store.lane(ending.scene.agent)
    assert (lane.status, lane.holder, lane.fence) == ("held", claim.holder, ending.claim.fence)
    assert (lane.queued, lane.last_seq) == (before.queued, item.seq)
    assert await ending.statuses() == [
        ("completed", "none"),
        ("running", "offered"),
        ("queued", "none"),
    ]
    again = await store.accept(ending.unasked("k"))
    assert (again.item.id, again.is_new) == (item.id, False)
    await ending.scene.begin(claim)
    assert (await ending.scene.finish(claim)).reply == "done"


async def check_a_message_that_is_known_is_no_new_turn(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 1)
    await ending.scene.send(key="k")

    verb = ending.store.continue_with(ending.claim, ending.unasked("k"))

    await expect_refused(ending.store, ChangeRefused, verb)


async def check_a_claim_goes_on_once_its_run_has_ended(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2, status=None)
    store, offer = ending.store, ending.later[0].id
    bo = await set_scene(harness, "bo", store=store)
    await bo.send()
    [unbegun] = await claim_lanes(store, bo.holder, agent=bo.agent)

    for to in (offer, ending.unasked()):
        await expect_refused(store, ChangeRefused, store.continue_with(ending.claim, to))
    message = Message(bo.agent, "by itself", "self")
    await expect_refused(store, ChangeRefused, store.continue_with(unbegun, message))
    await store.change(ending.claim, ending.run, ending.scene.ended("failed"))

    assert (await store.continue_with(ending.claim, offer)).item.id == offer
    assert (await store.item(ending.claim.item.id)).status == "failed"


async def check_a_claim_goes_on_to_what_was_offered_to_it(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3, absorbed=1)
    store = ending.store
    bo = await add_agent(harness, store, "bo")
    queued = await send(harness, store, bo, "not ours")
    foreign = await _offer_elsewhere(ending, harness)

    for item in (ending.later[0], ending.later[2], ending.claim.item, queued, foreign):
        await expect_refused(store, ChangeRefused, store.continue_with(ending.claim, item.id))
    await expect_refused(
        store, ChangeRefused, store.continue_with(ending.claim, Message(bo, "by itself"))
    )
    await expect_refused(store, NotFound, store.continue_with(ending.claim, ItemId("itm_none")))


async def _offer_elsewhere(ending: _Ending, harness: StoreHarness) -> Item:
    agent = await add_agent(harness, ending.store, "cy")
    await send(harness, ending.store, agent, "work")
    [claim] = await claim_lanes(ending.store, ending.scene.holder, agent=agent)
    await send(harness, ending.store, agent, "later")
    [offer] = await ending.store.offer_followups(claim)
    return offer


async def check_a_claim_that_is_over_does_not_go_on(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2)
    store = ending.store
    await store.leave(ending.scene.holder)
    [claim] = await reap_claims(store, (await store.join("reaper")).id)

    for to in (ending.later[0].id, ending.unasked()):
        error = await expect_refused(store, LeaseLost, store.continue_with(ending.claim, to))
        assert (error.agent, error.fence) == (ending.claim.agent, ending.claim.fence)

    assert (await store.continue_with(claim, ending.later[0].id)).fence == claim.fence
    assert (await store.item(ending.claim.item.id)).status == "completed"


async def check_an_item_is_settled_once(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3)
    store = ending.store
    claim = await store.continue_with(ending.claim, ending.later[0].id)
    settled = await store.item(ending.claim.item.id)

    for write in _writes(ending):
        await expect_refused(store, ChangeRefused, write())
    await ending.scene.begin(claim)
    for write in _writes(ending):
        await expect_refused(store, ChangeRefused, write())

    assert (await ending.scene.finish(claim)).id == claim.item.id
    assert await store.item(settled.id) == settled


async def check_an_item_that_was_absorbed_later_ends_with_that_run(harness: StoreHarness) -> None:
    """The claim that went on from it ends nothing, though the item is running, and has a run."""
    ending = await _set_ending(harness, 2, "rate_limited")
    store = ending.store
    claim = await store.continue_with(ending.claim, ending.later[0].id)
    run = await ending.scene.begin(claim)
    [offer, _] = await store.offer_followups(claim, limit=2)
    assert (offer.id, offer.run) == (ending.claim.item.id, ending.run)

    for write in _writes(ending):
        await expect_refused(store, ChangeRefused, write())
    await store.absorb(claim, offer.id)
    for write in _writes(ending):
        await expect_refused(store, ChangeRefused, write())

    await ending.scene.finish(claim)
    shared = await store.item(offer.id)
    assert (shared.status, shared.run, shared.reply) == ("completed", run, "done")


def _writes(ending: _Ending) -> list[Callable[[], Awaitable[object]]]:
    """What the claim that went on could break."""
    scene, store, claim = ending.scene, ending.store, ending.claim
    run, now, offer = scene.harness.ids.make_run(), scene.harness.clock.now(), ending.later[1].id
    created = Created(run, claim.agent, claim.item.id, "claude", now)
    return [
        lambda: store.settle(claim),
        lambda: store.settle(claim, scene.ended("failed")),
        lambda: store.absorb(claim, offer),
        lambda: store.change(claim, run, created),
        lambda: store.continue_with(claim, offer),
        lambda: store.continue_with(claim, ending.unasked()),
    ]


async def check_a_rate_limited_item_is_queued_again_on_going_on(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 4, "rate_limited", absorbed=1)
    store = ending.store

    claim = await store.continue_with(ending.claim, ending.later[1].id)

    assert await ending.statuses() == [
        ("queued", "none"),
        ("queued", "returned"),
        ("running", "own_turn"),
        ("running", "offered"),
        ("queued", "none"),
    ]
    assert (await store.lane(ending.scene.agent)).queued == 3
    await ending.scene.begin(claim)
    await ending.scene.finish(claim)
    assert (await store.lane(ending.scene.agent)).queued == 4
    await store.update_gate("claude", Opened())
    again = await ending.scene.claim()
    assert (again.item.id, again.item.attempt) == (ending.claim.item.id, 2)


async def check_an_item_may_have_its_own_turn_after_all(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2, "rate_limited")
    store = ending.store
    claim = await store.continue_with(ending.claim, ending.unasked())
    run = await ending.scene.begin(claim)
    await store.offer_followups(claim)
    await store.change(claim, run, ending.scene.ended())

    again = await store.continue_with(claim, ending.claim.item.id)

    assert (again.item.delivery, again.item.attempt, again.item.run) == ("own_turn", 2, None)
    await ending.scene.begin(again)
    assert (await ending.scene.finish(again)).status == "completed"


async def check_an_interrupted_own_turn_keeps_its_place(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 3)
    claim = await ending.store.continue_with(ending.claim, ending.later[0].id)

    await ending.scene.begin(claim)
    await ending.scene.finish(claim, "cancelled", stop_reason="shutdown")

    assert await ending.statuses() == [
        ("completed", "none"),
        ("queued", "none"),
        ("queued", "returned"),
        ("queued", "none"),
    ]
    assert (await ending.store.lane(ending.scene.agent)).queued == 3
    assert (await ending.scene.claim()).item.id == ending.later[0].id


async def check_what_a_claim_went_on_to_is_reaped(harness: StoreHarness) -> None:
    for n, is_unasked in enumerate((False, True)):
        scene = await set_scene(harness, f"ada{n}")
        await scene.send()
        dead = await harness.claim_and_die()
        run = await scene.begin(dead)
        await scene.send("later")
        [offer] = await scene.store.offer_followups(dead)
        await scene.store.change(dead, run, scene.ended())
        to = Message(scene.agent, "by itself", "self") if is_unasked else offer.id
        went_on = await scene.store.continue_with(dead, to)

        [claim] = await reap_claims(scene.store, scene.holder)

        assert (claim.item, claim.fence) == (went_on.item, dead.fence + 1)
        await scene.begin(claim)
        settled = await scene.store.settle(claim, Orphaned(harness.clock.now()))
        assert (settled.id, settled.status) == (went_on.item.id, "failed")
        assert (await scene.store.item(dead.item.id)).status == "completed"
        await scene.store.pause(scene.agent)


async def check_a_lane_that_goes_on_is_never_free(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 4)
    other = await harness.open()
    rival = (await other.join("worker")).id
    claim, [first, second] = ending.claim, [item.id for item in ending.later[:2]]
    turns: list[ItemId | Message] = [first, ending.unasked(), second]
    for to in turns:
        verbs = [
            claim_lanes(other, rival),
            ending.store.continue_with(claim, to),
            claim_lanes(other, rival),
        ]

        before, claim, after = await run_overlapping(harness, verbs)

        assert before == after == await claim_lanes(other, rival) == []
        run = await ending.scene.begin(claim)
        await ending.store.change(claim, run, ending.scene.ended())

    assert (await ending.store.settle(claim)).id == second
    lane = await other.lane(ending.scene.agent)
    assert (lane.status, lane.queued, lane.fence) == ("ready", 2, ending.claim.fence)


async def check_a_paused_lane_goes_on(harness: StoreHarness) -> None:
    ending = await _set_ending(harness, 2)
    await ending.store.pause(ending.scene.agent)

    claim = await ending.store.continue_with(ending.claim, ending.later[0].id)

    assert (await ending.store.lane(ending.scene.agent)).is_paused
    await ending.scene.begin(claim)
    assert (await ending.scene.finish(claim)).status == "completed"
