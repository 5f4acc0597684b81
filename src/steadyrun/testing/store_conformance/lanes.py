"""Promises about lanes: one owner, in order, skipped while paused or gated, given up whole."""

from collections import defaultdict
from datetime import timedelta

import anyio

from steadyrun.errors import LeaseLost
from steadyrun.model.gate import Closed, Gate, Opened
from steadyrun.model.ids import AgentId, HolderId, ItemId
from steadyrun.model.item import Claim, Message
from steadyrun.model.run import Finished
from steadyrun.store import Store
from steadyrun.testing.store_conformance.fixtures import (
    TIMEOUT_SECONDS,
    Scene,
    add_agent,
    claim_lanes,
    expect_refused,
    read_everything,
    run_overlapping,
    set_scene,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

ITEMS, AGENTS, HOLDERS = 600, 7, 4


class _HolderGroup:
    """Holders that run all items and record what they did."""

    def __init__(self, harness: StoreHarness) -> None:
        self.harness = harness
        self.live: set[AgentId] = set()
        self.done: list[Claim] = []
        self.settled: dict[ItemId, int] = defaultdict(int)

    async def work(self, store: Store, total: int, poll_seconds: float = 0.02) -> None:
        holder = await store.join("worker")
        with store.hints.watch(None) as watch:
            while len(self.done) < total:
                claims = await claim_lanes(store, holder.id, limit=2)
                for claim in claims:
                    await self._run(store, claim)
                if not claims:
                    await watch.wait(poll_seconds)

    async def _run(self, store: Store, claim: Claim) -> None:
        assert claim.agent not in self.live, "two live claims on one lane"
        self.live.add(claim.agent)
        # After this, another holder may claim the lane before this task gets the result of
        # `settle`.
        self.live.remove(claim.agent)
        item = await store.settle(claim, Finished(self.harness.clock.now(), "cancelled"))
        self.done.append(claim)
        self.settled[item.id] += 1


async def check_many_holders_keep_order_and_exclusion(harness: StoreHarness) -> None:
    front = await harness.open()
    agents = [await add_agent(harness, front, f"agent {n}") for n in range(AGENTS)]
    workers, sent = _HolderGroup(harness), []

    async def accept_all() -> None:
        for n in range(ITEMS):
            message = Message(agents[n % AGENTS], str(n), key=str(n // 2))
            sent.append((await front.accept(message)).item.id)

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept_all)
            for _ in range(HOLDERS):
                tasks.start_soon(workers.work, await harness.open(), ITEMS)

    assert dict(workers.settled) == dict.fromkeys(sent, 1)
    for agent in agents:
        mine = sorted((c for c in workers.done if c.agent == agent), key=lambda c: c.fence)
        assert [c.item.seq for c in mine] == list(range(1, len(mine) + 1))
        assert [c.fence for c in mine] == list(range(1, len(mine) + 1))
        lane = await front.lane(agent)
        assert (lane.status, lane.queued, lane.holder) == ("idle", 0, None)


async def check_concurrent_claims_never_get_the_same_lane(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    stores = [scene.store, await harness.open()]
    holders = [(store, (await store.join("worker")).id) for store in stores * 4]
    for n in range(5):
        agent = await scene.add_agent(f"bo{n}")
        await scene.send("work", to=agent)

        answers = await run_overlapping(harness, [claim_lanes(s, h) for s, h in holders])

        claims = [claim for answer in answers for claim in answer]
        assert [claim.agent for claim in claims] == [agent]
        lane = await scene.store.lane(agent)
        assert (lane.holder, lane.fence) == (claims[0].holder, claims[0].fence)
        assert [run.id for run in await scene.store.runs(agent)] == [claims[0].item.run]


async def check_the_longest_ready_lane_goes_first(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    agents = [await scene.add_agent(name) for name in ("cy", "zoe", "bo", "di")]
    for agent in agents[::-1]:
        await scene.send(to=agent)
    await scene.send("more", to=agents[3])

    first = await scene.claim_lanes(3)
    rest = await scene.claim_lanes(3)

    assert [claim.agent for claim in first] == agents[:0:-1]
    assert [claim.agent for claim in rest] == agents[:1]


async def check_a_claim_may_be_for_one_agent(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    bo, cy = [await scene.add_agent(name) for name in ("bo", "cy")]
    await scene.send()
    await scene.send("work", to=bo)

    assert await scene.claim_lanes(agent=cy) == []
    [claim] = await scene.claim_lanes(5, agent=bo)
    assert await scene.claim_lanes(agent=bo) == []

    assert claim.agent == bo
    assert (await scene.claim_next()).agent == scene.agent


async def check_a_held_lane_is_unclaimable(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    await scene.claim_next()
    await scene.send()
    other = await harness.open()
    rival = await other.join("worker")

    assert await claim_lanes(other, rival.id, limit=5) == []
    assert await scene.claim_lanes(limit=5) == []

    lane = await other.lane(scene.agent)
    assert (lane.status, lane.queued, lane.holder) == ("held", 1, scene.holder)


async def check_an_empty_lane_is_unclaimable(harness: StoreHarness) -> None:
    scene = await set_scene(harness)

    assert await scene.claim_lanes(limit=5) == []


async def check_a_paused_lane_is_unclaimable_until_resumed(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    await other.set_paused(scene.agent, is_paused=True)
    item = await scene.send()
    await other.set_paused(scene.agent, is_paused=True)

    assert (await scene.store.lane(scene.agent)).is_paused
    assert await scene.claim_lanes() == []
    await other.set_paused(scene.agent, is_paused=False)

    assert (await scene.claim_next()).item.id == item.id


async def check_a_run_continues_while_its_lane_is_paused(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next()
    later = await scene.send()
    await scene.store.set_paused(scene.agent, is_paused=True)

    [offered] = await scene.store.offer_followups(claim)
    settled = await scene.finish(claim)

    assert offered.id == later.id
    assert settled.status == "completed"
    lane = await scene.store.lane(scene.agent)
    assert (lane.status, lane.is_paused) == ("ready", True)
    assert await scene.claim_lanes() == []


async def check_a_closed_gate_skips_the_lane_until_its_time(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    codex = await scene.add_agent("bo", provider="codex")
    await scene.send()
    await scene.send("work", to=codex)
    until = harness.clock.now() + timedelta(minutes=15)
    await scene.store.update_gate("claude", Closed(until, "rate limit"))

    [claim] = await scene.claim_lanes(limit=5)
    assert claim.agent == codex
    harness.clock.advance(until - harness.clock.now() - timedelta(microseconds=1))
    assert await scene.claim_lanes() == []
    harness.clock.advance(timedelta(microseconds=1))

    assert (await scene.claim_next()).agent == scene.agent


async def check_a_gate_can_be_opened_by_hand(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    await scene.send()
    closed = await other.update_gate("claude", Closed(None, "by hand"))
    assert await scene.store.gates() == [closed]
    assert await scene.claim_lanes() == []

    await other.update_gate("claude", Opened())

    assert await scene.store.gates() == [Gate("claude")]
    assert (await scene.claim_next()).agent == scene.agent


async def check_an_interrupted_item_is_queued_in_its_place(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first = await scene.send()
    await scene.send()
    claim = await scene.claim_next()
    harness.clock.advance(timedelta(seconds=1))

    interrupted = await scene.finish(claim, "cancelled", stop_reason="shutdown")

    assert (interrupted.id, interrupted.status, interrupted.attempt) == (first.id, "queued", 1)
    lane = await scene.store.lane(scene.agent)
    assert (lane.status, lane.queued, lane.holder) == ("ready", 2, None)
    assert lane.ready_at == harness.clock.now()
    again = await scene.claim_next()
    assert (again.item.id, again.item.attempt, again.fence) == (first.id, 2, claim.fence + 1)


async def check_a_claim_ends_once(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next()
    settled = await scene.finish(claim)

    for verb in (
        scene.store.settle(claim),
        scene.store.offer_followups(claim),
    ):
        error = await expect_refused(scene.store, LeaseLost, verb)
        assert (error.agent, error.fence) == (scene.agent, claim.fence)
    assert await scene.store.item(settled.id) == settled


async def check_an_accept_concurrent_with_a_settle_is_never_lost(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    for n in range(12):
        agent = await scene.add_agent(f"bo{n}")
        await _check_accept_beside_settle(scene, agent, is_accept_first=n % 2 == 0)


async def _check_accept_beside_settle(
    scene: Scene, agent: AgentId, *, is_accept_first: bool
) -> None:
    harness, other = scene.harness, await scene.harness.open()
    await scene.send("first", to=agent)
    [claim] = await scene.claim_lanes()
    verbs = [other.accept(Message(agent, "second")), scene.finish(claim)]

    await run_overlapping(harness, verbs if is_accept_first else verbs[::-1])

    lane = await scene.store.lane(agent)
    assert (lane.status, lane.queued) == ("ready", 1)
    [woken] = await scene.claim_lanes()
    assert (woken.agent, woken.item.text) == (agent, "second")


async def check_an_accept_concurrent_with_a_cancel_is_never_lost(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    for n in range(8):
        agent = await scene.add_agent(f"bo{n}")
        only = await scene.send("first", to=agent)
        verbs = [scene.store.cancel(only.id), other.accept(Message(agent, "second"))]

        await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        [woken] = await scene.claim_lanes()
        assert (woken.agent, woken.item.text) == (agent, "second")


async def check_holders_join_and_leave(harness: StoreHarness) -> None:
    store, other = await harness.open(), await harness.open()
    first = await store.join("worker")
    second = await other.join("cli")

    assert (first.is_alive, second.is_alive) == (True, True)
    for each in (store, other):
        assert await each.holders() == sorted([first, second], key=lambda h: h.id)
    assert (first.kind, second.kind) == ("worker", "cli")
    assert first.joined_at == harness.clock.now()
    await other.leave(second.id)
    await other.leave(second.id)
    await other.leave(HolderId("hld_none"))

    assert await store.holders() == [first]


async def check_claiming_nothing_changes_nothing(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next()
    before = await read_everything(scene.store)

    assert await scene.claim_lanes() == []
    assert await scene.store.offer_followups(claim) == []
    assert await scene.store.reap(scene.holder) == []

    assert await read_everything(scene.store) == before


async def check_a_run_that_ends_because_of_a_budget_pauses_its_lane(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first = await scene.send("spend")
    await scene.send("and more")
    claim = await scene.claim_next()
    run = await scene.begin(claim)
    ended = Finished(harness.clock.now(), "failed", "budget")

    settled = await scene.store.settle(claim, ended)

    lane = await scene.store.lane(scene.agent)
    assert (settled.id, settled.status, settled.error) == (first.id, "queued", None)
    assert (lane.is_paused, lane.queued, lane.status) == (True, 2, "ready")
    assert await claim_lanes(scene.store, claim.holder) == []
    await scene.store.set_paused(scene.agent, is_paused=False)
    [again] = await claim_lanes(scene.store, claim.holder)
    assert (again.item.id, again.item.before) == (first.id, run)
