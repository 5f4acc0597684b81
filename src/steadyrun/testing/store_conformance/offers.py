"""Promises about follow-ups: only the holder offers them, and none is lost or repeated."""

from typing import get_args

from steadyrun.errors import ChangeRefused, LeaseLost, NotFound
from steadyrun.model.gate import Opened
from steadyrun.model.ids import ItemId
from steadyrun.model.item import Claim, ItemStatus, Message
from steadyrun.model.run import EndStatus, StopReason
from steadyrun.store import OfferOutcome
from steadyrun.testing.store_conformance.fixtures import (
    claim_lanes,
    expect_refused,
    run_overlapping,
    set_scene,
    set_steered,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_followups_are_offered_in_order(harness: StoreHarness) -> None:
    held = await set_steered(harness, 3)
    store = held.store

    offered = [
        *await store.offer_followups(held.claim),
        *await store.offer_followups(held.claim, limit=5),
    ]

    assert [item.id for item in offered] == [item.id for item in held.later]
    assert {(item.status, item.delivery) for item in offered} == {("running", "offered")}
    assert offered[0].started_at == harness.clock.now()
    assert offered == [await store.item(item.id) for item in offered]
    assert (await store.lane(held.agent)).queued == 0
    assert await store.offer_followups(held.claim) == []


async def check_a_message_that_waits_for_its_own_run_is_never_offered(
    harness: StoreHarness,
) -> None:
    held = await set_steered(harness, 0)
    store, agent = held.store, held.agent
    waiting = (await store.accept(Message(agent, "wait", followup="queue"))).item
    steering = await held.send("steer")
    assert (waiting.followup, steering.followup) == ("queue", "steer")

    offered = await store.offer_followups(held.claim, limit=5)

    assert [item.id for item in offered] == [steering.id]
    assert await store.offer_followups(held.claim, limit=5) == []
    await held.finish(held.claim)
    assert (await held.claim_next()).item.id == waiting.id


async def check_offers_are_limited_by_their_bytes(harness: StoreHarness) -> None:
    held = await set_steered(harness, 0)
    store, send = held.store, held.send
    texts = ["ß" * 10, "x" * 20, "", "x" * 50, "y"]
    sent = [(await send(text)).id for text in texts]

    async def take(limit: int, most_bytes: int) -> list[ItemId]:
        return [i.id for i in await store.offer_followups(held.claim, limit, max_bytes=most_bytes)]

    assert await take(9, 40) == sent[:3], "ß has two bytes"
    assert await take(9, 40) == sent[3:4], "one that is too long alone is taken alone"
    assert await take(0, 40) == []
    assert await take(9, 0) == sent[4:]


async def check_only_the_holder_offers_a_followup(harness: StoreHarness) -> None:
    held = await set_steered(harness, 1)
    other = await harness.open()
    rival = await other.join("worker")
    forged = Claim(held.claim.agent, rival.id, held.claim.fence, held.claim.item)
    early = Claim(held.claim.agent, held.claim.holder, held.claim.fence - 1, held.claim.item)

    for claim in (forged, early):
        error = await expect_refused(other, LeaseLost, other.offer_followups(claim))
        assert (error.agent, error.fence) == (claim.agent, claim.fence)
    assert await claim_lanes(other, rival.id) == []

    assert [item.id for item in await held.store.offer_followups(held.claim)] == [held.later[0].id]


async def check_concurrent_offers_never_get_the_same_followup(harness: StoreHarness) -> None:
    held = await set_steered(harness, 6)
    stores = [held.store, await harness.open()]

    answers = await run_overlapping(
        harness, [s.offer_followups(held.claim, limit=2) for s in stores * 2]
    )

    offered = [item.id for answer in answers for item in answer]
    assert sorted(offered) == sorted(item.id for item in held.later)
    assert (await stores[1].lane(held.agent)).queued == 0


async def check_a_returned_followup_keeps_its_place(harness: StoreHarness) -> None:
    held = await set_steered(harness, 3)
    store = held.store
    await store.offer_followups(held.claim, limit=2)
    await store.close_offer(held.claim, held.later[1].id, "absorbed")

    await store.close_offer(held.claim, held.later[0].id, "returned")

    assert await held.list_states(held.later[0]) == [("queued", "returned")]
    assert (await store.lane(held.agent)).queued == 2
    again = await store.offer_followups(held.claim, limit=2)
    assert [item.id for item in again] == [held.later[2].id], "it was given back"
    await held.finish(held.claim)
    assert (await held.claim_next()).item.id == held.later[0].id


async def check_an_absorbed_followup_has_the_run(harness: StoreHarness) -> None:
    held = await set_steered(harness, 1)
    store = held.store
    await store.offer_followups(held.claim)

    await store.close_offer(held.claim, held.later[0].id, "absorbed")

    absorbed = await store.item(held.later[0].id)
    assert (absorbed.status, absorbed.delivery) == ("running", "absorbed")
    assert absorbed.run == (await store.item(held.claim.item.id)).run


async def check_only_an_offer_is_absorbed_or_returned(harness: StoreHarness) -> None:
    held = await set_steered(harness, 2)
    store = held.store
    await store.offer_followups(held.claim)
    await store.close_offer(held.claim, held.later[0].id, "absorbed")
    elsewhere = await held.send("not ours", to=await held.add_agent("bo"))

    outcomes: tuple[OfferOutcome, ...] = get_args(OfferOutcome)
    for outcome in outcomes:
        for item in (held.later[0].id, held.later[1].id, held.claim.item.id, elsewhere.id):
            verb = store.close_offer(held.claim, item, outcome)
            await expect_refused(store, ChangeRefused, verb)
        missing = store.close_offer(held.claim, ItemId("itm_none"), outcome)
        await expect_refused(store, NotFound, missing)


async def check_the_end_of_a_run_decides_about_its_followups(harness: StoreHarness) -> None:
    """The states are those of the main, an absorbed, an offered and a queued item."""
    endings: list[tuple[EndStatus, StopReason | None, str]] = [
        ("completed", None, "completed/none completed/absorbed queued/returned queued/none"),
        ("failed", "hang", "failed/none queued/returned queued/returned queued/none"),
        ("cancelled", "user_stop", "cancelled/none cancelled/absorbed queued/returned queued/none"),
        ("rate_limited", None, "queued/none queued/returned queued/returned queued/none"),
    ]
    for n, (status, stop_reason, expected) in enumerate(endings):
        assert await _end_run(harness, f"ada{n}", status, stop_reason) == expected.split()
        await (await harness.open()).update_gate("claude", Opened())


async def check_an_item_asked_to_stop_is_not_requeued(harness: StoreHarness) -> None:
    states = await _end_run(harness, "ada", "cancelled", "shutdown", cancelled=(0, 1, 2, 3))

    assert states == ["cancelled/none", "cancelled/absorbed", "cancelled/offered", "cancelled/none"]


async def check_a_completed_item_ignores_a_late_request_to_stop(harness: StoreHarness) -> None:
    states = await _end_run(harness, "ada", "completed", None, cancelled=(0, 1))

    assert states[:2] == ["completed/none", "completed/absorbed"]


async def _end_run(
    harness: StoreHarness,
    name: str,
    status: EndStatus,
    stop_reason: StopReason | None,
    *,
    cancelled: tuple[int, ...] = (),
) -> list[str]:
    """The states of the main, an absorbed, an offered and a queued item after the end of a run."""
    held = await set_steered(harness, 3, name)
    store = held.store
    await store.offer_followups(held.claim, limit=2)
    await store.close_offer(held.claim, held.later[0].id, "absorbed")
    everyone = [held.claim.item, *held.later]
    for n in cancelled:
        await store.cancel(everyone[n].id)
    await held.finish(held.claim, status, stop_reason=stop_reason)
    found = [await store.item(item.id) for item in everyone]
    lane = await store.lane(held.agent)
    assert lane.queued == sum(item.status == "queued" for item in found)
    assert lane.status == ("ready" if lane.queued else "idle")
    await store.set_paused(held.agent, is_paused=True)
    return [f"{item.status}/{item.delivery}" for item in found]


async def check_every_ending_settles_its_item(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    endings: list[tuple[EndStatus, StopReason | None, ItemStatus]] = [
        ("completed", None, "completed"),
        ("failed", "stall", "failed"),
        ("cancelled", "user_stop", "cancelled"),
        ("timed_out", "wall_timeout", "failed"),
        ("failed", "orphaned", "failed"),
    ]
    for status, stop_reason, expected in endings:
        sent = await scene.send()
        claim = await scene.claim_next()
        run = await scene.begin(claim)

        settled = await scene.finish(claim, status, stop_reason=stop_reason, text="words")

        assert (settled.id, settled.status, settled.run) == (sent.id, expected, run)
        assert settled.settled_at == harness.clock.now()
        assert settled.reply == ("words" if status == "completed" else None)
        assert settled == await scene.store.item(sent.id)


async def check_an_interrupted_item_goes_first_again(harness: StoreHarness) -> None:
    held = await set_steered(harness, 2)
    store = held.store
    await store.offer_followups(held.claim)
    await store.close_offer(held.claim, held.later[0].id, "absorbed")
    await held.finish(held.claim, "cancelled", stop_reason="shutdown")

    again = await held.claim_next()

    assert (again.item.id, again.item.attempt) == (held.claim.item.id, 2)
    assert again.item.before == held.claim.item.run
    offered = await store.offer_followups(again, limit=5)
    assert [(item.id, item.attempt) for item in offered] == [(held.later[1].id, 0)]


async def check_an_accept_concurrent_with_an_offer_is_never_lost(harness: StoreHarness) -> None:
    held = await set_steered(harness, 1)
    other = await harness.open()
    for n in range(6):
        verbs = [
            held.store.offer_followups(held.claim, limit=9),
            other.accept(Message(held.agent, "more")),
        ]

        await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

    items = await other.items(held.agent)
    queued = sum(item.status == "queued" for item in items)
    assert len(items) == 1 + 1 + 6
    assert (await other.lane(held.agent)).queued == queued
    assert len(await held.store.offer_followups(held.claim, limit=9)) == queued
