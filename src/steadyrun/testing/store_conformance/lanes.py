"""Promises about lanes: one owner, in order, skipped while paused or gated, given up whole."""

from collections import defaultdict
from datetime import timedelta

import anyio

from steadyrun.errors import LeaseLost
from steadyrun.model.gate import Closed, Gate, Opened
from steadyrun.model.ids import AgentId, HolderId, ItemId
from steadyrun.model.item import Claim, Message
from steadyrun.model.run import Cancelled, Finished
from steadyrun.store import Store
from steadyrun.testing.store_conformance.fixtures import (
    PATIENCE_SECONDS,
    Scene,
    add_agent,
    begin,
    claim_lanes,
    expect_refused,
    read_everything,
    run_overlapping,
    send,
    set_scene,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

ITEMS, AGENTS, HOLDERS = 600, 7, 4


class _Crew:
    """Holders that work off everything and write down what they saw."""

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
        await begin(self.harness, store, claim)
        # From here on another may claim it before we hear that our settle was written.
        self.live.remove(claim.agent)
        item = await store.settle(claim, Cancelled(self.harness.clock.now()))
        self.done.append(claim)
        self.settled[item.id] += 1


async def check_many_holders_keep_order_and_exclusion(harness: StoreHarness) -> None:
    front = await harness.open()
    agents = [await add_agent(harness, front, f"agent {n}") for n in range(AGENTS)]
    crew, sent = _Crew(harness), []

    async def accept_all() -> None:
        for n in range(ITEMS):
            message = Message(agents[n % AGENTS], str(n), key=str(n // 2))
            sent.append((await front.accept(message)).item.id)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept_all)
            for _ in range(HOLDERS):
                tasks.start_soon(crew.work, await harness.open(), ITEMS)

    assert dict(crew.settled) == dict.fromkeys(sent, 1)
    for agent in agents:
        mine = sorted((c for c in crew.done if c.agent == agent), key=lambda c: c.fence)
        assert [c.item.seq for c in mine] == list(range(1, len(mine) + 1))
        assert [c.fence for c in mine] == list(range(1, len(mine) + 1))
        lane = await front.lane(agent)
        assert (lane.status, lane.queued, lane.holder) == ("idle", 0, None)


async def check_two_claims_never_win(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    stores = [scene.store, await harness.open()]
    holders = [(store, (await store.join("worker")).id) for store in stores * 4]
    for n in range(5):
        agent = await add_agent(harness, scene.store, f"bo{n}")
        await send(harness, scene.store, agent, "work")

        answers = await run_overlapping(harness, [claim_lanes(s, h) for s, h in holders])

        claims = [claim for answer in answers for claim in answer]
        assert [claim.agent for claim in claims] == [agent]
        lane = await scene.store.lane(agent)
        assert (lane.holder, lane.fence) == (claims[0].holder, claims[0].fence)


async def check_a_claim_runs_the_head_item(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    head = await scene.send()
    await scene.send()
    harness.clock.advance(timedelta(seconds=1))

    claim = await scene.claim()

    item, lane = claim.item, await scene.store.lane(scene.agent)
    assert (item.id, item.status, item.delivery, item.attempt) == (head.id, "running", "none", 1)
    assert item.started_at == harness.clock.now()
    assert item == await scene.store.item(head.id)
    assert (lane.status, lane.holder, lane.fence) == ("held", scene.holder, claim.fence)
    assert (lane.queued, lane.ready_at) == (1, None)


async def check_the_longest_ready_lane_goes_first(harness: StoreHarness) -> None:
    store = await harness.open()
    agents = [await add_agent(harness, store, name) for name in ("cy", "ada", "bo", "di")]
    for agent in agents[::-1]:
        await send(harness, store, agent, "work")
    await send(harness, store, agents[3], "more")
    holder = await store.join("worker")

    first = await claim_lanes(store, holder.id, limit=3)
    rest = await claim_lanes(store, holder.id, limit=3)

    assert [claim.agent for claim in first] == agents[:0:-1]
    assert [claim.agent for claim in rest] == agents[:1]


async def check_a_claim_may_be_for_one_agent(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    bo, cy = [await add_agent(harness, scene.store, name) for name in ("bo", "cy")]
    await scene.send()
    await send(harness, scene.store, bo, "work")

    assert await claim_lanes(scene.store, scene.holder, agent=cy) == []
    [claim] = await claim_lanes(scene.store, scene.holder, 5, agent=bo)
    assert await claim_lanes(scene.store, scene.holder, agent=bo) == []

    assert claim.agent == bo
    assert (await scene.claim()).agent == scene.agent


async def check_a_held_lane_is_unclaimable(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    await scene.claim()
    await scene.send()
    other = await harness.open()
    rival = await other.join("worker")

    assert await claim_lanes(other, rival.id, limit=5) == []
    assert await claim_lanes(scene.store, scene.holder, limit=5) == []

    lane = await other.lane(scene.agent)
    assert (lane.status, lane.queued, lane.holder) == ("held", 1, scene.holder)


async def check_an_empty_lane_is_unclaimable(harness: StoreHarness) -> None:
    scene = await set_scene(harness)

    assert await claim_lanes(scene.store, scene.holder, limit=5) == []


async def check_a_paused_lane_is_unclaimable_until_resumed(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    await other.pause(scene.agent)
    item = await scene.send()
    await other.pause(scene.agent)

    assert (await scene.store.lane(scene.agent)).is_paused
    assert await claim_lanes(scene.store, scene.holder) == []
    await other.resume(scene.agent)

    assert (await scene.claim()).item.id == item.id


async def check_what_runs_goes_on_while_paused(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim()
    later = await scene.send()
    await scene.store.pause(scene.agent)

    [taken] = await scene.store.offer_followups(claim)
    await scene.begin(claim)
    settled = await scene.finish(claim)

    assert taken.id == later.id
    assert settled.status == "completed"
    lane = await scene.store.lane(scene.agent)
    assert (lane.status, lane.is_paused) == ("ready", True)
    assert await claim_lanes(scene.store, scene.holder) == []


async def check_a_closed_gate_skips_the_lane_until_its_time(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    codex = await add_agent(harness, scene.store, "bo", provider="codex")
    await scene.send()
    await send(harness, scene.store, codex, "work")
    until = harness.clock.now() + timedelta(minutes=15)
    await scene.store.update_gate("claude", Closed(until, "rate limit"))

    [claim] = await claim_lanes(scene.store, scene.holder, limit=5)
    assert claim.agent == codex
    harness.clock.advance(until - harness.clock.now() - timedelta(microseconds=1))
    assert await claim_lanes(scene.store, scene.holder) == []
    harness.clock.advance(timedelta(microseconds=1))

    assert (await scene.claim()).agent == scene.agent


async def check_a_gate_can_be_opened_by_hand(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    await scene.send()
    closed = await other.update_gate("claude", Closed(None, "by hand"))
    assert await scene.store.gates() == [closed]
    assert await claim_lanes(scene.store, scene.holder) == []

    await other.update_gate("claude", Opened())

    assert await scene.store.gates() == [Gate("claude")]
    assert (await scene.claim()).agent == scene.agent


async def check_an_interrupted_item_is_back_in_its_place(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first = await scene.send()
    await scene.send()
    claim = await scene.claim()
    harness.clock.advance(timedelta(seconds=1))

    interrupted = await scene.finish(claim, "cancelled", stop_reason="shutdown")

    assert (interrupted.id, interrupted.status, interrupted.attempt) == (first.id, "queued", 1)
    lane = await scene.store.lane(scene.agent)
    assert (lane.status, lane.queued, lane.holder) == ("ready", 2, None)
    assert lane.ready_at == harness.clock.now()
    again = await scene.claim()
    assert (again.item.id, again.item.attempt, again.fence) == (first.id, 2, claim.fence + 1)


async def check_an_interrupted_item_that_was_asked_to_stop_is_cancelled(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    item = await scene.send()
    claim = await scene.claim()
    await scene.store.cancel(item.id)

    interrupted = await scene.finish(claim, "cancelled", stop_reason="shutdown")

    assert interrupted.status == "cancelled"
    assert (await scene.store.lane(scene.agent)).status == "idle"


async def check_a_claim_ends_once(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim()
    await scene.begin(claim)
    settled = await scene.finish(claim)

    for verb in (
        scene.store.settle(claim),
        scene.store.offer_followups(claim),
    ):
        error = await expect_refused(scene.store, LeaseLost, verb)
        assert (error.agent, error.fence) == (scene.agent, claim.fence)
    assert await scene.store.item(settled.id) == settled


async def check_a_wake_up_at_the_end_is_never_lost(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    for n in range(12):
        agent = await add_agent(harness, scene.store, f"bo{n}")
        await _check_accept_beside_settle(scene, agent, is_accept_first=n % 2 == 0)


async def _check_accept_beside_settle(
    scene: Scene, agent: AgentId, *, is_accept_first: bool
) -> None:
    harness, other = scene.harness, await scene.harness.open()
    await send(harness, scene.store, agent, "first")
    [claim] = await claim_lanes(scene.store, scene.holder)
    await scene.begin(claim)
    verbs = [other.accept(Message(agent, "second")), scene.finish(claim)]

    await run_overlapping(harness, verbs if is_accept_first else verbs[::-1])

    lane = await scene.store.lane(agent)
    assert (lane.status, lane.queued) == ("ready", 1)
    [woken] = await claim_lanes(scene.store, scene.holder)
    assert (woken.agent, woken.item.text) == (agent, "second")


async def check_a_wake_up_beside_a_cancel_is_never_lost(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await harness.open()
    for n in range(8):
        agent = await add_agent(harness, scene.store, f"bo{n}")
        only = await send(harness, scene.store, agent, "first")
        verbs = [scene.store.cancel(only.id), other.accept(Message(agent, "second"))]

        await run_overlapping(harness, verbs if n % 2 else verbs[::-1])

        [woken] = await claim_lanes(scene.store, scene.holder)
        assert (woken.agent, woken.item.text) == (agent, "second")


async def check_holders_come_and_go(harness: StoreHarness) -> None:
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
    claim = await scene.claim()
    before = await read_everything(scene.store)

    assert await claim_lanes(scene.store, scene.holder) == []
    assert await scene.store.offer_followups(claim) == []
    assert await scene.store.reap(scene.holder) == []

    assert await read_everything(scene.store) == before


async def check_a_run_that_ends_because_of_a_budget_pauses_its_lane(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first = await scene.send("spend")
    await scene.send("and more")
    claim = await scene.claim()
    run = await scene.begin(claim)
    ended = Finished(harness.clock.now(), "failed", "budget")

    settled = await scene.store.settle(claim, ended)

    lane = await scene.store.lane(scene.agent)
    assert (settled.id, settled.status, settled.error) == (first.id, "queued", None)
    assert (lane.is_paused, lane.queued, lane.status) == (True, 2, "ready")
    assert await claim_lanes(scene.store, claim.holder) == []
    await scene.store.resume(scene.agent)
    [again] = await claim_lanes(scene.store, claim.holder)
    assert (again.item.id, again.item.before) == (first.id, run)
