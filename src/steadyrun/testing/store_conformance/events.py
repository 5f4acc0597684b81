"""Promises about appending: from the stored offset, once, whole, and never after the end."""

from datetime import timedelta

import anyio

from steadyrun.errors import ChangeRefused, NotFound, OffsetMismatch
from steadyrun.model.batch import Batch
from steadyrun.model.event import (
    LIVE_ONLY,
    Emitted,
    Event,
    Foreign,
    OutputRaw,
    RunCompleted,
    TextDelta,
    TextFinal,
    ThinkingDelta,
    ToolCompleted,
    ToolStarted,
)
from steadyrun.model.event_codec import EventRow, decode_row
from steadyrun.model.ids import ProcessId, RunId
from steadyrun.model.process import Checkpoint
from steadyrun.model.run import Finished, Launched, Touched
from steadyrun.model.usage import Usage
from steadyrun.testing.store_conformance.fixtures import (
    ALL,
    TIMEOUT_SECONDS,
    Working,
    add_agent,
    expect_refused,
    read_everything,
    read_process,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_batch_is_written_whole(harness: StoreHarness) -> None:
    working = await set_working(harness)
    tool = ToolStarted("t1", "Bash", {"command": "ls"})
    batch = working.make_batch(
        0, 120, working.make_event(80), working.make_event(80, 1, tool), working.make_note("s", 1),
        checkpoint=Checkpoint(b"\x00\xffmemory", sent=3), token=working.make_token("tok"),
    )  # fmt: skip

    appended = await working.store.append(working.claim, batch)

    assert (appended.count, appended.last_seq, appended.cursor) == (3, 3, 3)
    events = await working.store.events(run=working.run)
    assert [(e.at, e.event) for e in events] == [(e.at, e.event) for e in batch.events]
    names = [f"{working.process}:{place}" for place in ("80.0", "80.1", "s1")]
    assert [e.id for e in events] == names
    assert {(e.agent, e.run, e.provider) for e in events} == {("ada", working.run, "claude")}
    process = await read_process(working.store, working.process)
    assert (process.offset, process.marks.s, process.marks.r) == (120, 1, 0)
    assert process.saved is not None
    assert (process.saved.state, process.saved.sent) == (b"\x00\xffmemory", 3)
    assert process.saved.offset == 120
    run = await working.store.run(working.run)
    assert (run.events, run.tools) == (3, 1)


async def check_an_append_begins_at_the_stored_offset(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    await store.append(claim, working.make_batch(0, 100))

    for start, end in [(101, 150), (50, 150), (0, 101), (99, 200), (150, 150)]:
        error = await expect_refused(
            store, OffsetMismatch, store.append(claim, working.make_batch(start, end))
        )
        assert (error.process, error.stored, error.given) == (working.process, 100, start)
    await expect_refused(store, ChangeRefused, store.append(claim, working.make_batch(100, 90)))

    assert (await store.append(claim, working.make_batch(100, 150))).count == 1


async def check_a_repeated_batch_is_written_once(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    now = harness.clock.now()
    batch = working.make_batch(
        0, 100, working.make_event(50), working.make_note("s", 1), working.make_note("x", 1),
        working.make_note("r", 1), working.make_event(100),
        token=working.make_token("tok"), checkpoint=Checkpoint(b"one", 1), change=Launched(now),
    )  # fmt: skip
    first = await store.append(claim, batch)
    before = await read_everything(store)

    again = await store.append(claim, batch)

    assert (first.count, again.count) == (6, 0)
    assert (again.last_seq, again.cursor) == (first.last_seq, first.cursor)
    assert await read_everything(store) == before


async def check_a_repeated_old_batch_changes_nothing(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    now = harness.clock.now()
    old = working.make_batch(
        0, 100, token=working.make_token("old"), checkpoint=Checkpoint(b"old", 1),
        change=Touched(now, Usage(1, 1)),
    )  # fmt: skip
    new = working.make_batch(
        100, 200, token=working.make_token("new"), checkpoint=Checkpoint(b"new", 2),
        change=Touched(now + timedelta(seconds=5), Usage(9, 9)),
    )  # fmt: skip
    await store.append(claim, old)
    await store.append(claim, new)
    before = await read_everything(store)

    assert (await store.append(claim, old)).count == 0

    assert await read_everything(store) == before


async def check_repeated_own_events_are_found_by_their_number(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    await store.append(
        claim, working.make_batch(0, 0, working.make_note("s", 1), working.make_note("r", 1))
    )
    both = working.make_batch(
        0, 0, working.make_note("s", 1), working.make_note("s", 2), working.make_note("x", 1),
        working.make_note("r", 1),
    )  # fmt: skip

    assert (await store.append(claim, both)).count == 2
    assert (await store.append(claim, both)).count == 0

    ids = [event.id.rpartition(":")[2] for event in await store.events(run=working.run)]
    assert ids == ["s1", "r1", "s2", "x1"]
    marks = (await read_process(store, working.process)).marks
    assert (marks.s, marks.x, marks.r) == (2, 1, 1)


async def check_a_repeated_batch_may_add_a_new_own_event(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    await store.append(claim, working.make_batch(0, 100))

    appended = await store.append(
        claim, working.make_batch(0, 100, working.make_event(100), working.make_note("s", 1))
    )

    assert appended.count == 1
    assert [e.id.rpartition(":")[2] for e in await store.events()] == ["100.0", "s1"]


async def check_live_events_are_never_stored(harness: StoreHarness) -> None:
    working = await set_working(harness)
    live: list[Event] = [TextDelta("x"), ThinkingDelta("x"), OutputRaw("stderr", "x")]
    assert {type(event) for event in live} == LIVE_ONLY

    for event in live:
        batch = working.make_batch(
            0, 10, working.make_event(5), working.make_event(10, event=event)
        )
        await expect_refused(
            working.store, ChangeRefused, working.store.append(working.claim, batch)
        )


async def check_an_ended_run_takes_no_more_events(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    batch = working.make_batch(0, 100, change=working.make_end())
    await store.append(claim, batch)

    for late in (
        working.make_batch(100, 110),
        working.make_batch(100, 100, working.make_note("r", 1)),
    ):
        await expect_refused(store, ChangeRefused, store.append(claim, late))
        await expect_refused(store, ChangeRefused, store.settle(claim, None, late))
    assert (await store.append(claim, batch)).count == 0
    moved = await store.append(claim, Batch(working.process, working.run, 100, 130))

    assert moved.count == 0
    assert (await read_process(store, working.process)).offset == 130


async def check_an_ended_run_is_not_changed(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    ended = await store.change(claim, working.run, working.make_end())
    before = await read_everything(store)
    later = harness.clock.now() + timedelta(seconds=1)

    for change in (
        Launched(later),
        Touched(later, Usage(5)),
        Finished(later, "failed", text="other"),
    ):
        assert await store.change(claim, working.run, change) == ended
    assert await read_everything(store) == before


async def check_a_run_has_one_terminal_event_and_it_is_last(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim, now = working.store, working.claim, harness.clock.now()
    await store.append(claim, working.make_batch(0, 10, change=Launched(now, working.process)))
    await store.append(claim, working.make_batch(10, 20, change=Touched(now)))
    last = working.make_batch(20, 30, change=working.make_end(text="bye"))

    await store.settle(claim, working.make_end("failed"), last)

    events = await store.events(run=working.run)
    types = [str(e.event.__struct_config__.tag) for e in events]
    assert types == ["run.started", "text.final", "text.final", "text.final", "run.completed"]
    assert isinstance(events[-1].event, RunCompleted)
    assert events[-1].event.text == "bye"
    run = await store.run(working.run)
    assert (run.status, run.text, run.events) == ("completed", "bye", 5)


async def check_settle_writes_its_batch_or_nothing(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim

    await expect_refused(store, ChangeRefused, store.settle(claim, None, working.make_batch(0, 10)))
    await expect_refused(store, ChangeRefused, store.settle(claim, Launched(harness.clock.now())))
    await expect_refused(
        store, OffsetMismatch, store.settle(claim, working.make_end(), working.make_batch(5, 10))
    )
    settled = await store.settle(claim, working.make_end(), working.make_batch(0, 10))

    assert settled.status == "completed"
    assert len(await store.events(run=working.run)) == 2


async def check_events_outside_a_run_belong_to_the_agent(harness: StoreHarness) -> None:
    working = await set_working(harness)

    appended = await working.store.append(working.claim, working.make_batch(0, 10, run=None))

    assert appended.count == 1
    [event] = await working.store.events(agent=working.agent)
    assert (event.run, event.provider, event.agent) == (None, None, "ada")
    assert (await working.store.run(working.run)).events == 0


async def check_an_append_is_for_a_process_and_a_run_of_its_agent(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    other = await set_working(harness, "bo", store=store)

    for batch in (
        Batch(ProcessId("prc_none"), None, 0, 10),
        Batch(other.process, None, 0, 10),
        working.make_batch(0, 10, run=RunId("run_none")),
        working.make_batch(0, 10, run=other.run),
    ):
        await expect_refused(store, NotFound, store.append(claim, batch))
    await expect_refused(store, NotFound, store.change(claim, other.run, working.make_end()))


async def check_append_returns_the_stored_rows(harness: StoreHarness) -> None:
    working = await set_working(harness)
    batch = working.make_batch(
        0, 30, working.make_event(10), working.make_event(30), working.make_note("s", 1)
    )

    appended = await working.store.append(working.claim, batch)

    read = await working.store.events(agent=working.agent)
    given = [
        event
        for row in appended.rows
        for event in decode_row(
            EventRow(row.cursor, row.seq, "ada", row.run, working.process, "claude", row.body)
        )
    ]
    assert given == read
    assert (await working.store.append(working.claim, batch)).rows == ()


async def check_events_of_a_later_version_are_kept(harness: StoreHarness) -> None:
    working = await set_working(harness)
    # The longer forms of a short text and a small number: nothing may be written anew.
    raw = b"\x82\xa4type\xd9\x0ethought.shared\xa5depth\xcd\x00\x01"
    foreign = Emitted(20, 0, harness.clock.now(), Foreign("thought.shared", 7, raw))

    await working.store.append(
        working.claim,
        working.make_batch(0, 30, working.make_event(10), foreign, working.make_event(30)),
    )

    events = await working.store.events()
    assert [type(e.event) for e in events] == [TextFinal, Foreign, TextFinal]
    assert events[1].event == foreign.event


async def check_awkward_contents_come_back_as_they_were(harness: StoreHarness) -> None:
    working = await set_working(harness)
    texts = ["", "a\x00b\n\r\u2028\u2029", "'\"\\ 🧵 \U0010ffff", "y" * 200_000]
    output = {"a": [None, True, 1.5, {"b": "\ud7ff"}], "": []}
    events = [working.make_event(10, n, TextFinal(text)) for n, text in enumerate(texts)]
    tool = working.make_event(10, 9, ToolCompleted("t", "Read", {"p": "\\"}, output))

    await working.store.append(working.claim, working.make_batch(0, 10, *events, tool))

    reader = await harness.open()
    assert [e.event for e in await reader.events()] == [e.event for e in (*events, tool)]


async def check_several_writers_leave_no_gap(harness: StoreHarness) -> None:
    agents, batches = 5, 25
    workers = [await set_working(harness, f"agent {n}") for n in range(agents)]
    watcher = await harness.open()
    await add_agent(harness, watcher, "silent")

    async def write(working: Working) -> None:
        for n in range(batches):
            events = [working.make_event(n * 10 + 10, k) for k in range(n % 4)]
            batch = Batch(working.process, working.run, n * 10, n * 10 + 10, tuple(events))
            appended = await working.store.append(working.claim, batch)
            assert appended.count == len(events)

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as tasks:
            for working in workers:
                tasks.start_soon(write, working)

    total = agents * sum(n % 4 for n in range(batches))
    whole = await watcher.events(limit=ALL)
    assert [event.cursor for event in whole] == list(range(1, total + 1))
    for working in workers:
        mine = await watcher.events(agent=working.agent, limit=ALL)
        assert [event.seq for event in mine] == list(range(1, total // agents + 1))
        assert mine == [e for e in whole if e.run == working.run]
        assert (await watcher.lane(working.agent)).event_seq == len(mine)
        assert (await watcher.run(working.run)).events == len(mine)


async def check_two_writers_with_one_claim_write_a_batch_once(
    harness: StoreHarness,
) -> None:
    working = await set_working(harness)
    other = await harness.open()
    batch = working.make_batch(
        0, 50, working.make_event(25), working.make_event(50), working.make_note("s", 1)
    )
    counts: list[int] = []

    async def append(n: int) -> None:
        store = other if n % 2 else working.store
        counts.append((await store.append(working.claim, batch)).count)

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with anyio.create_task_group() as tasks:
            for n in range(6):
                tasks.start_soon(append, n)

    assert sorted(counts) == [0, 0, 0, 0, 0, 3]
    assert len(await other.events()) == 3
