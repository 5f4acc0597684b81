"""Measures how fast a waiting worker claims an item sent in its own or in another process.

Both cases contain two synced commits, the sender's and the claim's. A round trip through a pipe
between the same two processes, and two synced writes to a file, show the limits of the machine.
"""

import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from bench import store_setup
from bench.measure import Rounds, Row, compute_percentile, expect, format_seconds, make_scratch
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId, HolderId
from steadyrun.model.item import Claim, Message
from steadyrun.stores.sqlite import SqliteStore

SAMPLES = 200
# Long enough for the effects of the last sample to end.
_REST_SECONDS = 0.01
_LIMIT_SECONDS = 10.0
_PAGE = b"x" * 4096

Send = Callable[[AgentId], Awaitable[int]]


def rows() -> list[Row]:
    found = anyio.run(_measure)
    return [
        _build_row(f"{name} / {beside}", found[ours], found[control], part)
        for ours, name in (("here", "one process"), ("there", "two processes"))
        for part in (0.5, 0.9)
        for control, beside in (("pipe", "pipe"), ("sync", "2 syncs"))
    ]


def _build_row(name: str, ours: list[float], control: list[float], part: float) -> Row:
    mine, its = compute_percentile(ours, part), compute_percentile(control, part)
    return Row(
        f"wake: {name}, p{part * 100:.0f}", format_seconds(mine), format_seconds(its), mine / its
    )


async def _measure() -> Rounds:
    found: Rounds = {"here": [], "there": [], "pipe": [], "sync": []}
    with make_scratch() as home:
        async with store_setup.open_store(home) as store:
            agents = await store_setup.add_agents(store, 2 * SAMPLES)
            holder = await store.join("bench")
            with _start_sender(home) as other, (home / "synced").open("wb", buffering=0) as file:
                for here, there in zip(agents[::2], agents[1::2], strict=True):
                    found["pipe"].append(_ping(other))
                    found["sync"].append(_sync_twice(file.fileno()))
                    found["here"].append(await _wake(store, holder.id, here, _make_sender(store)))
                    found["there"].append(await _wake(store, holder.id, there, _make_asker(other)))
    return found


async def _wake(store: SqliteStore, holder: HolderId, agent: Agent, send: Send) -> float:
    """The time from the start of sending to the claim."""
    claimed: list[tuple[Claim, int]] = []
    await anyio.sleep(_REST_SECONDS)
    with anyio.fail_after(_LIMIT_SECONDS):
        async with anyio.create_task_group() as group:
            await group.start(_run_claimer, store, holder, claimed)
            await anyio.sleep(_REST_SECONDS)
            begin = await send(agent.id)
    [(claim, end)] = claimed
    expect((claim.agent, claim.item.text) == (agent.id, "Wake up."), "another item was claimed")
    return (end - begin) / 1e9


async def _run_claimer(
    store: SqliteStore,
    holder: HolderId,
    claimed: list[tuple[Claim, int]],
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Wait as a worker does: subscribe, read, wait, read again."""
    with store.hints.watch(None) as watch:
        expect(not await store.start(holder, store_setup.create_run), "something was left to claim")
        task_status.started()
        while not claimed:
            await watch.wait()
            started = await store.start(holder, store_setup.create_run)
            claimed += [(each.claim, time.monotonic_ns()) for each in started]


def _make_sender(store: SqliteStore) -> Send:
    async def send(agent: AgentId) -> int:
        begin = time.monotonic_ns()
        await store.accept(Message(agent, "Wake up."))
        return begin

    return send


def _make_asker(other: "subprocess.Popen[str]") -> Send:
    async def ask(agent: AgentId) -> int:
        return await anyio.to_thread.run_sync(_read_answer, other, agent)

    return ask


def _ping(other: "subprocess.Popen[str]") -> float:
    begin = time.monotonic_ns()
    _read_answer(other, "ping")
    return (time.monotonic_ns() - begin) / 1e9


def _read_answer(other: "subprocess.Popen[str]", word: str) -> int:
    assert other.stdin
    assert other.stdout
    other.stdin.write(f"{word}\n")
    other.stdin.flush()
    return int(other.stdout.readline())


def _sync_twice(descriptor: int) -> float:
    begin = time.monotonic_ns()
    for _ in range(2):
        os.write(descriptor, _PAGE)
        os.fdatasync(descriptor)
    return (time.monotonic_ns() - begin) / 1e9


@contextmanager
def _start_sender(home: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "bench.sender_process", str(home)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        _ping(other)
        yield other
        assert other.stdin
        other.stdin.close()
        expect(other.wait(_LIMIT_SECONDS) == 0, "the other process failed")
