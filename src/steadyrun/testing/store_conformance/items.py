"""Promises about agents and items: accepted once, kept whole, found again, cancelled."""

from datetime import timedelta

import anyio

from steadyrun.errors import NameTaken, NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.budget import Budget
from steadyrun.model.event import ErrorFact
from steadyrun.model.ids import AgentId, ItemId, ProcessId, RunId
from steadyrun.model.item import Attachment, ItemStatus, Message, Payload
from steadyrun.model.policy import Policy
from steadyrun.model.run import EndStatus
from steadyrun.store import DEDUP_RETENTION
from steadyrun.testing.store_conformance.fixtures import (
    add_agent,
    expect_refused,
    read_everything,
    run_overlapping,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_an_agent_is_found_by_name_and_by_id(harness: StoreHarness) -> None:
    store = await harness.open()
    policy = Policy("plan", ("Read", "Edit"), Budget(run=1.5))
    ada = Agent(harness.ids.make_agent(), "ada", ("claude", "codex"), "/home/ada", "opus", policy)
    await store.add_agent(ada)
    bo = await add_agent(harness, store, "Bo")

    assert await store.agent("ada") == ada
    assert await store.agent(ada.id) == ada
    assert [agent.name for agent in await store.agents()] == ["Bo", "ada"]
    assert (await store.lane(bo)).status == "idle"


async def check_a_name_is_taken_once(harness: StoreHarness) -> None:
    store = await harness.open()
    ada = await add_agent(harness, store, "ada")

    for name, agent in [
        ("ada", harness.ids.make_agent()),
        ("bo", ada),
        (ada, harness.ids.make_agent()),
    ]:
        error = await expect_refused(
            store, NameTaken, store.add_agent(Agent(agent, name, ("codex",), "/"))
        )
        assert error.name == name


async def check_the_payload_of_a_message_is_stored(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    old = await scene.send()
    file = Attachment("a b.png", "attachments/ab12", 12, "image/png")
    payload = Payload((file,), {"why": {"deep": [1, None]}}, retry_of=old.id)

    accepted = await scene.store.accept(Message(scene.agent, "look", payload=payload))

    assert accepted.item.payload == payload
    assert (await scene.store.item(accepted.item.id)).payload == payload
    assert (await scene.store.item(old.id)).payload == Payload()


async def check_unknown_ids_are_not_found(harness: StoreHarness) -> None:
    store = await harness.open()
    agent, item = AgentId("agt_none"), ItemId("itm_none")

    for kind, name, verb in [
        ("agent", "missing", store.agent("missing")),
        ("agent", agent, store.lane(agent)),
        ("agent", agent, store.set_paused(agent, is_paused=True)),
        ("agent", agent, store.set_paused(agent, is_paused=False)),
        ("agent", agent, store.accept(Message(agent, "hello", key="k"))),
        ("item", item, store.item(item)),
        ("item", item, store.cancel(item)),
        ("run", "run_none", store.run(RunId("run_none"))),
    ]:
        error = await expect_refused(store, NotFound, verb)
        assert (error.kind, error.name) == (kind, name)

    assert await store.sessions(agent) == {}
    assert await store.items(agent) == []
    assert await store.runs(agent) == []
    assert await store.processes([ProcessId("prc_none")]) == []
    assert await store.events(agent=agent, run=RunId("run_none")) == []
    assert await store.events(agent=agent, newest=True) == []


async def check_a_message_becomes_an_item_at_the_end_of_its_lane(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first = await scene.send("one")
    accepted = await scene.store.accept(
        Message(scene.agent, "two", kind="reminder", on_lost="fail")
    )

    second = accepted.item
    assert accepted.is_new
    assert (second.seq, second.status, second.delivery) == (2, "queued", "none")
    assert (second.kind, second.on_lost, second.text) == ("reminder", "fail", "two")
    assert (second.attempt, second.run, second.settled_at) == (0, None, None)
    assert second.created_at == harness.clock.now()
    lane = await scene.store.lane(scene.agent)
    assert (lane.status, lane.queued, lane.last_seq) == ("ready", 2, 2)
    assert lane.ready_at == first.created_at


async def check_text_is_kept_whole(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    reader = await harness.open()
    for text in ["", "a\x00b", "two\r\nlines\u2028", "grüße 🧵 \U0010ffff", "'; --", "x" * 300_000]:
        sent = await scene.send(text)

        assert (await reader.item(sent.id)).text == text


async def check_the_same_key_is_the_same_item(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    item = await scene.send("one", key="k")
    before = await read_everything(scene.store)

    again = await other.accept(Message(scene.agent, "something else", key="k"))

    assert again.item == item
    assert not again.is_new
    assert await read_everything(scene.store) == before


async def check_a_repeated_key_sends_no_hint(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send(key="k")
    claim = await scene.claim_next()
    assert not (await scene.store.accept(Message(scene.agent, "again", key="k"))).is_new
    settled = await scene.finish(claim)

    again = await scene.store.accept(Message(scene.agent, "again", key="k"))

    assert again.item == settled
    assert (await scene.store.lane(scene.agent)).status == "idle"
    assert await scene.claim_lanes() == []


async def check_a_key_is_new_again_after_its_retention(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first = await scene.send(key="k")
    harness.clock.advance(DEDUP_RETENTION - timedelta(microseconds=1))
    assert (await scene.store.accept(Message(scene.agent, "x", key="k"))).item == first
    harness.clock.advance(timedelta(microseconds=1))

    later = await scene.store.accept(Message(scene.agent, "x", key="k"))

    assert later.is_new
    assert later.item.seq == 2


async def check_keys_are_each_agents_own(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    bo = await scene.add_agent("bo")
    for key in ["k", ""]:
        mine = await scene.store.accept(Message(scene.agent, "x", key=key))
        theirs = await scene.store.accept(Message(bo, "x", key=key))

        assert mine.is_new
        assert theirs.is_new
        assert mine.item.id != theirs.item.id


async def check_without_a_key_every_message_is_new(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    for _ in range(3):
        assert (await scene.store.accept(Message(scene.agent, "same"))).is_new


async def check_one_key_from_several_stores_is_one_item(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    stores = [scene.store, await harness.open(), await harness.open()]
    message = Message(scene.agent, "x", key="k")

    answers = await run_overlapping(harness, [store.accept(message) for store in stores * 4])

    assert sorted(answer.is_new for answer in answers) == [False] * 11 + [True]
    assert (await scene.store.lane(scene.agent)).queued == 1
    assert len(await scene.store.items(scene.agent)) == 1


async def check_items_are_paged_newest_first(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    bo = await scene.add_agent("bo")
    sent = [await scene.send(str(n)) for n in range(7)]
    await scene.store.accept(Message(bo, "other"))
    whole = await scene.store.items(scene.agent)
    assert whole == sent[::-1]

    for limit in (1, 2, 3, 7, 8):
        page = paged = await scene.store.items(scene.agent, limit=limit)
        while page and len(paged) <= len(whole):
            page = await scene.store.items(scene.agent, before=page[-1].id, limit=limit)
            paged = paged + page
        assert paged == whole

    assert len(await scene.store.items()) == 8


async def check_settled_items_are_listed_when_asked_for(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first, second = await scene.send(), await scene.send()
    first = await scene.store.cancel(first.id)

    assert await scene.store.items() == [second]
    assert await scene.store.items(include_settled=True) == [second, first]


async def check_a_queued_item_is_cancelled_at_once(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first, second = await scene.send(), await scene.send()

    cancelled = await scene.store.cancel(first.id)

    assert (cancelled.status, cancelled.settled_at) == ("cancelled", harness.clock.now())
    assert cancelled == await scene.store.item(first.id)
    assert (await scene.store.lane(scene.agent)).queued == 1
    assert (await scene.claim_next()).item.id == second.id


async def check_a_lane_whose_last_item_is_cancelled_is_idle(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    item = await scene.send()

    await scene.store.cancel(item.id)

    lane = await scene.store.lane(scene.agent)
    assert (lane.status, lane.queued, lane.ready_at) == ("idle", 0, None)
    assert await scene.claim_lanes() == []
    again = await scene.send()
    assert (await scene.claim_next()).item.id == again.id


async def check_a_running_item_is_asked_to_stop(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    item = await scene.send()
    claim = await scene.claim_next()
    other = await harness.open()

    asked = await other.cancel(item.id)

    assert (asked.status, asked.cancel_requested) == ("running", True)
    assert (await scene.store.item(item.id)).cancel_requested
    assert (await scene.store.lane(scene.agent)).fence == claim.fence
    assert await other.cancel(item.id) == asked


async def check_a_cancellation_keeps_its_first_reason(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, word = scene.store, harness.secret.reveal()
    running, queued = await scene.send(), await scene.send()
    claim = await scene.claim_next()

    asked = await store.cancel(running.id, f"enough of {word}")
    again = await store.cancel(running.id, "another reason")
    waited = await store.cancel(queued.id, "not wanted")
    settled = await scene.finish(claim, "cancelled", stop_reason="user_stop")

    assert asked.cancel_reason
    assert asked.cancel_reason.startswith("enough of ")
    assert word not in asked.cancel_reason
    assert again == asked
    assert settled.error == asked.error
    assert waited.error == ErrorFact("cancelled", "not wanted")
    assert await store.cancel(queued.id, "later") == waited


async def check_an_item_asked_to_stop_is_cancelled_unless_it_completed(
    harness: StoreHarness,
) -> None:
    """A run that failed by itself after the request counts as cancelled."""
    scene = await set_scene(harness)
    wanted = ErrorFact("cancelled", "enough")
    ends: list[tuple[EndStatus, ErrorFact | None, ItemStatus, ErrorFact | None]] = [
        ("completed", None, "completed", None),
        ("failed", ErrorFact("exited", "it fell"), "cancelled", wanted),
    ]
    for status, error, becomes, why in ends:
        await scene.send()
        claim = await scene.claim_next()
        await scene.store.cancel(claim.item.id, "enough")

        settled = await scene.finish(claim, status, error=error)

        assert (settled.status, settled.error) == (becomes, why)


async def check_a_returned_and_cancelled_item_keeps_the_reason(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    offered, absorbed = await working.send("offered"), await working.send("absorbed")
    await store.offer_followups(working.claim, limit=2)
    await store.close_offer(working.claim, absorbed.id, "absorbed")
    for item in (offered, absorbed):
        await store.cancel(item.id, "never mind")

    await store.close_offer(working.claim, offered.id, "returned")
    await working.finish(working.claim, "cancelled", stop_reason="user_stop")

    found = [await store.item(item.id) for item in (offered, absorbed)]
    assert [item.error for item in found] == [ErrorFact("cancelled", "never mind")] * 2
    assert {item.status for item in found} == {"cancelled"}


async def check_a_settled_item_stays_as_it_is(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next()
    settled = await scene.finish(claim)
    before = await read_everything(scene.store)
    harness.clock.advance(timedelta(hours=1))

    assert await scene.store.cancel(settled.id) == settled

    assert await read_everything(scene.store) == before


async def check_a_cancel_concurrent_with_a_claim_has_one_outcome(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    for n in range(8):
        agent = await scene.add_agent(f"bo{n}")
        item = await scene.send("work", to=agent)
        verbs = [scene.claim_lanes(), other.cancel(item.id)]

        answers = await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        claims = answers[0 if n % 2 else 1]
        lane, found = await scene.store.lane(agent), await other.item(item.id)
        if claims:
            assert [claim.item.id for claim in claims] == [item.id]
            assert (found.status, found.cancel_requested) == ("running", True)
        else:
            assert (found.status, lane.status, lane.queued) == ("cancelled", "idle", 0)


async def check_a_begun_write_is_completed_after_its_caller_is_cancelled(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    caller = anyio.CancelScope()

    async def accept() -> None:
        with caller:
            await scene.store.accept(Message(scene.agent, "kept", key="k"))

    async with anyio.create_task_group() as tasks, harness.pause_writes():
        tasks.start_soon(accept)
        await anyio.wait_all_tasks_blocked()
        caller.cancel()
        await anyio.wait_all_tasks_blocked()
    await scene.store.set_paused(scene.agent, is_paused=True)

    assert [item.text for item in await scene.store.items(scene.agent)] == ["kept"]
