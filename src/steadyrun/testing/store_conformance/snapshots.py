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
    expect_error,
    make_working,
    set_scene,
    set_warm,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_snapshot_has_the_run_and_its_session(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.agent
    await store.append(working.claim, working.make_batch(0, 10, token=working.make_token("one")))

    snapshot = await _read_snapshot(working)

    run, session = await store.run(working.run), (await store.sessions(agent)).get("claude")
    assert session
    assert snapshot == LaneSnapshot(run, session, (), (), has_steerable=False)
    assert run.events == 1, "the events of a run that has not ended are counted"


async def check_a_snapshot_has_the_session_of_the_provider_of_the_run(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next(provider="codex")
    working = await make_working(scene, claim, "codex")
    await scene.store.append(claim, working.make_batch(0, 10, token=working.make_token("one")))

    sessions = await scene.store.sessions(scene.agent)
    assert (await _read_snapshot(working)).session == sessions["codex"]


async def check_a_snapshot_has_events_of_followups_approvals_and_budgets(
    harness: StoreHarness,
) -> None:
    working = await set_working(harness)
    kept: list[Event] = [
        FollowupOffered("itm_1", "and this"),
        ApprovalRequested("apr_1", None, "shell"),
        FollowupAbsorbed("itm_1", "and this"),
        ApprovalResolved("apr_1", "allowed", "ada"),
        FollowupReturned("itm_2", "later", "too late"),
        BudgetReached("day", "usd", 5.0, 4.5, 80, 0),
    ]
    others: list[Event] = [Note("followup.offered, approval.requested")] * len(kept)
    for n, (event, other) in enumerate(zip(kept, others, strict=True)):
        events = [working.make_event(n + 1, 0, event), working.make_event(n + 1, 1, other)]
        await working.store.append(working.claim, working.make_batch(n, n + 1, *events))

    assert [each.event for each in (await _read_snapshot(working)).events] == kept


async def check_a_snapshot_has_only_events_of_its_run(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    asked = working.make_event(1, 0, ApprovalRequested("apr_1", None, "shell"))
    await store.append(working.claim, working.make_batch(0, 1, asked))
    await store.settle(working.claim, working.make_end(), keep_warm=True)
    await working.send("next")
    claim = await working.claim_next()
    run = await working.begin(claim)

    snapshot = await store.lane_snapshots({working.agent: run})

    assert snapshot[working.agent].events == ()


async def check_a_snapshot_has_the_unsettled_followups(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    sent = [await working.send(text) for text in ("absorbed", "returned", "offered", "queued")]
    await store.offer_followups(claim, limit=3)
    await store.close_offer(claim, sent[0].id, "absorbed")
    await store.close_offer(claim, sent[1].id, "returned")

    snapshot = await _read_snapshot(working)

    assert snapshot.followups == (await store.item(sent[1].id), await store.item(sent[2].id))
    await store.cancel(sent[1].id)
    assert (await _read_snapshot(working)).followups == (await store.item(sent[2].id),)


async def check_a_snapshot_shows_whether_an_item_is_steerable(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    await store.accept(Message(working.agent, "wait", followup="queue"))
    assert not (await _read_snapshot(working)).has_steerable
    await working.send("more")

    assert (await _read_snapshot(working)).has_steerable
    await store.offer_followups(working.claim)
    assert not (await _read_snapshot(working)).has_steerable


async def check_snapshots_of_several_lanes_equal_single_ones(harness: StoreHarness) -> None:
    first = await set_working(harness)
    store = first.store
    second = await set_working(harness, "bo", store=store)
    warm = await set_warm(harness, "cy", store=store)
    new = await first.add_agent("di")
    await first.send("more")
    await store.append(second.claim, second.make_batch(0, 1, token=second.make_token("two")))
    await store.append(warm.claim, warm.make_batch(0, 1, run=None, token=warm.make_token("three")))
    lanes: dict[AgentId, RunId | None] = {
        first.agent: first.run,
        second.agent: second.run,
        warm.agent: None,
        new: None,
    }

    snapshot = await store.lane_snapshots(lanes)

    assert snapshot == {
        agent: (await store.lane_snapshots({agent: lanes[agent]}))[agent] for agent in lanes
    }
    runs = [each.run.id if each.run else None for each in snapshot.values()]
    assert runs == [first.run, second.run, None, None]
    assert [each.has_steerable for each in snapshot.values()] == [True, False, False, False]
    tokens = [each.session.current for each in snapshot.values() if each.session]
    assert [token.token for token in tokens if token] == ["two", "three"]
    assert await store.lane_snapshots({}) == {}


async def check_a_snapshot_of_an_unknown_agent_or_run_is_not_found(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent = working.store, working.agent
    other = await working.add_agent("bo")

    assert (
        await expect_error(NotFound, store.lane_snapshots({agent: RunId("run_x")}))
    ).kind == "run"
    assert (await expect_error(NotFound, store.lane_snapshots({other: working.run}))).kind == "run"
    assert (
        await expect_error(NotFound, store.lane_snapshots({AgentId("agt_x"): None}))
    ).kind == "agent"


async def _read_snapshot(working: Working) -> LaneSnapshot:
    agent = working.agent
    return (await working.store.lane_snapshots({agent: working.run}))[agent]
