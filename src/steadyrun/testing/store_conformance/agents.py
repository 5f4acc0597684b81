"""Promises about agents: lasting ones are listed, changed and removed; direct ones only run."""

from datetime import timedelta

from msgspec.structs import replace

from steadyrun.errors import ChangeRefused, HolderGone, LeaseLost, NameTaken, NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.gate import Closed
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Item, Message
from steadyrun.model.run import Created
from steadyrun.model.usage import Cost, Usage, UsageSum
from steadyrun.store import Store
from steadyrun.testing.store_conformance.fixtures import (
    add_agent,
    claim_lanes,
    expect_error,
    expect_refused,
    make_run_creator,
    run_overlapping,
    set_scene,
    set_warm,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_direct_agent_is_started_in_one_step(harness: StoreHarness) -> None:
    store = await harness.open()
    holder = (await store.join("worker")).id
    agent = _make_direct(harness, "run_1")

    started = await store.start_direct(
        holder, agent, Message(agent.id, "go", "call"), make_run_creator()
    )

    claim, run = started.claim, started.run
    assert (claim.agent, claim.holder, claim.fence) == (agent.id, holder, 1)
    assert claim.item == await store.item(claim.item.id)
    assert (claim.item.seq, claim.item.status, claim.item.run) == (1, "running", run.id)
    assert run == await store.run(run.id)
    assert (started.agent, started.session, started.process) == (agent, None, None)
    lane = await store.lane(agent.id)
    assert (lane.status, lane.queued, lane.holder) == ("held", 0, holder)
    assert await store.agent("run_1") == await store.agent(agent.id) == agent


async def check_a_refused_direct_start_writes_nothing(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, agent, bo = scene.store, _make_direct(harness, "ada"), _make_direct(harness, "bo")
    gone = (await store.join("worker")).id
    await store.leave(gone)
    create_run, go = make_run_creator(), Message(bo.id, "go")

    elsewhere = store.start_direct(scene.holder, bo, Message(scene.agent, "go"), create_run)
    await expect_refused(store, ChangeRefused, elsewhere)
    taken = store.start_direct(scene.holder, agent, Message(agent.id, "go"), create_run)
    await expect_refused(store, NameTaken, taken)
    await expect_refused(store, HolderGone, store.start_direct(gone, bo, go, create_run))
    await expect_refused(store, NotFound, store.start_direct(scene.holder, bo, go, _fail_to_create))
    until = harness.clock.now() + timedelta(minutes=15)
    await store.update_gate("claude", Closed(until, "rate limit"))
    await expect_refused(store, ChangeRefused, store.start_direct(scene.holder, bo, go, create_run))

    await expect_error(NotFound, store.agent(agent.id))
    await expect_error(NotFound, store.agent(bo.id))


async def check_an_overview_has_lane_session_item_and_usage(harness: StoreHarness) -> None:
    working = await set_working(harness, "bo")
    store, claim = working.store, working.claim
    await store.append(claim, working.make_batch(0, 10, run=None, token=working.make_token("one")))
    ada = await set_warm(harness, "ada", store=store)
    early = harness.clock.now()
    harness.clock.advance(timedelta(hours=1))
    since = harness.clock.now()
    await ada.send("next")
    [started] = await ada.start(1, agent=ada.agent)
    await ada.finish(started.claim, usage=Usage(1, 2), cost=Cost(0.5, "known"))
    await working.send("later")
    await store.add_agent(_make_direct(harness, "run_1"))

    [first, second] = await store.agent_overviews(since)

    assert [first.agent, second.agent] == await store.agents()
    assert [first.lane, second.lane] == [await store.lane(a.id) for a in await store.agents()]
    assert (first.session, first.item, first.run) == (None, None, None)
    assert second.session == (await store.sessions(working.agent)).get("claude")
    assert (second.item, second.run) == (await store.item(claim.item.id), working.run)
    assert {"ada": first.usage} == await store.usage("agent", agent=ada.agent, since=since)
    assert (first.usage.runs, second.usage) == (1, UsageSum())
    assert [
        overview.usage.runs for overview in await store.agent_overviews(early - timedelta(hours=9))
    ] == [2, 1]
    assert await store.agent_overviews(since, agent=working.agent) == [second]


async def check_an_overview_shows_no_item_after_the_run_has_ended(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    absorbed = await working.send("more")
    await store.offer_followups(working.claim)
    await store.close_offer(working.claim, absorbed.id, "absorbed")
    [going] = await store.agent_overviews(harness.clock.now())

    await store.change(working.claim, working.run, working.make_end())
    [ended] = await store.agent_overviews(harness.clock.now())

    assert going.item
    assert (going.item.id, going.run) == (working.claim.item.id, working.run)
    assert (ended.item, ended.run, ended.lane.status) == (None, None, "held")


async def check_direct_agents_are_not_listed(harness: StoreHarness) -> None:
    store = await harness.open()
    direct = _make_direct(harness, "aaa")
    await store.add_agent(direct)
    for name in ("cy", "bo"):
        await add_agent(harness, store, name)

    assert [agent.name for agent in await store.agents()] == ["bo", "cy"]
    assert await store.agent("aaa") == direct


async def check_an_agent_is_changed_only_from_its_stored_state(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, was = scene.store, await scene.store.agent("ada")
    changed = replace(was, name="eve", providers=("codex", "claude"), model="large")

    await store.set_agent(changed, was=was)

    assert await store.agent("eve") == await store.agent(scene.agent) == changed
    await expect_error(NotFound, store.agent("ada"))
    await scene.add_agent("ada")
    await expect_refused(store, ChangeRefused, store.set_agent(was, was=was))
    await scene.send()
    assert await store.start(scene.holder, _refuse_start, excluded=["codex"]) == []


async def check_the_identity_of_an_agent_cannot_be_changed(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store, was = scene.store, await scene.store.agent("ada")
    bo = await scene.add_agent("bo")

    for changed in (replace(was, is_direct=True), replace(was, removed_at=harness.clock.now())):
        await expect_refused(store, ChangeRefused, store.set_agent(changed, was=was))
    await expect_refused(store, ChangeRefused, store.set_agent(replace(was, id=bo), was=was))
    for name in ("bo", bo):
        await expect_refused(store, NameTaken, store.set_agent(replace(was, name=name), was=was))
    unknown = replace(was, id=AgentId("agt_none"))
    await expect_refused(store, NotFound, store.set_agent(unknown, was=unknown))


async def check_one_of_two_concurrent_changes_is_refused(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other, was = await harness.open(), await scene.store.agent("ada")

    async def change(store: Store, model: str) -> bool:
        try:
            await store.set_agent(replace(was, model=model), was=was)
        except ChangeRefused:
            return False
        return True

    answers = await run_overlapping(harness, [change(scene.store, "small"), change(other, "large")])

    assert sorted(answers) == [False, True]
    expected = "small" if answers[0] else "large"
    assert (await other.agent("ada")).model == expected


async def check_a_removed_agent_frees_its_name_and_keeps_its_record(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store = working.store
    await store.append(working.claim, working.make_batch(0, 10))
    item = await working.finish(working.claim)
    was = await store.agent("ada")
    events = await store.events(agent=working.agent)

    await store.remove_agent(working.agent)

    assert await store.agents() == []
    await expect_error(NotFound, store.agent("ada"))
    assert await store.agent(working.agent) == replace(was, removed_at=harness.clock.now())
    assert await store.items(working.agent, include_settled=True) == [item]
    assert [run.id for run in await store.runs(working.agent)] == [working.run]
    assert await store.events(agent=working.agent) == events
    assert events[0].agent == "ada"
    again = await working.add_agent("ada")
    assert (await store.agent("ada")).id == again


async def check_a_removed_agent_accepts_no_write(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, agent, claim = working.store, working.agent, working.claim
    await working.finish(claim)
    await store.remove_agent(agent)
    removed = await store.agent(agent)

    for verb in (
        store.accept(Message(agent, "more")),
        store.lane(agent),
        store.set_paused(agent, is_paused=True),
        store.set_paused(agent, is_paused=False),
        store.remove_agent(agent),
        store.set_agent(replace(removed, model="large"), was=removed),
    ):
        await expect_refused(store, NotFound, verb)
    for late in (
        store.offer_followups(claim),
        store.settle(claim),
        store.append(claim, working.make_batch(0, 10, run=None)),
        store.close_process(claim, working.process),
    ):
        await expect_refused(store, LeaseLost, late)
    taken = replace(removed, name="eve", removed_at=None)
    await expect_refused(store, NameTaken, store.add_agent(taken))


async def check_an_agent_with_work_is_not_removed(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store = scene.store
    item = await scene.send()
    await expect_refused(store, ChangeRefused, store.remove_agent(scene.agent))
    claim = await scene.claim_next()
    await expect_refused(store, ChangeRefused, store.remove_agent(scene.agent))
    await scene.finish(claim, "cancelled", stop_reason="shutdown")
    await store.cancel(item.id)
    await store.remove_agent(scene.agent)
    warm = await set_warm(harness, "bo", store=store)
    await expect_refused(store, ChangeRefused, store.remove_agent(warm.agent))
    await store.release_lane(warm.claim)
    await store.remove_agent(warm.agent)
    await expect_refused(store, NotFound, store.remove_agent(AgentId("agt_none")))


async def check_a_message_concurrent_with_a_removal_is_stored_or_refused(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    for n in range(4):
        agent = await scene.add_agent(f"bo{n}")

        async def accept(agent: AgentId = agent) -> bool:
            try:
                await other.accept(Message(agent, "go"))
            except NotFound:
                return False
            return True

        async def remove(agent: AgentId = agent) -> bool:
            try:
                await scene.store.remove_agent(agent)
            except ChangeRefused:
                return False
            return True

        is_accepted, is_removed = await run_overlapping(harness, [accept(), remove()])

        assert is_accepted != is_removed


async def check_a_retired_token_moves_to_the_history(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    agent, word = claim.agent, harness.secret.reveal()
    await store.retire_token(claim, "claude", "there is none")
    assert (await store.sessions(agent)).get("claude") is None
    await store.append(claim, working.make_batch(0, 10, token=working.make_token("one")))

    await store.retire_token(claim, "claude", f"corrupt: {word}")
    await store.retire_token(claim, "claude", "said twice")

    session = (await store.sessions(agent)).get("claude")
    assert session is not None
    assert (session.current, len(session.history)) == (None, 1)
    [old] = session.history
    assert (old.token, old.ended is not None and word not in old.ended) == ("one", True)
    assert await store.sessions(token=old.token) == {}
    await store.append(claim, working.make_batch(10, 20, token=working.make_token("two")))
    session = (await store.sessions(agent)).get("claude")
    assert session is not None
    assert (session.current, session.history) == (working.make_token("two"), (old,))
    two = working.make_token("two").token
    assert await store.sessions(token=two) == {"claude": session}


async def check_lasting_lanes_can_be_left_out_of_reaping(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    store = scene.store
    await scene.send()
    lasting = await harness.claim_and_exit()
    direct = _make_direct(harness, "run_1")
    await store.add_agent(direct)
    await scene.send("go", to=direct.id)
    dead = await harness.claim_and_exit(direct.id)
    assert (lasting.agent, dead.agent) == (scene.agent, direct.id)

    [first] = await store.reap(scene.holder, lasting=False)
    assert (first.agent, first.lease.fence) == (direct, dead.fence + 1)
    lane = await store.lane(scene.agent)
    assert (lane.holder, lane.fence) == (lasting.holder, lasting.fence)
    assert await store.reap(scene.holder, lasting=False) == []

    [second] = await store.reap(scene.holder)
    assert (second.agent.id, second.lease.fence) == (scene.agent, lasting.fence + 1)


async def check_a_direct_lane_is_claimed_only_by_name(harness: StoreHarness) -> None:
    store = await harness.open()
    holder = await store.join("worker")
    direct = _make_direct(harness, "run_1")
    await store.add_agent(direct)
    await store.accept(Message(direct.id, "do"))

    assert await claim_lanes(store, holder.id) == []
    [claim] = await claim_lanes(store, holder.id, agent=direct.id)

    assert claim.agent == direct.id


def _make_direct(harness: StoreHarness, name: str) -> Agent:
    return Agent(harness.ids.make_agent(), name, ("claude",), "/home/x", is_direct=True)


def _fail_to_create(agent: Agent, item: Item) -> Created:
    raise NotFound("run of", item.id)


def _refuse_start(agent: Agent, item: Item) -> Created:
    raise AssertionError(f"{agent} was started with {item}")
