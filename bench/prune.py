"""Measures how long writers wait while 90 % of a large store is pruned.

A writer accepts a message every few milliseconds and measures each wait: in the process that
prunes, as in a daemon, and in another process. The size is `STEADYRUN_BENCH_PRUNE_RUNS` (5000 runs
with 100 events each); 100000 runs make 10 million events.
"""

import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.to_thread

from bench import large, store_setup
from bench.measure import Row, compute_percentile, expect, format_seconds, make_scratch
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Message
from steadyrun.model.retention import PruneCounts, RetentionLimits
from steadyrun.runtime.retention import prune_all, release_all_space
from steadyrun.stores.sqlite import DATABASE, SqliteStore

RUNS = int(os.environ.get("STEADYRUN_BENCH_PRUNE_RUNS", "5000"))  # noqa: TID251
# The agents of `large` have no free lane: the writers have agents of their own.
_WRITE_PAUSE_SECONDS = 0.005
_FLOOR_SECONDS = 0.1


def rows() -> list[Row]:
    with make_scratch() as folder:
        filled = large.FilledStore(folder / "store")
        old = RUNS * 9 // 10
        anyio.run(large.fill, filled, old)
        limit = datetime.now(UTC)
        anyio.run(large.fill_more, filled, RUNS - old)
        return anyio.run(_measure, filled.home, limit)


async def _measure(home: Path, limit: datetime) -> list[Row]:
    async with store_setup.open_store(home) as store:
        agents = [store_setup.make_agent(large.AGENTS + n) for n in range(3)]
        for agent in agents:
            await store.add_agent(agent)
        idle = await _measure_idle(store, agents[0].id)
        before = (home / DATABASE).stat().st_size
        async with (
            _other_process(home, agents[1].id) as other,
            _writing(store, agents[2].id) as own,
        ):
            begin = time.perf_counter()
            counts = await prune_all(store, RetentionLimits(events_before=limit))
            pruned = time.perf_counter() - begin
            await release_all_space(store)
            released = time.perf_counter() - begin - pruned
        await _check(store, counts)
        size = (home / DATABASE).stat().st_size
    print(
        f"prune: {counts.events} of {RUNS * 100} events in {pruned:.1f} s, space in "
        f"{released:.1f} s; {before / 1e6:.0f} MB -> {size / 1e6:.0f} MB"
    )
    return [
        _build_row("prune: longest wait of a writer in the same process", own, idle),
        _build_row("prune: longest wait of a writer in another process", other, idle),
    ]


def _build_row(name: str, waits: list[float], idle: list[float]) -> Row:
    longest = max(waits)
    usual, rare = (format_seconds(compute_percentile(waits, part)) for part in (0.5, 0.99))
    print(
        f"{name}: {len(waits)} writes, p50 {usual}, p99 {rare}, "
        f"longest {format_seconds(longest)}; without a pruning {format_seconds(max(idle))}"
    )
    limit = format_seconds(_FLOOR_SECONDS)
    return Row(name, format_seconds(longest), limit, longest / _FLOOR_SECONDS, floor=1.0)


async def _measure_idle(store: SqliteStore, agent: AgentId) -> list[float]:
    waits: list[float] = []
    with anyio.move_on_after(5.0):
        await write_on(store, agent, waits)
    return waits


@asynccontextmanager
async def _writing(store: SqliteStore, agent: AgentId) -> AsyncIterator[list[float]]:
    waits: list[float] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_on, store, agent, waits)
        yield waits
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _other_process(home: Path, agent: AgentId) -> AsyncIterator[list[float]]:
    """A process that writes until the end of the block; the list is filled at the end."""
    waits: list[float] = []
    command = [sys.executable, "-m", "bench.prune", str(home), agent]
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout
        assert process.stdin
        printed = await process.stdout.receive()
        yield waits
        await process.stdin.aclose()
        async for some in process.stdout:
            printed += some
    waits += [float(line) for line in printed.split()[1:]]


async def write_on(store: SqliteStore, agent: AgentId, waits: list[float]) -> None:
    while True:
        begin = time.perf_counter()
        await store.accept(Message(agent, "Task."))
        waits.append(time.perf_counter() - begin)
        await anyio.sleep(_WRITE_PAUSE_SECONDS)


async def _check(store: SqliteStore, counts: PruneCounts) -> None:
    expect(counts.runs >= RUNS * 9 // 10 - large.AGENTS, "too few runs were pruned")
    [newest] = await store.events(limit=1, newest=True)
    oldest = (await store.events(limit=1))[0]
    kept = newest.cursor - oldest.cursor + 1
    expect(kept >= RUNS // 10 * 100, "young events were pruned")
    expect(not await store.check(), "the file is damaged")


async def _write_until_told(home: Path, agent: AgentId) -> None:
    waits: list[float] = []
    async with store_setup.open_store(home) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(write_on, store, agent, waits)
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        tasks.cancel_scope.cancel()
    print("\n".join(map(str, waits)))


if __name__ == "__main__":
    anyio.run(_write_until_told, Path(sys.argv[1]), AgentId(sys.argv[2]))
