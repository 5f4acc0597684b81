"""Prunes old events and texts. What is old is selected by a reader and deleted by a short write.

A run that may be pruned stays so: a run that has ended, with a settled item and without a question,
never changes again. What was selected can therefore be deleted in a later transaction.
"""

import sqlite3
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from steadyrun.model.event_codec import decode_events
from steadyrun.model.ids import AgentId
from steadyrun.model.retention import PruneCounts, PrunePosition, RetentionLimits
from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import rows
from steadyrun.stores.sqlite.sql.rows import Connection, to_micros

# Free pages that are kept for new events; 16 MB.
RESERVED_PAGES = 1024
_INCREMENTAL = 2


class PrunedEvents(NamedTuple):
    """The number and the cursor of an agent's last pruned event."""

    seq: int
    cursor: int


class PruneSelection(NamedTuple):
    """What one step deletes, and where the next one begins."""

    counts: PruneCounts
    next: PrunePosition | None
    # The rows of the stage.
    ids: tuple[int | str, ...] = ()
    # Only for events: the runs and the agents that they belong to.
    runs: tuple[str, ...] = ()
    ends: Mapping[str, PrunedEvents] = {}


def select_old(
    connection: sqlite3.Connection, limits: RetentionLimits, at: PrunePosition, limit: int
) -> PruneSelection:
    """Select up to `limit` rows of the stage; the last selection of a stage leads to the next."""
    if at.stage == "events":
        return _select_events(connection, limits, at, limit)
    return _select_texts(connection, limits, at, limit)


def delete_selected(tx: Transaction, at: PrunePosition, selection: PruneSelection) -> None:
    ids = {"ids": rows.encode(selection.ids).decode()}
    if at.stage == "events":
        tx.execute(_DELETE_EVENTS, ids)
        for agent, end in selection.ends.items():
            tx.execute(_MARK_AGENT, {"agent": agent, "seq": end.seq, "cursor": end.cursor})
        tx.execute(_MARK_RUNS, {"ids": rows.to_json_list(selection.runs)})
    else:
        tx.execute(_CLEAR_RUNS if at.stage == "runs" else _CLEAR_ITEMS, ids)


def pruned_to(connection: Connection, agent: AgentId | None = None) -> int:
    [cursor] = connection.execute(_PRUNED_TO, {"agent": agent}).fetchone()
    return int(cursor)


_PRUNED_TO = """
    SELECT coalesce(max(cursor), 0) FROM pruned_events
    WHERE :agent IS NULL OR agent_id = :agent
"""


def release_pages(tx: Transaction, count: int) -> int:
    """Cut up to `count` free pages off the end of the file; how many bytes can still be cut off."""
    if _read_pragma(tx, "auto_vacuum") != _INCREMENTAL:
        return 0
    spare = _read_pragma(tx, "freelist_count") - RESERVED_PAGES
    for _ in range(min(count, spare)):
        # The module of Python runs one step of this statement, whatever number it has.
        tx.execute("PRAGMA incremental_vacuum(1)")
    return max(0, spare - count) * _read_pragma(tx, "page_size")


def _read_pragma(connection: Connection, name: str) -> int:
    [value] = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


# -- events

_LAST = "SELECT id, body FROM event_batches WHERE id <= :cursor ORDER BY id DESC LIMIT 1"
_BOUNDS = "SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM event_batches"
_BATCHES = """
    SELECT id, coalesce(agent_id, ''), run_id, last_seq, last_seq - first_seq + 1, length(body)
    FROM event_batches
    WHERE id > :after AND id < :until
    ORDER BY id
    LIMIT :limit
"""
_BATCHES_OF_AGENT = _BATCHES.replace("WHERE", "WHERE agent_id = :agent AND")
# The runs of items that are not settled: the next run may need them.
_IN_USE = """
    SELECT run_id FROM items WHERE status IN ('queued', 'running') AND run_id IS NOT NULL
    UNION ALL
    SELECT before_run FROM items WHERE status IN ('queued', 'running') AND before_run IS NOT NULL
"""
_HAS_ENDED = "status IN ('completed', 'failed', 'cancelled', 'timed_out', 'rate_limited')"
_IS_ASKED = """
    EXISTS (
        SELECT 1 FROM approvals
        WHERE approvals.run_id = runs.run_id AND approvals.status IN ('open', 'answered')
    )
"""
_RUNS_OF_BATCHES = f"""
    SELECT run_id,
           (SELECT max(id) FROM event_batches WHERE event_batches.run_id = runs.run_id),
           NOT {_HAS_ENDED}
           OR created_at >= :before
           OR run_id IN ({_IN_USE})
           OR {_IS_ASKED}
           OR EXISTS (
               SELECT 1 FROM event_batches
               WHERE event_batches.run_id = runs.run_id AND event_batches.id >= :until
           )
    FROM runs
    WHERE run_id IN (SELECT value FROM json_each(:runs))
"""  # noqa: S608
_DELETE_EVENTS = "DELETE FROM event_batches WHERE id IN (SELECT value FROM json_each(:ids))"
_MARK_AGENT = """
    INSERT INTO pruned_events VALUES (:agent, :seq, :cursor)
    ON CONFLICT DO UPDATE SET
        last_seq = max(last_seq, excluded.last_seq),
        cursor = max(cursor, excluded.cursor)
"""
_MARK_RUNS = """
    UPDATE runs
    SET body = CAST(json_set(CAST(body AS TEXT), '$.events_pruned', json('true')) AS BLOB)
    WHERE run_id IN (SELECT value FROM json_each(:ids))
      AND NOT coalesce(json_extract(CAST(body AS TEXT), '$.events_pruned'), 0)
"""


def _select_events(
    connection: sqlite3.Connection, limits: RetentionLimits, at: PrunePosition, limit: int
) -> PruneSelection:
    if limits.events_before is None:
        return PruneSelection(PruneCounts(), _begin_texts(limits))
    until = at.until or _find_limit(connection, limits.events_before)
    values = {"after": at.after, "until": until, "agent": limits.agent, "limit": limit}
    sql = _BATCHES if limits.agent is None else _BATCHES_OF_AGENT
    page = connection.execute(sql, values).fetchall()
    named = rows.to_json_list({row[2] for row in page if row[2]})
    values = {"runs": named, "until": until, "before": to_micros(limits.events_before)}
    runs = connection.execute(_RUNS_OF_BATCHES, values).fetchall()
    kept_runs = {run for run, _, is_kept in runs if is_kept}
    kept = set(at.kept)
    chosen = []
    for row in page:
        if row[2] in kept_runs:
            kept.add(row[1])
        if row[1] not in kept:
            chosen.append(row)
    following = (
        PrunePosition("events", page[-1][0], until, frozenset(kept))
        if len(page) == limit
        else _begin_texts(limits)
    )
    return _build_selection(chosen, {last for _, last, _ in runs}, following)


def _build_selection(
    chosen: list[tuple[Any, ...]], lasts: set[int], following: PrunePosition | None
) -> PruneSelection:
    ids = tuple(row[0] for row in chosen)
    # A run is counted with its last row.
    ended = len(lasts.intersection(ids))
    counts = PruneCounts(sum(row[4] for row in chosen), sum(row[5] for row in chosen), ended)
    ends = {row[1]: PrunedEvents(row[3], row[0] + row[4] - 1) for row in chosen}
    runs = tuple({row[2] for row in chosen if row[2]})
    return PruneSelection(counts, following, ids, runs, ends)


def _find_limit(connection: sqlite3.Connection, before: datetime) -> int:
    """The first row that has an event of that time or later; else the last row, which is always
    kept, because its cursors would be used again."""
    low, high = connection.execute(_BOUNDS).fetchone()
    while low < high:
        middle = (low + high) // 2
        found, body = connection.execute(_LAST, {"cursor": middle}).fetchone()
        if found < low or decode_events(body)[-1].at < before:
            low = middle + 1
        else:
            high = found
    return int(high)


# -- texts


def _begin_texts(limits: RetentionLimits) -> PrunePosition | None:
    return PrunePosition("runs", "") if limits.texts_before else None


_TEXT = "json_extract(CAST(body AS TEXT), '$.text')"
_OLD_RUNS = f"""
    SELECT run_id, length(CAST({_TEXT} AS BLOB)), json_extract(CAST(body AS TEXT), '$.ended_at')
    FROM runs
    WHERE run_id > :after
      AND (:agent IS NULL OR agent_id = :agent)
      AND created_at < :before
      AND {_HAS_ENDED}
      AND {_TEXT} IS NOT NULL
      AND run_id NOT IN ({_IN_USE})
      AND NOT {_IS_ASKED}
    ORDER BY run_id
    LIMIT :limit
"""  # noqa: S608
_OLD_ITEMS = """
    SELECT item_id, length(CAST(text AS BLOB)) + coalesce(length(CAST(reply AS BLOB)), 0), NULL
    FROM items
    WHERE item_id > :after
      AND (:agent IS NULL OR agent_id = :agent)
      AND settled_at < :before
      AND status IN ('completed', 'failed', 'cancelled')
      AND (text <> '' OR reply IS NOT NULL)
    ORDER BY item_id
    LIMIT :limit
"""
_CLEAR_RUNS = """
    UPDATE runs
    SET body = CAST(
        json_set(CAST(body AS TEXT), '$.text', NULL, '$.text_pruned', json('true')) AS BLOB
    )
    WHERE run_id IN (SELECT value FROM json_each(:ids))
"""
_CLEAR_ITEMS = """
    UPDATE items
    SET text = '',
        reply = NULL,
        payload = CAST(
            json_set(CAST(coalesce(payload, '{}') AS TEXT), '$.text_pruned', json('true')) AS BLOB
        )
    WHERE item_id IN (SELECT value FROM json_each(:ids))
"""


def _select_texts(
    connection: sqlite3.Connection, limits: RetentionLimits, at: PrunePosition, limit: int
) -> PruneSelection:
    assert limits.texts_before
    values = {
        "after": at.after,
        "agent": limits.agent,
        "before": to_micros(limits.texts_before),
        "limit": limit,
    }
    page = connection.execute(_OLD_RUNS if at.stage == "runs" else _OLD_ITEMS, values).fetchall()
    old = [
        (name, size)
        for name, size, ended_at in page
        if ended_at is None or datetime.fromisoformat(ended_at) < limits.texts_before
    ]
    counts = PruneCounts(texts=len(old), text_bytes=sum(size for _, size in old))
    following = PrunePosition("items", "") if at.stage == "runs" else None
    if len(page) == limit:
        following = PrunePosition(at.stage, page[-1][0])
    return PruneSelection(counts, following, tuple(name for name, _ in old))
