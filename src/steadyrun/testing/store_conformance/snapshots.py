"""Promises about lane snapshots: a worker that begins to read a process continues from one."""

from steadyrun.errors import NotFound
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetReached,
    Event,
    FollowupAbsorbed,
    FollowupOffered,
    FollowupReturned,
    Note,
)
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Message
from steadyrun.store import LaneSnapshot
from steadyrun.testing.store_conformance.fixtures import (
    Working,
    add_agent,
    expect_error,
    set_scene,
    set_warm,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_run_is_known_with_its_conversation(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.scene.agent
    await store.append(working.claim, working.batch(0, 10, token=working.token("one")))

    known = await _known(working)

    run, session = await store.run(working.run), await store.session(agent, "claude")
    assert session
    assert known == LaneSnapshot(run, session, (), (), has_steerable=False)
    assert run.events == 1, "that of a run that has not ended, too"


async def check_the_conversation_is_that_with_the_provider_of_the_run(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim(provider="codex")
    run = await scene.begin(claim)
    working = Working(scene, claim, run, await scene.open_process(claim))
    await scene.store.append(claim, working.batch(0, 10, token=working.token("one")))

    assert (await _known(working)).session == await scene.store.session(scene.agent, "codex")


async def check_what_tells_of_followups_and_questions_is_known(harness: StoreHarness) -> None:
    working = await set_working(harness)
    told: list[Event] = [
        FollowupOffered("itm_1", "and this"),
        ApprovalRequested("apr_1", None, "shell"),
        FollowupAbsorbed("itm_1", "and this"),
        ApprovalResolved("apr_1", "allowed", "ada"),
        FollowupReturned("itm_2", "later", "too late"),
        BudgetReached("day", "usd", 5.0, 4.5, 80, 0),
    ]
    others: list[Event] = [Note("followup.offered, approval.requested")] * len(told)
    for n, (event, other) in enumerate(zip(told, others, strict=True)):
        said = [working.said(n + 1, 0, event), working.said(n + 1, 1, other)]
        await working.store.append(working.claim, working.batch(n, n + 1, *said))

    assert [each.event for each in (await _known(working)).events] == told


async def check_what_is_known_of_a_run_is_told_by_its_own_events(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene = working.store, working.scene
    asked = working.said(1, 0, ApprovalRequested("apr_1", None, "shell"))
    await store.append(working.claim, working.batch(0, 1, asked))
    await store.settle(working.claim, scene.ended(), keep_warm=True)
    await scene.send("next")
    claim = await scene.claim()
    run = await scene.begin(claim)

    known = await store.lane_snapshots({scene.agent: run})

    assert known[scene.agent].events == ()


async def check_followups_are_known_as_long_as_they_are_open(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene, claim = working.store, working.scene, working.claim
    sent = [await scene.send(text) for text in ("absorbed", "returned", "offered", "queued")]
    await store.offer_followups(claim, limit=3)
    await store.absorb(claim, sent[0].id)
    await store.return_offer(claim, sent[1].id)

    known = await _known(working)

    assert known.followups == (await store.item(sent[1].id), await store.item(sent[2].id))
    await store.cancel(sent[1].id)
    assert (await _known(working)).followups == (await store.item(sent[2].id),)


async def check_it_is_known_whether_there_is_something_to_take(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, scene = working.store, working.scene
    await store.accept(Message(scene.agent, "wait", followup="queue"))
    assert not (await _known(working)).has_steerable
    await scene.send("more")

    assert (await _known(working)).has_steerable
    await store.offer_followups(working.claim)
    assert not (await _known(working)).has_steerable


async def check_each_lane_is_known_by_itself(harness: StoreHarness) -> None:
    first = await set_working(harness)
    store = first.store
    second = await set_working(harness, "bo", store=store)
    warm = await set_warm(harness, "cy", store=store)
    new = await add_agent(harness, store, "di")
    await first.scene.send("more")
    await store.append(second.claim, second.batch(0, 1, token=second.token("two")))
    await store.append(warm.claim, warm.batch(0, 1, run=None, token=warm.token("three")))
    lanes: dict[AgentId, RunId | None] = {
        first.scene.agent: first.run,
        second.scene.agent: second.run,
        warm.scene.agent: None,
        new: None,
    }

    known = await store.lane_snapshots(lanes)

    assert known == {
        agent: (await store.lane_snapshots({agent: lanes[agent]}))[agent] for agent in lanes
    }
    runs = [each.run.id if each.run else None for each in known.values()]
    assert runs == [first.run, second.run, None, None]
    assert [each.has_steerable for each in known.values()] == [True, False, False, False]
    tokens = [each.session.current for each in known.values() if each.session]
    assert [token.token for token in tokens if token] == ["two", "three"]
    assert await store.lane_snapshots({}) == {}


async def check_what_is_not_there_is_not_known(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.scene.agent
    other = await add_agent(harness, store, "bo")

    assert (
        await expect_error(NotFound, store.lane_snapshots({agent: RunId("run_x")}))
    ).kind == "run"
    assert (await expect_error(NotFound, store.lane_snapshots({other: working.run}))).kind == "run"
    assert (
        await expect_error(NotFound, store.lane_snapshots({AgentId("agt_x"): None}))
    ).kind == "agent"


async def _known(working: Working) -> LaneSnapshot:
    agent = working.scene.agent
    return (await working.store.lane_snapshots({agent: working.run}))[agent]
