"""What does it cost to store an event, beside writing its bytes to a file and a row for each?

Ours does the whole work of the verb: identity, encoding, scrubbing, fence, offset, counters,
commit. The file gets bytes that are encoded already (the physical limit). The peer makes the same
events with the same identity and encodes them, and has what it takes to read a run in order.
"""

import gc
import importlib
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from bench import corpus, setting
from bench.measure import Rounds, Row, believed, expect, in_turns, one_core, scratch, seconds
from steadyrun.model.event import Emitted, StoredEvent, journal_id
from steadyrun.store import Batch
from steadyrun.stores.sqlite import SqliteStore

EVENTS = 30_000
BATCH = 500
_ROUNDS = 11
_FILE_TRIES = 2
_FILE_BUFFER = 1024 * 1024

T = TypeVar("T")
# Loaded by name: type checking must not depend on the requirements of the benchmarks.
_aiosqlite: Any = importlib.import_module("aiosqlite")


def rows() -> list[Row]:
    work = corpus.build(EVENTS)
    # What the benchmark itself holds shall not slow down anybody's garbage collection.
    gc.collect()
    gc.freeze()
    try:
        return believed(lambda: _measure(work), _rows, controls=["file", "aiosqlite"])
    finally:
        gc.unfreeze()


def _measure(work: corpus.Corpus) -> Rounds:
    with one_core():
        return _in_turns(work)


def _in_turns(work: corpus.Corpus) -> Rounds:
    return in_turns(
        {
            "ours": lambda: anyio.run(_ours, work),
            # It is short, and so easily disturbed: the best of a few.
            "file": lambda: min(_file(work) for _ in range(_FILE_TRIES)),
            "aiosqlite": lambda: anyio.run(_a_row_each, work),
        },
        rounds=_ROUNDS,
    )


def _rows(found: Rounds) -> list[Row]:
    ours, file, peer = (min(found[name]) / EVENTS for name in ("ours", "file", "aiosqlite"))
    return [
        Row(
            "append: CPU per event / file append",
            seconds(ours),
            seconds(file),
            ours / file,
            floor=8,
            goal=3.5,
        ),
        Row(
            "append: cheaper than aiosqlite, row each",
            seconds(ours),
            seconds(peer),
            peer / ours,
            floor=2,
            goal=3.5,
            is_more_better=True,
        ),
    ]


async def _ours(work: corpus.Corpus) -> float:
    with scratch() as home:
        async with setting.opened(home) as store:
            claim, run = await setting.begin_run(store)
            begin, offset = time.process_time(), 0
            for frames in _batches(work.frames):
                batch = _batch(frames, run, offset)
                await store.append(claim, batch)
                offset = batch.to_offset
            await store.close()
            took = time.process_time() - begin
        async with setting.opened(home) as store:
            await _check_ours(store, run, work.stored)
    return took


def _batch(frames: Sequence[corpus.Frame], run: Any, offset: int) -> Batch:
    return Batch(corpus.PROCESS, run, offset, frames[-1].offset, _emitted(frames))


def _emitted(frames: Sequence[corpus.Frame]) -> tuple[Emitted, ...]:
    process = corpus.PROCESS
    return tuple([Emitted(journal_id(process, end, 0), at, event) for end, at, event in frames])


async def _check_ours(store: SqliteStore, run: Any, written: list[Emitted]) -> None:
    found: list[StoredEvent] = []
    while page := await store.events(found[-1].cursor if found else 0, run=run):
        found += page
    expect([Emitted(e.id, e.at, e.event) for e in found] == written, "other events came back")
    expect(all(b.seq == a.seq + 1 for a, b in pairwise(found)), "seq has gaps")
    expect((await store.run(run)).events == len(written), "the run counts other events")


def _file(work: corpus.Corpus) -> float:
    with scratch() as home:
        log, index = home / "log", home / "index"
        begin = time.process_time()
        _append_lines(log, index, work.lines)
        took = time.process_time() - begin
        expect(log.read_bytes() == b"".join(work.lines), "the file holds other bytes")
        _check_index(index.read_bytes(), work.lines)
    return took


def _append_lines(log: Path, index: Path, lines: Sequence[bytes]) -> None:
    """Line by line, as such files are written, with a buffer that lets a batch go as one write."""
    entry, offset = struct.Struct("<QQ").pack, 0
    with log.open("ab", _FILE_BUFFER) as log_file, index.open("ab", _FILE_BUFFER) as index_file:
        for some in _batches(lines):
            for line in some:
                log_file.write(line)
                index_file.write(entry(offset, len(line)))
                offset += len(line)
            log_file.flush()
            index_file.flush()


def _check_index(entries: bytes, lines: Sequence[bytes]) -> None:
    sizes = [size for _, size in struct.iter_unpack("<QQ", entries)]
    expect(sizes == [len(line) for line in lines], "the index holds other entries")


async def _a_row_each(work: corpus.Corpus) -> float:
    """The same events with the same identity; an index so that a run can be read in order."""
    encode = msgspec.json.Encoder().encode
    with scratch() as home:
        async with _aiosqlite.connect(home / "rows.db") as connection:
            await _prepare_rows(connection)
            begin, seq = time.process_time(), 0
            for frames in _batches(work.frames):
                events = _emitted(frames)
                rows = [("run", seq + n, encode(event)) for n, event in enumerate(events, start=1)]
                await connection.executemany(_ADD_ROW, rows)
                await connection.commit()
                seq += len(rows)
            await connection.close()
            took = time.process_time() - begin
        _check_rows(home / "rows.db", work)
    return took


_ADD_ROW = "INSERT INTO events (run, seq, body) VALUES (?, ?, ?)"


async def _prepare_rows(connection: Any) -> None:
    await connection.execute("PRAGMA journal_mode = WAL")
    await connection.execute("PRAGMA synchronous = NORMAL")
    await connection.execute(
        "CREATE TABLE events "
        "(id INTEGER PRIMARY KEY, run TEXT, seq INTEGER, body BLOB, UNIQUE (run, seq))"
    )
    await connection.commit()


def _check_rows(path: Path, work: corpus.Corpus) -> None:
    connection = sqlite3.connect(path)
    bodies = [body for [body] in connection.execute("SELECT body FROM events ORDER BY id")]
    connection.close()
    written = [msgspec.json.encode(emitted) for emitted in _emitted(work.frames)]
    expect(bodies == written, "other rows came back")


def _batches(things: Sequence[T]) -> Iterator[Sequence[T]]:
    return (things[n : n + BATCH] for n in range(0, len(things), BATCH))
