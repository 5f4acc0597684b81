"""Promises about starting: the claim, its run and all there is to know come in one step."""

from collections.abc import Callable
from datetime import timedelta

from steadyrun.errors import ChangeRefused, HolderGone
from steadyrun.lib.notifier import Hint
from steadyrun.model.agent import Agent
from steadyrun.model.gate import Closed, Opened
from steadyrun.model.item import Item, Message
from steadyrun.model.run import Created
from steadyrun.store import Start, Started
from steadyrun.testing.store_conformance.fixtures import (
    Scene,
    add_agent,
    claim_lanes,
    expect_refused,
    run_overlapping,
    send,
    set_scene,
    set_warm,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

Opener = Callable[[Agent, Item], Created]


async def check_a_start_is_a_claim_with_its_run(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    head = await scene.send()
    await scene.send()
    harness.clock.advance(timedelta(seconds=1))

    [started] = await scene.store.start(scene.holder, _opened(harness, metadata={"k": 1}))

    claim, run = started.claim, started.run
    assert (claim.agent, claim.holder, claim.fence) == (scene.agent, scene.holder, 1)
    assert claim.item == await scene.store.item(head.id)
    assert (claim.item.status, claim.item.attempt, claim.item.run) == ("running", 1, run.id)
    assert run == await scene.store.run(run.id)
    assert (run.status, run.item, run.metadata) == ("starting", head.id, {"k": 1})
    assert started.agent == await scene.store.agent("ada")
    assert (started.session, started.process, started.before) == (None, None, None)
    lane = await scene.store.lane(scene.agent)
    assert (lane.status, lane.queued, lane.ready_at) == ("held", 1, None)
    assert (await scene.finish(claim)).status == "completed"


async def check_a_start_in_a_warm_lane_knows_its_process(harness: StoreHarness) -> None:
    working = await set_warm(harness)
    store, scene = working.store, working.scene
    await store.append(working.claim, working.batch(0, 10, run=None, token=working.token("one")))
    newer = await scene.open_process(working.claim)
    await scene.send("next")

    [started] = await store.start(scene.holder, _opened(harness))

    assert started.claim.fence == working.claim.fence
    assert started.process == await store.process(newer)
    assert started.session == await store.session(scene.agent, "claude")
    assert started.session is not None
    await store.close_process(started.claim, newer)
    await store.close_process(started.claim, working.process)
    await store.settle(started.claim, scene.ended(), keep_warm=True)
    await scene.send("last")
    [again] = await store.start(scene.holder, _opened(harness, provider="codex"))
    assert (again.session, again.process, again.run.provider) == (None, None, "codex")


async def check_a_run_that_cannot_be_opened_starts_nothing(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    bo = await set_scene(harness, "bo", store=scene.store)
    await bo.send()
    [known] = await scene.store.start(scene.holder, _opened(harness))
    now = harness.clock.now()

    def refuse(agent: Agent, item: Item) -> Created:
        raise ChangeRefused("open", found=f"{agent.name} may not do {item.text}")

    def mistaken(agent: Agent, item: Item) -> Created:
        return Created(harness.ids.make_run(), agent.id, known.claim.item.id, "claude", now)

    def elsewhere(agent: Agent, item: Item) -> Created:
        return Created(harness.ids.make_run(), known.agent.id, item.id, "claude", now)

    def twice(agent: Agent, item: Item) -> Created:
        return Created(known.run.id, agent.id, item.id, "claude", now)

    for opened in (refuse, mistaken, elsewhere, twice):
        verb = scene.store.start(scene.holder, opened, limit=5)
        await expect_refused(scene.store, ChangeRefused, verb)
    assert (await scene.store.lane(bo.agent)).status == "ready"


async def check_a_start_knows_the_run_before(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    [first] = await scene.store.start(scene.holder, _opened(harness))
    await scene.finish(first.claim, "cancelled", stop_reason="shutdown")

    [second] = await scene.store.start(scene.holder, _opened(harness))

    assert second.before == await scene.store.run(first.run.id)
    assert (second.claim.item.before, second.claim.item.attempt) == (first.run.id, 2)
    await scene.finish(second.claim, "rate_limited")
    await scene.store.update_gate("claude", Opened())
    claim = await scene.claim()
    assert claim.item.before == second.run.id


async def check_two_starts_never_win(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    stores = [scene.store, await harness.open()]
    holders = [(store, (await store.join("worker")).id) for store in stores * 3]
    for n in range(4):
        agent = await add_agent(harness, scene.store, f"bo{n}")
        await send(harness, scene.store, agent, "work")

        answers = await run_overlapping(harness, [s.start(h, _opened(harness)) for s, h in holders])

        [started] = [each for answer in answers for each in answer]
        assert started.agent.id == agent
        assert [run.id for run in await scene.store.runs(agent)] == [started.run.id]


async def check_a_start_passes_over_some_providers(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    bo = await set_scene(harness, "bo", provider="codex", store=scene.store)
    cy = await set_scene(harness, "cy", provider="gemini", store=scene.store)
    for each in (scene, bo, cy):
        await each.send()
    start = scene.store.start

    assert await start(scene.holder, _opened(harness), agent=bo.agent, excluded=["codex"]) == []
    first = await start(scene.holder, _opened(harness), 1, excluded={"claude", "codex"})
    rest = await start(scene.holder, _opened(harness), 5)

    assert [each.agent.id for each in first] == [cy.agent]
    assert [each.agent.id for each in rest] == [scene.agent, bo.agent]


async def check_nothing_starts_while_paused_or_gated(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    until = harness.clock.now() + timedelta(minutes=15)
    await scene.store.update_gate("claude", Closed(until, "rate limit"))
    assert await _started(scene) == []
    harness.clock.advance(until - harness.clock.now())
    await scene.store.pause(scene.agent)
    assert await _started(scene) == []
    await scene.store.resume(scene.agent)

    assert [each.agent.id for each in await _started(scene)] == [scene.agent]


async def check_no_hint_is_sent_while_nothing_is_ready(harness: StoreHarness) -> None:
    """A hint without work would make a worker that starts runs on every hint loop for ever."""
    scene = await set_scene(harness)
    store, rung = scene.store, list[str]()

    with store.hints.watch(None) as watch:
        watch.on_notify = lambda: rung.append("rung")
        assert await _started(scene) == []
        assert await claim_lanes(store, scene.holder) == []
        assert await store.reap(scene.holder) == []
        assert rung == []

        await scene.send()
        assert await _started(scene)

        assert rung


async def check_a_start_goes_by_the_longest_ready_lane(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    agents = [await add_agent(harness, scene.store, name) for name in ("di", "cy", "bo")]
    for agent in agents:
        await send(harness, scene.store, agent, "work")

    started = await scene.store.start(scene.holder, _opened(harness), limit=2)

    assert [each.agent.id for each in started] == agents[:2]


async def check_what_a_run_is_opened_with_keeps_no_secret(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    word = harness.secret.reveal()

    [started] = await scene.store.start(scene.holder, _opened(harness, metadata={"said": word}))

    assert started.run == await scene.store.run(started.run.id)
    assert word not in str(started.run.metadata)


async def check_what_is_accepted_can_be_started_with_it(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, start = scene.store, Start(scene.holder, _opened(harness, metadata={"k": 1}))

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


async def check_what_cannot_start_is_accepted_all_the_same(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, opened = scene.store, _opened(harness)
    full, start = Start(scene.holder, opened, ["claude"]), Start(scene.holder, opened)
    until = harness.clock.now() + timedelta(minutes=15)

    answers = [await store.accept(Message(scene.agent, "full"), full)]
    await store.pause(scene.agent)
    answers.append(await store.accept(Message(scene.agent, "paused"), start))
    await store.resume(scene.agent)
    await store.update_gate("claude", Closed(until, "rate limit"))
    answers.append(await store.accept(Message(scene.agent, "gated"), start))

    assert [each.started for each in answers] == [None, None, None]
    assert [each.item for each in answers] == (await store.items(scene.agent))[::-1]
    assert (await store.lane(scene.agent)).queued == 3


async def check_a_start_that_is_refused_accepts_nothing(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, message = scene.store, Message(scene.agent, "now", key="k")

    def refuse(agent: Agent, item: Item) -> Created:
        raise ChangeRefused("open", found=f"{agent.name} may not do {item.text}")

    verb = store.accept(message, Start(scene.holder, refuse))
    await expect_refused(store, ChangeRefused, verb)
    await store.leave(scene.holder)
    verb = store.accept(message, Start(scene.holder, _opened(harness)))
    await expect_refused(store, HolderGone, verb)
    assert await store.items(scene.agent) == []


async def check_what_is_started_is_no_news_for_those_who_look_for_work(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    store, opened = scene.store, _opened(harness)
    with store.hints.watch(None, Hint.WORK) as work, store.hints.watch(None, Hint.STATE) as state:
        await store.accept(Message(scene.agent, "now"), Start(scene.holder, opened))
        assert (await work.wait(0), await state.wait(0)) == (False, True)

        await store.accept(Message(scene.agent, "later"), Start(scene.holder, opened))
        assert (await work.wait(0), await state.wait(0)) == (True, True)


async def _started(scene: Scene) -> list[Started]:
    return await scene.store.start(scene.holder, _opened(scene.harness), limit=5)


def _opened(harness: StoreHarness, **fields: object) -> Opener:
    def opened(agent: Agent, item: Item) -> Created:
        known = {"provider": agent.provider, "at": harness.clock.now(), **fields}
        return Created(harness.ids.make_run(), agent.id, item.id, **known)  # type: ignore[arg-type]

    return opened
