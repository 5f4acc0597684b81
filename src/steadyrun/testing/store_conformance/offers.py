"""Promises about follow-ups: only the holder takes them, and none is ever lost or doubled."""

from dataclasses import dataclass

from steadyrun.errors import ChangeRefused, LeaseLost, NotFound
from steadyrun.model.ids import ItemId
from steadyrun.model.item import Claim, Item, ItemStatus, Message
from steadyrun.model.run import EndStatus, StopReason
from steadyrun.testing.store_conformance.fixtures import (
    Scene,
    add_agent,
    claim_lanes,
    expect_refused,
    run_overlapping,
    send,
    set_scene,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


@dataclass(frozen=True)
class _Held:
    """A held lane with a run, and follow-ups queued behind it."""

    scene: Scene
    claim: Claim
    later: list[Item]

    async def status(self, n: int) -> tuple[str, str]:
        item = await self.scene.store.item(self.later[n].id)
        return item.status, item.delivery


async def _set_held(harness: StoreHarness, followups: int) -> _Held:
    scene = await set_scene(harness)
    await scene.send("main")
    claim = await scene.claim()
    await scene.begin(claim)
    return _Held(scene, claim, [await scene.send(f"later {n}") for n in range(followups)])


async def check_the_holder_takes_followups_in_order(harness: StoreHarness) -> None:
    held = await _set_held(harness, 3)
    store = held.scene.store

    taken = [
        *await store.offer_followups(held.claim),
        *await store.offer_followups(held.claim, limit=5),
    ]

    assert [item.id for item in taken] == [item.id for item in held.later]
    assert {(item.status, item.delivery) for item in taken} == {("running", "offered")}
    assert taken[0].started_at == harness.clock.now()
    assert taken == [await store.item(item.id) for item in taken]
    assert (await store.lane(held.scene.agent)).queued == 0
    assert await store.offer_followups(held.claim) == []


async def check_what_shall_wait_is_never_taken(harness: StoreHarness) -> None:
    held = await _set_held(harness, 0)
    store, agent = held.scene.store, held.scene.agent
    waiting = (await store.accept(Message(agent, "wait", followup="queue"))).item
    steering = await held.scene.send("steer")
    assert (waiting.followup, steering.followup) == ("queue", "steer")

    taken = await store.offer_followups(held.claim, limit=5)

    assert [item.id for item in taken] == [steering.id]
    assert await store.offer_followups(held.claim, limit=5) == []
    await held.scene.finish(held.claim)
    assert (await held.scene.claim()).item.id == waiting.id


async def check_no_more_is_taken_than_fits(harness: StoreHarness) -> None:
    held = await _set_held(harness, 0)
    store, send = held.scene.store, held.scene.send
    texts = ["ß" * 10, "x" * 20, "", "x" * 50, "y"]
    sent = [(await send(text)).id for text in texts]

    async def take(limit: int, most_bytes: int) -> list[ItemId]:
        return [i.id for i in await store.offer_followups(held.claim, limit, max_bytes=most_bytes)]

    assert await take(9, 40) == sent[:3], "ß has two bytes"
    assert await take(9, 40) == sent[3:4], "one that is too long alone is taken alone"
    assert await take(0, 40) == []
    assert await take(9, 0) == sent[4:]


async def check_only_the_holder_takes_a_followup(harness: StoreHarness) -> None:
    held = await _set_held(harness, 1)
    other = await harness.open()
    rival = await other.join("worker")
    forged = Claim(held.claim.agent, rival.id, held.claim.fence, held.claim.item)
    early = Claim(held.claim.agent, held.claim.holder, held.claim.fence - 1, held.claim.item)

    for claim in (forged, early):
        error = await expect_refused(other, LeaseLost, other.offer_followups(claim))
        assert (error.agent, error.fence) == (claim.agent, claim.fence)
    assert await claim_lanes(other, rival.id) == []

    assert [item.id for item in await held.scene.store.offer_followups(held.claim)] == [
        held.later[0].id
    ]


async def check_two_takes_never_get_the_same_followup(harness: StoreHarness) -> None:
    held = await _set_held(harness, 6)
    stores = [held.scene.store, await harness.open()]

    answers = await run_overlapping(
        harness, [s.offer_followups(held.claim, limit=2) for s in stores * 2]
    )

    taken = [item.id for answer in answers for item in answer]
    assert sorted(taken) == sorted(item.id for item in held.later)
    assert (await stores[1].lane(held.scene.agent)).queued == 0


async def check_a_returned_followup_keeps_its_place(harness: StoreHarness) -> None:
    held = await _set_held(harness, 3)
    store = held.scene.store
    await store.offer_followups(held.claim, limit=2)
    await store.absorb(held.claim, held.later[1].id)

    await store.return_offer(held.claim, held.later[0].id)

    assert await held.status(0) == ("queued", "returned")
    assert (await store.lane(held.scene.agent)).queued == 2
    again = await store.offer_followups(held.claim, limit=2)
    assert [item.id for item in again] == [held.later[2].id], "it was given back"
    await held.scene.finish(held.claim)
    assert (await held.scene.claim()).item.id == held.later[0].id


async def check_an_absorbed_followup_carries_the_run(harness: StoreHarness) -> None:
    held = await _set_held(harness, 1)
    store = held.scene.store
    await store.offer_followups(held.claim)

    await store.absorb(held.claim, held.later[0].id)

    absorbed = await store.item(held.later[0].id)
    assert (absorbed.status, absorbed.delivery) == ("running", "absorbed")
    assert absorbed.run == (await store.item(held.claim.item.id)).run


async def check_only_an_offer_is_absorbed_or_given_back(harness: StoreHarness) -> None:
    held = await _set_held(harness, 2)
    store = held.scene.store
    await store.offer_followups(held.claim)
    await store.absorb(held.claim, held.later[0].id)
    elsewhere = await send(harness, store, await add_agent(harness, store, "bo"), "not ours")

    for item in (held.later[0].id, held.later[1].id, held.claim.item.id, elsewhere.id):
        await expect_refused(store, ChangeRefused, store.absorb(held.claim, item))
        await expect_refused(store, ChangeRefused, store.return_offer(held.claim, item))
    for verb in (store.absorb, store.return_offer):
        await expect_refused(store, NotFound, verb(held.claim, ItemId("itm_none")))


async def _settled_statuses(
    harness: StoreHarness,
    status: EndStatus,
    stop_reason: StopReason | None,
    cancelled: tuple[int, ...] = (),
) -> list[tuple[str, str]]:
    """How main, absorbed, offered and queued item stand after a run that ended so."""
    held = await _set_held(harness, 3)
    store = held.scene.store
    await store.offer_followups(held.claim, limit=2)
    await store.absorb(held.claim, held.later[0].id)
    everyone = [held.claim.item, *held.later]
    for n in cancelled:
        await store.cancel(everyone[n].id)
    await held.scene.finish(held.claim, status, stop_reason=stop_reason)
    found = [await store.item(item.id) for item in everyone]
    lane = await store.lane(held.scene.agent)
    assert lane.queued == sum(item.status == "queued" for item in found)
    assert lane.status == ("ready" if lane.queued else "idle")
    return [(item.status, item.delivery) for item in found]


async def check_an_absorbed_followup_completes_with_its_run(harness: StoreHarness) -> None:
    assert await _settled_statuses(harness, "completed", None) == [
        ("completed", "none"),
        ("completed", "absorbed"),
        ("queued", "returned"),
        ("queued", "none"),
    ]


async def check_an_absorbed_followup_of_a_failed_run_is_queued_again(
    harness: StoreHarness,
) -> None:
    assert await _settled_statuses(harness, "failed", "hang") == [
        ("failed", "none"),
        ("queued", "returned"),
        ("queued", "returned"),
        ("queued", "none"),
    ]


async def check_an_absorbed_followup_is_cancelled_with_a_stopped_run(
    harness: StoreHarness,
) -> None:
    assert await _settled_statuses(harness, "cancelled", "user_stop") == [
        ("cancelled", "none"),
        ("cancelled", "absorbed"),
        ("queued", "returned"),
        ("queued", "none"),
    ]


async def check_a_rate_limited_run_gives_everything_back(harness: StoreHarness) -> None:
    assert await _settled_statuses(harness, "rate_limited", None) == [
        ("queued", "none"),
        ("queued", "returned"),
        ("queued", "returned"),
        ("queued", "none"),
    ]


async def check_what_was_asked_to_stop_is_not_queued_again(harness: StoreHarness) -> None:
    assert await _settled_statuses(harness, "cancelled", "shutdown", cancelled=(0, 1, 2, 3)) == [
        ("cancelled", "none"),
        ("cancelled", "absorbed"),
        ("cancelled", "offered"),
        ("cancelled", "none"),
    ]


async def check_a_completed_run_wins_over_a_late_request_to_stop(harness: StoreHarness) -> None:
    statuses = await _settled_statuses(harness, "completed", None, cancelled=(0, 1))

    assert [status for status, _ in statuses[:2]] == ["completed", "completed"]


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
        claim = await scene.claim()
        run = await scene.begin(claim)

        settled = await scene.finish(claim, status, stop_reason=stop_reason, text="words")

        assert (settled.id, settled.status, settled.run) == (sent.id, expected, run)
        assert settled.settled_at == harness.clock.now()
        assert settled.reply == ("words" if status == "completed" else None)
        assert settled == await scene.store.item(sent.id)


async def check_an_interrupted_item_goes_first_again(harness: StoreHarness) -> None:
    held = await _set_held(harness, 2)
    store = held.scene.store
    await store.offer_followups(held.claim)
    await store.absorb(held.claim, held.later[0].id)
    await held.scene.finish(held.claim, "cancelled", stop_reason="shutdown")

    again = await held.scene.claim()

    assert (again.item.id, again.item.attempt) == (held.claim.item.id, 2)
    assert again.item.before == held.claim.item.run
    taken = await store.offer_followups(again, limit=5)
    assert [(item.id, item.attempt) for item in taken] == [(held.later[1].id, 0)]


async def check_an_accept_beside_a_take_is_never_lost(harness: StoreHarness) -> None:
    held = await _set_held(harness, 1)
    other = await harness.open()
    for n in range(6):
        verbs = [
            held.scene.store.offer_followups(held.claim, limit=9),
            other.accept(Message(held.scene.agent, "more")),
        ]

        await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

    items = await other.items(held.scene.agent)
    queued = sum(item.status == "queued" for item in items)
    assert len(items) == 1 + 1 + 6
    assert (await other.lane(held.scene.agent)).queued == queued
    assert len(await held.scene.store.offer_followups(held.claim, limit=9)) == queued
