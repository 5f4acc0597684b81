"""Promises about pruning: only what is old and over goes, and nothing is numbered anew."""

from datetime import datetime, timedelta

from steadyrun.model.event import ApprovalRequested, StoredEvent
from steadyrun.model.gate import Closed
from steadyrun.model.ids import RunId
from steadyrun.model.item import Item
from steadyrun.model.retention import PruneCounts, PrunePosition, RetentionLimits
from steadyrun.model.run import Launched
from steadyrun.model.usage import Cost, Usage
from steadyrun.store import Maintenance
from steadyrun.testing.store_conformance.fixtures import (
    ALL,
    Scene,
    Working,
    make_working,
    read_everything,
    set_scene,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

DAY = timedelta(days=1)


async def check_old_events_are_pruned_by_whole_runs(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    old = [await _run_once(scene) for _ in range(3)]
    limit = _pass_a_day(harness)
    young = await _run_once(scene)
    before = await scene.store.events(limit=ALL)

    counts = await _prune(scene.store, RetentionLimits(events_before=limit))

    kept = await scene.store.events(limit=ALL)
    assert kept == [event for event in before if event.run == young]
    gone = [event for event in before if event.run in old]
    assert (counts.events, counts.runs, counts.texts) == (len(gone), 3, 0)
    assert counts.event_bytes > 0
    assert await scene.store.pruned_to() == gone[-1].cursor
    assert await scene.store.pruned_to(scene.agent) == gone[-1].cursor
    runs = {run.id: run for run in await scene.store.runs()}
    assert [runs[run].events_pruned for run in (*old, young)] == [True, True, True, False]


async def check_runs_keep_their_facts_when_events_are_pruned(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    run = await scene.store.run(await _run_once(scene))
    usage = await scene.store.usage("agent")
    items = await scene.store.items(include_settled=True)
    limit = _pass_a_day(harness)
    await _run_once(await set_scene(harness, "bo", store=scene.store))

    await _prune(scene.store, RetentionLimits(events_before=limit))

    after = await scene.store.run(run.id)
    assert (after.events, after.tools, after.text, after.cost) == (
        run.events, run.tools, run.text, run.cost,
    )  # fmt: skip
    assert (await scene.store.usage("agent"))["ada"] == usage["ada"]
    assert await scene.store.items(scene.agent, include_settled=True) == items


async def check_numbers_go_on_after_all_events_of_an_agent_are_pruned(
    harness: StoreHarness,
) -> None:
    scene = await set_scene(harness)
    await _run_once(scene)
    last = (await scene.store.events(agent=scene.agent, limit=ALL))[-1]
    limit = _pass_a_day(harness)
    other = await set_scene(harness, "bo", store=scene.store)
    await _run_once(other)
    await _prune(scene.store, RetentionLimits(events_before=limit))
    assert await scene.store.events(agent=scene.agent) == []
    assert (await scene.store.lane(scene.agent)).event_seq == last.seq

    await _run_once(scene)

    again = await scene.store.events(agent=scene.agent, limit=ALL)
    assert last.seq
    assert [event.seq for event in again] == _count_from(last.seq + 1, again)
    _check_cursors(await scene.store.events(limit=ALL))


async def check_the_last_event_of_all_is_kept(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await _run_once(scene)
    before = await scene.store.events(limit=ALL)
    limit = _pass_a_day(harness)

    await _prune(scene.store, RetentionLimits(events_before=limit))

    kept = await scene.store.events(limit=ALL)
    assert kept[-1:] == before[-1:]
    await _run_once(scene)
    after = await scene.store.events(limit=ALL)
    _check_cursors(after)
    assert after[: len(kept)] == kept
    assert after[len(kept)].cursor == before[-1].cursor + 1


async def check_nothing_of_an_open_run_is_pruned(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    over = await _run_once(scene)
    working = await _begin(scene)
    limit = _pass_a_day(harness)
    await _run_once(await set_scene(harness, "bo", store=scene.store))

    await _prune(scene.store, RetentionLimits(limit, limit))

    assert {event.run for event in await scene.store.events(agent=scene.agent)} == {working.run}
    assert (await scene.store.run(over)).events_pruned
    assert await scene.store.item(working.claim.item.id) == working.claim.item
    await working.store.append(working.claim, working.make_batch(100, 150))
    await working.finish(working.claim)


async def check_nothing_of_an_item_that_will_run_again_is_pruned(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    working = await _begin(scene)
    await scene.store.change(working.claim, working.run, working.make_end("failed"))
    await scene.store.retry(working.claim, spends=True)
    limit = _pass_a_day(harness)
    await _run_once(await set_scene(harness, "bo", store=scene.store))
    before = await scene.store.events(agent=scene.agent), await scene.store.run(working.run)

    await _prune(scene.store, RetentionLimits(limit, limit))

    after = await scene.store.events(agent=scene.agent), await scene.store.run(working.run)
    assert after == before


async def check_nothing_of_an_unsettled_question_is_pruned(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await _run_once(scene)
    working = await _begin(scene)
    question = ApprovalRequested("b", None, "budget", {"why": "spent"}, about="budget")
    await scene.store.append(
        working.claim, working.make_batch(100, 150, working.make_event(150, event=question))
    )
    await working.finish(working.claim)
    assert await scene.store.approvals()
    limit = _pass_a_day(harness)
    await _run_once(await set_scene(harness, "bo", store=scene.store))

    await _prune(scene.store, RetentionLimits(limit, limit))

    assert {event.run for event in await scene.store.events(agent=scene.agent)} == {working.run}


async def check_queued_items_are_not_pruned(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    queued = await scene.send("queued for long")
    limit = _pass_a_day(harness)

    counts = await _prune(scene.store, RetentionLimits(limit, limit))

    assert counts == PruneCounts()
    assert await scene.store.item(queued.id) == queued


async def check_pruning_is_limited_to_an_agent(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    other = await set_scene(harness, "bo", store=scene.store)
    await _run_once(scene)
    await _run_once(other)
    await scene.store.update_gate("codex", Closed(None, "limit"))
    limit = _pass_a_day(harness)
    rest = [event for event in await scene.store.events(limit=ALL) if event.agent != "ada"]

    await _prune(scene.store, RetentionLimits(limit, limit, scene.agent))

    assert await scene.store.events(limit=ALL) == rest
    assert await scene.store.pruned_to(other.agent) == 0
    texts = [item.text for item in await scene.store.items(include_settled=True)]
    assert sorted(texts) == ["", "work"]


async def check_a_dry_pruning_counts_the_same_and_changes_nothing(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    for _ in range(3):
        await _run_once(scene)
    limit = _pass_a_day(harness)
    await _run_once(await set_scene(harness, "bo", store=scene.store))
    limits = RetentionLimits(limit, limit)
    before = await read_everything(scene.store)

    expected = await _prune(scene.store, limits, is_dry=True)

    assert await read_everything(scene.store) == before
    assert await _prune(scene.store, limits) == expected
    assert await _prune(scene.store, limits) == PruneCounts()


async def check_old_texts_are_pruned_and_their_rows_stay(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    run = await scene.store.run(await _run_once(scene))
    [item] = await scene.store.items(include_settled=True)
    events = await scene.store.events(limit=ALL)
    limit = _pass_a_day(harness)
    young = await scene.store.run(await _run_once(scene))

    counts = await _prune(scene.store, RetentionLimits(texts_before=limit))

    pruned, row = await scene.store.run(run.id), await scene.store.item(item.id)
    assert (pruned.text, pruned.text_pruned, pruned.status) == (None, True, run.status)
    assert (row.text, row.reply, row.payload.text_pruned) == ("", None, True)
    assert (row.status, row.run, row.settled_at) == (item.status, item.run, item.settled_at)
    assert (counts.texts, counts.events) == (2, 0)
    assert counts.text_bytes == len(f"{run.text}{item.text}{item.reply}")
    assert await scene.store.run(young.id) == young
    assert (await scene.store.events(limit=ALL))[: len(events)] == events


async def check_a_pruning_that_was_cut_off_is_completed_by_the_next(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    for _ in range(40):
        await _run_once(scene)
    limit = _pass_a_day(harness)
    await _run_once(scene)

    step = await scene.store.prune(RetentionLimits(events_before=limit), PrunePosition())
    numbers = [event.seq for event in await scene.store.events(limit=ALL)]
    assert numbers == list(range(step.counts.events + 1, 41 * 3 + 1))
    await _prune(scene.store, RetentionLimits(events_before=limit))

    assert len(await scene.store.events(limit=ALL)) == 3


async def check_space_is_released_to_the_end(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await _run_once(scene)
    before = await read_everything(scene.store)

    while await scene.store.release_space():
        pass

    assert await read_everything(scene.store) == before


async def _begin(scene: Scene) -> Working:
    """A run with its first two events."""
    await scene.send()
    [claim] = await scene.claim_lanes(agent=scene.agent)
    working = await make_working(scene, claim)
    now = scene.harness.clock.now()
    batch = working.make_batch(0, 100, change=Launched(now, working.process, now))
    await scene.store.append(claim, batch)
    return working


async def _run_once(scene: Scene) -> RunId:
    """Run an item to its end: three events."""
    working = await _begin(scene)
    item: Item = await working.finish(
        working.claim, usage=Usage(1, 2), cost=Cost(0.5, "known"), text="an answer"
    )
    assert item.run
    return item.run


def _pass_a_day(harness: StoreHarness) -> datetime:
    """Let a day pass; a moment after all that was stored before."""
    harness.clock.advance(DAY)
    limit = harness.clock.now()
    harness.clock.advance(DAY)
    return limit


async def _prune(
    store: Maintenance, limits: RetentionLimits, *, is_dry: bool = False
) -> PruneCounts:
    counts, step = PruneCounts(), await store.prune(limits, is_dry=is_dry)
    while step.next is not None:
        counts += step.counts
        step = await store.prune(limits, step.next, is_dry=is_dry)
    return counts + step.counts


def _count_from(first: int, events: list[StoredEvent]) -> list[int]:
    return list(range(first, first + len(events)))


def _check_cursors(events: list[StoredEvent]) -> None:
    cursors = [event.cursor for event in events]
    assert cursors == sorted(set(cursors))
