"""Measures the cost of storing an event against a plain file and against one row per event.

The store does the whole work of the verb: identity, encoding, scrubbing, fence, offset, counters
and commit. The floors are against the leanest peer of each kind: a file that gets the encoded bytes
of a batch in one write, and a table without an index whose rows only have to be encoded. Two more
peers have no floor: a file written line by line, and a table with the same queries (by agent, by
run) and the same identity.
"""

import gc
import importlib
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from bench import corpus, store_setup
from bench.corpus import Line
from bench.measure import (
    Rounds,
    Row,
    expect,
    format_seconds,
    make_scratch,
    measure_steadily,
    run_in_turns,
    use_one_core,
)
from steadyrun.model.batch import Batch
from steadyrun.model.event import Emitted, EventId, StoredEvent
from steadyrun.stores.sqlite import SqliteStore

EVENTS = 30_000
BATCH = 500
_ROUNDS = 11
_FILE_TRIES = 2
_FILE_BUFFER = 1024 * 1024
_AGENT, _RUN = "ada", "run"

T = TypeVar("T")
# Loaded by name: type checking must not depend on the requirements of the benchmarks.
_aiosqlite: Any = importlib.import_module("aiosqlite")


def rows() -> list[Row]:
    work = corpus.build(EVENTS)
    # Objects of the benchmark itself must not slow down the garbage collection of a contender.
    gc.collect()
    gc.freeze()
    try:
        return measure_steadily(lambda: _measure(work), _build_rows, controls=["file", "aiosqlite"])
    finally:
        gc.unfreeze()


def _measure(work: corpus.Corpus) -> Rounds:
    with use_one_core():
        return _take_turns(work)


def _take_turns(work: corpus.Corpus) -> Rounds:
    return run_in_turns(
        {
            "ours": lambda: anyio.run(_measure_ours, work),
            # These rounds are short and easily disturbed: the best of a few counts.
            "file": lambda: min(_measure_file(work, _append_batches) for _ in range(_FILE_TRIES)),
            "lines": lambda: min(_measure_file(work, _append_lines) for _ in range(_FILE_TRIES)),
            "aiosqlite": lambda: anyio.run(_measure_row_each, work, False),
            "indexed": lambda: anyio.run(_measure_row_each, work, True),
        },
        rounds=_ROUNDS,
    )


def _build_rows(found: Rounds) -> list[Row]:
    best = {name: min(rounds) / EVENTS for name, rounds in found.items()}
    ours = best["ours"]

    def row(name: str, peer: str, **judged: Any) -> Row:
        ratio = best[peer] / ours if judged.get("is_more_better") else ours / best[peer]
        return Row(
            f"append: {name}", format_seconds(ours), format_seconds(best[peer]), ratio, **judged
        )

    return [
        row("CPU per event / file, a write a batch", "file", floor=8, goal=3.5),
        row("CPU per event / file, line by line", "lines"),
        row(
            "cheaper than aiosqlite, row each", "aiosqlite", floor=2, goal=3.5, is_more_better=True
        ),
        row("cheaper than that with our indexes", "indexed", is_more_better=True),
    ]


async def _measure_ours(work: corpus.Corpus) -> float:
    with make_scratch() as home:
        async with store_setup.open_store(home) as store:
            claim, run = await store_setup.begin_run(store)
            begin, offset = time.process_time(), 0
            for frames in _make_batches(work.frames):
                batch = _make_batch(frames, run, offset)
                await store.append(claim, batch)
                offset = batch.to_offset
            await store.close()
            took = time.process_time() - begin
        async with store_setup.open_store(home) as store:
            await _check_ours(store, run, work.stored)
    return took


def _make_batch(frames: Sequence[corpus.Frame], run: Any, offset: int) -> Batch:
    return Batch(corpus.PROCESS, run, offset, frames[-1].offset, _make_emitted(frames))


def _make_emitted(frames: Sequence[corpus.Frame]) -> tuple[Emitted, ...]:
    return tuple([Emitted(end, 0, at, event) for end, at, event in frames])


async def _check_ours(store: SqliteStore, run: Any, written: list[Line]) -> None:
    found: list[StoredEvent] = []
    while page := await store.events(found[-1].cursor if found else 0, run=run):
        found += page
    expect([Line(e.id, e.at, e.event) for e in found] == written, "other events came back")
    seqs = [event.seq for event in found if event.seq is not None]
    expect(len(seqs) == len(found), "an event of a run has no number")
    expect(all(after == before + 1 for before, after in pairwise(seqs)), "seq has gaps")
    expect((await store.run(run)).events == len(written), "the run counts other events")


def _measure_file(
    work: corpus.Corpus, append: Callable[[Path, Path, Sequence[bytes]], None]
) -> float:
    with make_scratch() as home:
        log, index = home / "log", home / "index"
        begin = time.process_time()
        append(log, index, work.lines)
        took = time.process_time() - begin
        expect(log.read_bytes() == b"".join(work.lines), "the file holds other bytes")
        _check_index(index.read_bytes(), work.lines)
    return took


def _append_batches(log: Path, index: Path, lines: Sequence[bytes]) -> None:
    """Write a whole batch to each file at once: the least possible work."""
    entry, offset = struct.Struct("<QQ").pack, 0
    with log.open("ab", buffering=0) as log_file, index.open("ab", buffering=0) as index_file:
        for some in _make_batches(lines):
            entries = []
            for line in some:
                entries.append(entry(offset, len(line)))
                offset += len(line)
            log_file.write(b"".join(some))
            index_file.write(b"".join(entries))


def _append_lines(log: Path, index: Path, lines: Sequence[bytes]) -> None:
    """Write line by line, with a buffer that turns a batch into one write."""
    entry, offset = struct.Struct("<QQ").pack, 0
    with log.open("ab", _FILE_BUFFER) as log_file, index.open("ab", _FILE_BUFFER) as index_file:
        for some in _make_batches(lines):
            for line in some:
                log_file.write(line)
                index_file.write(entry(offset, len(line)))
                offset += len(line)
            log_file.flush()
            index_file.flush()


def _check_index(entries: bytes, lines: Sequence[bytes]) -> None:
    sizes = [size for _, size in struct.iter_unpack("<QQ", entries)]
    expect(sizes == [len(line) for line in lines], "the index holds other entries")


async def _measure_row_each(work: corpus.Corpus, is_like_ours: bool) -> float:
    """Write a row for each event; `is_like_ours` adds the two indexes and the identities."""
    encode = msgspec.json.Encoder().encode
    with make_scratch() as home:
        async with _aiosqlite.connect(home / "rows.db") as connection:
            await _prepare_rows(connection, is_like_ours)
            begin, seq = time.process_time(), 0
            for n in range(0, EVENTS, BATCH):
                here = slice(n, n + BATCH)
                events = _make_lines(work.frames[here]) if is_like_ours else work.stored[here]
                rows = [(_AGENT, _RUN, seq + k, encode(e)) for k, e in enumerate(events, start=1)]
                await connection.executemany(_ADD_ROW, rows)
                await connection.commit()
                seq += len(rows)
            await connection.close()
            took = time.process_time() - begin
        _check_rows(home / "rows.db", _make_lines(work.frames) if is_like_ours else work.stored)
    return took


_ADD_ROW = "INSERT INTO events (agent, run, seq, body) VALUES (?, ?, ?, ?)"


async def _prepare_rows(connection: Any, is_like_ours: bool) -> None:
    await connection.execute("PRAGMA journal_mode = WAL")
    await connection.execute("PRAGMA synchronous = NORMAL")
    await connection.execute(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, agent TEXT, run TEXT, seq INTEGER, body BLOB)"
    )
    if is_like_ours:
        await connection.execute("CREATE INDEX events_by_agent ON events (agent)")
        await connection.execute("CREATE INDEX events_by_run ON events (run)")
    await connection.commit()


def _make_lines(frames: Sequence[corpus.Frame]) -> Sequence[Line]:
    process = corpus.PROCESS
    return [Line(EventId(f"{process}:{end}.0"), at, event) for end, at, event in frames]


def _check_rows(path: Path, written: Sequence[Line]) -> None:
    connection = sqlite3.connect(path)
    bodies = [body for [body] in connection.execute("SELECT body FROM events ORDER BY id")]
    connection.close()
    expect(bodies == [msgspec.json.encode(emitted) for emitted in written], "other rows came back")


def _make_batches(things: Sequence[T]) -> Iterator[Sequence[T]]:
    return (things[n : n + BATCH] for n in range(0, len(things), BATCH))
