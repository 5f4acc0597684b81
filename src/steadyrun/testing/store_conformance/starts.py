"""Promises about `start`: it returns the claim, the new run and what the holder needs for it."""

from datetime import timedelta

from steadyrun.errors import ChangeRefused, HolderGone
from steadyrun.lib.notifier import Hint
from steadyrun.model.agent import Agent
from steadyrun.model.gate import Closed, Opened
from steadyrun.model.item import Item, Message
from steadyrun.model.run import Created
from steadyrun.model.token_shapes import REDACTED
from steadyrun.store import Start
from steadyrun.testing.store_conformance.fixtures import (
    expect_refused,
    make_run_creator,
    read_process,
    set_scene,
    set_warm,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_start_is_a_claim_with_its_run(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    head = await scene.send()
    await scene.send()
    harness.clock.advance(timedelta(seconds=1))

    [started] = await scene.start(1, metadata={"k": 1, "said": harness.secret.reveal()})

    claim, run = started.claim, started.run
    assert (claim.agent, claim.holder, claim.fence) == (scene.agent, scene.holder, 1)
    assert claim.item == await scene.store.item(head.id)
    assert (claim.item.status, claim.item.attempt, claim.item.run) == ("running", 1, run.id)
    assert (claim.item.delivery, claim.item.started_at) == ("none", harness.clock.now())
    assert run == await scene.store.run(run.id)
    assert (run.status, run.item) == ("starting", head.id)
    assert run.metadata == {"k": 1, "said": REDACTED}
    assert started.agent == await scene.store.agent("ada")
    assert (started.session, started.process, started.before) == (None, None, None)
    lane = await scene.store.lane(scene.agent)
    assert (lane.status, lane.queued, lane.ready_at) == ("held", 1, None)
    assert (lane.holder, lane.fence) == (scene.holder, claim.fence)
    assert (await scene.finish(claim)).status == "completed"


async def check_a_start_in_a_warm_lane_returns_its_process(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    store = working.store
    await store.append(
        working.claim, working.make_batch(0, 10, run=None, token=working.make_token("one"))
    )
    newer = await working.open_process(working.claim)
    await working.send("next")

    [started] = await working.start(1)

    assert started.claim.fence == working.claim.fence
    assert started.process == await read_process(store, newer)
    assert started.session == (await store.sessions(working.agent)).get("claude")
    assert started.session is not None
    await store.close_process(started.claim, newer)
    await store.close_process(started.claim, working.process)
    await store.settle(started.claim, working.make_end(), keep_warm=True)
    await working.send("last")
    [again] = await working.start(1, provider="codex")
    assert (again.session, again.process, again.run.provider) == (None, None, "codex")


async def check_a_run_that_cannot_be_created_starts_nothing(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    bo = await set_scene(harness, "bo", store=scene.store)
    await bo.send()
    [first] = await scene.start(1)
    now = harness.clock.now()

    def refuse(agent: Agent, item: Item) -> Created:
        raise ChangeRefused("open", found=f"{agent.name} may not do {item.text}")

    def create_for_another_item(agent: Agent, item: Item) -> Created:
        return Created(harness.ids.make_run(), agent.id, first.claim.item.id, "claude", now)

    def create_for_another_agent(agent: Agent, item: Item) -> Created:
        return Created(harness.ids.make_run(), first.agent.id, item.id, "claude", now)

    def create_again(agent: Agent, item: Item) -> Created:
        return Created(first.run.id, agent.id, item.id, "claude", now)

    for create_run in (
        refuse,
        create_for_another_item,
        create_for_another_agent,
        create_again,
    ):
        verb = scene.store.start(scene.holder, create_run, limit=5)
        await expect_refused(scene.store, ChangeRefused, verb)
    assert (await scene.store.lane(bo.agent)).status == "ready"


async def check_a_start_returns_the_previous_run(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    [first] = await scene.start(1)
    await scene.finish(first.claim, "cancelled", stop_reason="shutdown")

    [second] = await scene.start(1)

    assert second.before == await scene.store.run(first.run.id)
    assert (second.claim.item.before, second.claim.item.attempt) == (first.run.id, 2)
    await scene.finish(second.claim, "rate_limited")
    await scene.store.update_gate("claude", Opened())
    claim = await scene.claim_next()
    assert claim.item.before == second.run.id


async def check_a_start_skips_excluded_providers(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    bo = await set_scene(harness, "bo", provider="codex", store=scene.store)
    cy = await set_scene(harness, "cy", provider="gemini", store=scene.store)
    for each in (scene, bo, cy):
        await each.send()

    assert await scene.start(1, agent=bo.agent, excluded=["codex"]) == []
    first = await scene.start(1, excluded={"claude", "codex"})
    rest = await scene.start(5)

    assert [each.agent.id for each in first] == [cy.agent]
    assert [each.agent.id for each in rest] == [scene.agent, bo.agent]


async def check_no_hint_is_sent_while_nothing_is_ready(harness: StoreHarness) -> None:
    """A hint without work would make a worker that starts runs on every hint loop for ever."""
    scene = await set_scene(harness)
    store, hints = scene.store, list[str]()

    with store.hints.watch(None) as watch:
        watch.on_notify = lambda: hints.append("hints")
        assert await scene.start() == []
        assert await store.reap(scene.holder) == []
        assert hints == []

        await scene.send()
        assert await scene.start()

        assert hints


async def check_an_accepted_message_is_started_in_the_same_step(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, start = scene.store, Start(scene.holder, make_run_creator(metadata={"k": 1}))

    accepted = await store.accept(Message(scene.agent, "now"), start)

    assert accepted.started
    claim, run = accepted.started.claim, accepted.started.run
    assert accepted.item == claim.item == await store.item(accepted.item.id)
    assert (claim.fence, claim.item.status, claim.item.run) == (1, "running", run.id)
    assert run == await store.run(run.id)
    assert run.metadata == {"k": 1}
    later = await store.accept(Message(scene.agent, "later"), start)
    assert (later.started, later.item.status) == (None, "queued"), "one at a time"
    assert (await scene.finish(claim)).status == "completed"
    third = await store.accept(Message(scene.agent, "third"), start)
    assert third.started
    assert third.started.claim.item.id == later.item.id, "in order"
    assert third.item == await store.item(third.item.id)
    assert third.item.status == "queued"


async def check_a_message_that_cannot_start_is_accepted(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, create_run = scene.store, make_run_creator()
    full, start = Start(scene.holder, create_run, ["claude"]), Start(scene.holder, create_run)
    until = harness.clock.now() + timedelta(minutes=15)

    answers = [await store.accept(Message(scene.agent, "full"), full)]
    await store.set_paused(scene.agent, is_paused=True)
    answers.append(await store.accept(Message(scene.agent, "paused"), start))
    await store.set_paused(scene.agent, is_paused=False)
    await store.update_gate("claude", Closed(until, "rate limit"))
    answers.append(await store.accept(Message(scene.agent, "gated"), start))

    assert [each.started for each in answers] == [None, None, None]
    assert [each.item for each in answers] == (await store.items(scene.agent))[::-1]
    assert (await store.lane(scene.agent)).queued == 3


async def check_a_refused_start_accepts_nothing(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, message = scene.store, Message(scene.agent, "now", key="k")

    def refuse(agent: Agent, item: Item) -> Created:
        raise ChangeRefused("open", found=f"{agent.name} may not do {item.text}")

    verb = store.accept(message, Start(scene.holder, refuse))
    await expect_refused(store, ChangeRefused, verb)
    await store.leave(scene.holder)
    verb = store.accept(message, Start(scene.holder, make_run_creator()))
    await expect_refused(store, HolderGone, verb)
    assert await store.items(scene.agent) == []


async def check_a_started_message_sends_no_work_hint(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    store, create_run = scene.store, make_run_creator()
    with store.hints.watch(None, Hint.WORK) as work, store.hints.watch(None, Hint.STATE) as state:
        await store.accept(Message(scene.agent, "now"), Start(scene.holder, create_run))
        assert (await work.wait(0), await state.wait(0)) == (False, True)

        await store.accept(Message(scene.agent, "later"), Start(scene.holder, create_run))
        assert (await work.wait(0), await state.wait(0)) == (True, True)
