"""Measures how many items a second pass through their lanes, with 32 workers in one process.

Each item is started with a run and is settled: two durable verbs. The peer runs the same
statements inline on one connection, one synced transaction per verb, without any waiting.
"""

import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import anyio

from bench import store_setup
from bench.corpus import SECRETS
from bench.measure import Rounds, Row, expect, make_scratch, measure_steadily, run_in_turns
from steadyrun.model.gate import GateRules
from steadyrun.model.ids import HolderId, ItemId
from steadyrun.model.item import Claim, Message
from steadyrun.model.run import Finished
from steadyrun.model.secret import Scrubber
from steadyrun.stores.sqlite import DATABASE, SqliteStore
from steadyrun.stores.sqlite.db import schema
from steadyrun.stores.sqlite.db.transaction import StoreSettings, Transaction
from steadyrun.stores.sqlite.sql import claims
from steadyrun.stores.sqlite.sql.runs import LastWrites

ITEMS = 2000
AGENTS = 200
CLAIMERS = 32

T = TypeVar("T")
_SETTINGS = StoreSettings(Scrubber(SECRETS), GateRules(), {})


def rows() -> list[Row]:
    return measure_steadily(_measure, _build_rows, controls=["inline"])


def _measure() -> Rounds:
    return run_in_turns(
        {"ours": lambda: anyio.run(_measure_ours), "inline": lambda: anyio.run(_measure_inline)}
    )


def _build_rows(found: Rounds) -> list[Row]:
    ours, inline = (ITEMS / min(found[name]) for name in ("ours", "inline"))
    return [
        Row(
            f"claims: {CLAIMERS} claimers / inline, items a second",
            f"{ours:.0f} /s",
            f"{inline:.0f} /s",
            ours / inline,
            floor=0.25,
            is_more_better=True,
        )
    ]


async def _measure_ours() -> float:
    with make_scratch() as home:
        async with store_setup.open_store(home) as store:
            holder = await _prepare(store)
            begin = time.perf_counter()
            settled = await _settle_all(store, holder)
            took = time.perf_counter() - begin
        await _check(home, settled)
    return took


async def _settle_all(store: SqliteStore, holder: HolderId) -> list[ItemId]:
    settled: list[ItemId] = []

    async def work() -> None:
        while started := await store.start(holder, store_setup.create_run):
            for each in started:
                await store.settle(each.claim, _make_finished(each.claim))
                settled.append(each.claim.item.id)

    async with anyio.create_task_group() as group:
        for _ in range(CLAIMERS):
            group.start_soon(work)
    return settled


async def _measure_inline() -> float:
    with make_scratch() as home:
        async with store_setup.open_store(home) as store:
            holder = await _prepare(store)
        connection = schema.connect(home / DATABASE)
        connection.execute("PRAGMA synchronous = FULL")
        begin = time.perf_counter()
        settled = _settle_inline(connection, holder)
        took = time.perf_counter() - begin
        connection.close()
        await _check(home, settled)
    return took


def _settle_inline(connection: sqlite3.Connection, holder: HolderId) -> list[ItemId]:
    settled = []
    while started := _transact(
        connection, lambda tx: claims.start(tx, holder, store_setup.create_run)
    ):
        for each in started:
            _settle_one_inline(connection, each.claim)
            settled.append(each.claim.item.id)
    return settled


def _settle_one_inline(connection: sqlite3.Connection, claim: Claim) -> None:
    last = LastWrites(_make_finished(claim), None)
    _transact(connection, lambda tx: claims.settle(tx, claim, last, keep_warm=False))


def _transact(connection: sqlite3.Connection, work: Callable[[Transaction], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    result = work(Transaction(connection, _read_now(), _SETTINGS))
    connection.execute("COMMIT")
    return result


async def _prepare(store: SqliteStore) -> HolderId:
    agents = await store_setup.add_agents(store, AGENTS)
    messages = [Message(agents[n % AGENTS].id, f"Task {n}.") for n in range(ITEMS)]
    await store_setup.accept_all(store, messages)
    return (await store.join("bench")).id


async def _check(home: Path, settled: list[ItemId]) -> None:
    async with store_setup.open_store(home) as store:
        items = await store.items(include_settled=True, limit=ITEMS + 1)
        done = await store.runs(limit=ITEMS + 1)
    expect(sorted(settled) == sorted(item.id for item in items), "items were lost or done twice")
    expect(
        all(i.status == "completed" and i.reply == _make_reply(i.text) for i in items), "an item"
    )
    expect({run.item for run in done} == set(settled), "runs and items differ")
    expect(all(run.status == "completed" for run in done), "a run did not complete")
    _check_order(settled, {item.id: (item.agent, item.seq) for item in items})


def _check_order(settled: list[ItemId], places: dict[ItemId, tuple[str, int]]) -> None:
    by_agent: dict[str, list[int]] = {}
    for item in settled:
        agent, seq = places[item]
        by_agent.setdefault(agent, []).append(seq)
    expect(all(seqs == sorted(seqs) for seqs in by_agent.values()), "a lane was run out of order")


def _make_finished(claim: Claim) -> Finished:
    return Finished(_read_now(), "completed", text=_make_reply(claim.item.text))


def _make_reply(text: str) -> str:
    return f"Done: {text}"


def _read_now() -> datetime:
    return datetime.now(UTC)
