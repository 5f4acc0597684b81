"""Compares the time to read a page in a store with that in a store a hundred times larger.

One store has 1000 runs, the other 100 000 runs with 10 million events. Both are filled by the
functions that the verbs run, many to a transaction, and read by the verbs.
"""

import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import anyio

from bench import store_setup
from bench.corpus import SECRETS
from bench.measure import (
    ROUNDS,
    Rounds,
    Row,
    compute_percentile,
    expect,
    format_seconds,
    make_scratch,
    measure_steadily,
)
from steadyrun.model.batch import Batch
from steadyrun.model.event import (
    Emitted,
    RunCompleted,
    RunStarted,
    StoredEvent,
    TextFinal,
    make_event_id,
)
from steadyrun.model.gate import GateRules
from steadyrun.model.ids import AgentId, HolderId, ProcessId, RunId
from steadyrun.model.item import Message
from steadyrun.model.process import Process
from steadyrun.model.run import Finished, Launched
from steadyrun.model.secret import Scrubber
from steadyrun.store import Started
from steadyrun.stores.sqlite import DATABASE, SqliteStore
from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.db.transaction import StoreSettings, Transaction
from steadyrun.stores.sqlite.sql import claims, runs

SMALL, LARGE = 1_000, 100_000
AGENTS = 100
# A hundred, with the two events of the run itself: its start and its end.
_BATCHES = (25, 25, 24, 24)
_RUNS_PER_COMMIT = 1_000
_CALLS_PER_ROUND = 300
_PAGE, _LAST = 50, 20
_CHECKED = 200

_SETTINGS = StoreSettings(Scrubber(SECRETS), GateRules(), {})
_WORDS = ("looked", "at", "the", "next", "failing", "test", "and", "found", "why", "it", "fails")

Call = Callable[[SqliteStore, "FilledStore", random.Random], Awaitable[None]]


@dataclass
class FilledStore:
    """The home of a store, and its runs in order of creation, with the place of their events."""

    home: Path
    holder: HolderId | None = None
    runs: list[RunId] = field(default_factory=list)
    processes: dict[AgentId, ProcessId] = field(default_factory=dict)
    offsets: dict[AgentId, int] = field(default_factory=dict)
    begins: list[tuple[ProcessId, int]] = field(default_factory=list)


def rows() -> list[Row]:
    begin = time.perf_counter()
    with make_scratch() as folder:
        small, large = FilledStore(folder / "small"), FilledStore(folder / "large")
        anyio.run(fill, small, SMALL)
        anyio.run(fill, large, LARGE)
        told = time.perf_counter() - begin
        size = (large.home / DATABASE).stat().st_size
        print(f"large: filled in {told:.0f} s; {LARGE} runs take {size / 1e9:.2f} GB")
        anyio.run(_check, small)
        anyio.run(_check, large)
        found = measure_steadily(
            lambda: anyio.run(_measure, small, large),
            _build_rows,
            controls=["runs 1k", "events 1k"],
        )
    print(f"large: done after {time.perf_counter() - begin:.0f} s")
    return found


def _build_rows(found: Rounds) -> list[Row]:
    return [
        _build_row(f"large: newest {_PAGE} runs, p50 100k / 1k runs", found, "runs"),
        _build_row(f"large: last {_LAST} events, p50 100k / 1k runs", found, "events"),
    ]


def _build_row(name: str, found: Rounds, what: str) -> Row:
    large, small = min(found[f"{what} 100k"]), min(found[f"{what} 1k"])
    return Row(name, format_seconds(large), format_seconds(small), large / small, floor=1.5)


# -- reading


async def _measure(small: FilledStore, large: FilledStore) -> Rounds:
    calls: dict[str, Call] = {"runs": _read_newest_runs, "events": _read_last_events}
    found: Rounds = {f"{what} {size}": [] for what in calls for size in ("1k", "100k")}
    chance = random.Random(7)
    async with (
        store_setup.open_store(small.home) as one,
        store_setup.open_store(large.home) as other,
    ):
        stores = {"1k": (one, small), "100k": (other, large)}
        for _, (what, call) in itertools.product(range(ROUNDS), calls.items()):
            took: dict[str, list[float]] = {size: [] for size in stores}
            for _, (size, (store, filled)) in itertools.product(
                range(_CALLS_PER_ROUND), stores.items()
            ):
                begin = time.perf_counter()
                await call(store, filled, chance)
                took[size].append(time.perf_counter() - begin)
            for size, times in took.items():
                found[f"{what} {size}"].append(compute_percentile(times, 0.5))
    return found


async def _read_newest_runs(store: SqliteStore, filled: FilledStore, chance: random.Random) -> None:
    page = await store.runs(limit=_PAGE)
    expect(len(page) == _PAGE and page[0].id == filled.runs[-1], "other runs came back")


async def _read_last_events(store: SqliteStore, filled: FilledStore, chance: random.Random) -> None:
    run = chance.choice(filled.runs)
    events = await store.events(run=run, limit=_LAST, newest=True)
    expect(len(events) == _LAST and events[-1].run == run, "other events came back")


async def _check(filled: FilledStore) -> None:
    """Compare some runs, as the verbs return them, with what was written."""
    async with store_setup.open_store(filled.home) as store:
        newest = [run.id for run in await store.runs(limit=_PAGE)]
        expect(newest == filled.runs[: -_PAGE - 1 : -1], "other runs are the newest")
        for number in random.Random(11).sample(range(len(filled.runs)), _CHECKED):
            run = await store.run(filled.runs[number])
            events = await store.events(run=run.id)
            expect((run.status, run.events) == ("completed", len(events)), "a run differs")
            _check_events(events, filled.begins[number])


def _check_events(events: list[StoredEvent], begin: tuple[ProcessId, int]) -> None:
    process, offset = begin
    expect(isinstance(events[0].event, RunStarted), "a run does not begin with its start")
    expect(isinstance(events[-1].event, RunCompleted), "a run does not end with its end")
    written = _make_events(process, offset, sum(_BATCHES))
    names = [make_event_id(process, e.place, e.n) for e in written]
    expect([e.id for e in events[1:-1]] == names, "events have other names")
    expect([e.event for e in events[1:-1]] == [e.event for e in written], "events differ")


# -- filling


async def fill(filled: FilledStore, count: int) -> None:
    """Fill a new store with runs that have ended."""
    async with store_setup.open_store(filled.home) as store:
        agents = await store_setup.add_agents(store, AGENTS)
        await store_setup.accept_all(store, [Message(agent.id, "Task.") for agent in agents])
        holder = await store.join("bench")
        for started in await store.start(holder.id, store_setup.create_run, AGENTS):
            claim, process = started.claim, store_setup.ids.make_process()
            await store.open_process(claim, _make_process(process, claim.agent))
            await store.settle(claim, Finished(_read_now(), "cancelled", stop_reason="shutdown"))
            filled.processes[claim.agent], filled.offsets[claim.agent] = process, 0
    filled.holder = holder.id
    await fill_more(filled, count)


async def fill_more(filled: FilledStore, count: int) -> None:
    """Add runs to a store that `fill` has made."""
    assert filled.holder
    connection = schema.connect(filled.home / DATABASE)
    connection.execute("PRAGMA synchronous = OFF")
    for some in _commit(count):
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(some):
            tx = Transaction(connection, _read_now(), _SETTINGS)
            [started] = claims.start(tx, filled.holder, store_setup.create_run)
            _fill_run(tx, started, filled)
        connection.execute("COMMIT")
    connection.close()


def _commit(count: int) -> Iterator[int]:
    for done in range(0, count, _RUNS_PER_COMMIT):
        yield min(_RUNS_PER_COMMIT, count - done)


def _fill_run(tx: Transaction, started: Started, filled: FilledStore) -> None:
    """Run one item of a lane from the creation of its run to its end, and queue the next one."""
    claim, run = started.claim, started.run.id
    filled.runs.append(run)
    filled.begins.append((filled.processes[claim.agent], filled.offsets[claim.agent]))
    for number, count in enumerate(_BATCHES):
        batch = _make_batch(filled, claim.agent, run, count, is_first=number == 0)
        encoded = runs.EncodedBatch.from_batch(batch, _SETTINGS.scrubber)
        runs.append(tx, claim, encoded)
    claims.accept(tx, store_setup.ids.make_item(), Message(claim.agent, "Task."), None)
    end = Finished(_read_now(), "completed", text="Done.")
    last = runs.LastWrites(end, None)
    claims.settle(tx, claim, last, keep_warm=False)


def _make_batch(
    filled: FilledStore, agent: AgentId, run: RunId, count: int, *, is_first: bool
) -> Batch:
    process, offset = filled.processes[agent], filled.offsets[agent]
    events = _make_events(process, offset, count)
    filled.offsets[agent] = offset + count
    launched = Launched(_read_now(), process) if is_first else None
    return Batch(process, run, offset, offset + count, tuple(events), change=launched)


def _make_events(process: ProcessId, offset: int, count: int) -> list[Emitted]:
    """The events after an offset: each frame moves the offset by one."""
    return [
        Emitted(n, 0, _AT, TextFinal(_make_text(n))) for n in range(offset + 1, offset + count + 1)
    ]


_AT = datetime(2026, 1, 5, 9, 30, 1, 250_001, tzinfo=UTC)


def _make_text(n: int) -> str:
    """A text that makes an event of about a hundred bytes."""
    words = _WORDS[n % 11], _WORDS[n % 7], _WORDS[n % 5]
    return f"Step {n}: {' '.join(words)}, then went on to step {n + 1}."


def _make_process(process: ProcessId, agent: AgentId) -> Process:
    return Process(process, agent, store_setup.PROVIDER, "here", "keeper", _read_now())


def _read_now() -> datetime:
    return datetime.now(UTC)
