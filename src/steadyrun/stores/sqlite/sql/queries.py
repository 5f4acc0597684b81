"""The queries of the reading verbs. Pages are read by key: no OFFSET, no count(*).

A function here has the parameters of its verb, after the connection: `make_read` makes it the verb.
"""

import sqlite3
from collections.abc import Collection
from datetime import UTC, datetime, tzinfo

import msgspec

from steadyrun.model.agent import Agent
from steadyrun.model.event import StoredEvent
from steadyrun.model.event_codec import EventRow, decode_row
from steadyrun.model.ids import AgentId, HolderId, ItemId, ProcessId, RunId
from steadyrun.model.item import Item
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.model.session import Session
from steadyrun.model.usage import UsageSum
from steadyrun.store import PAGE, Grouping, PendingRequests
from steadyrun.stores import rules
from steadyrun.stores.sqlite.sql import approvals, rows
from steadyrun.stores.sqlite.sql.rows import (
    ITEM_COLUMNS,
    PROCESS_COLUMNS,
    Connection,
    from_micros,
    to_maybe_micros,
)

# A page of events ends early if they are so large: the daemon reads pages for every follower.
PAGE_BYTES = 8 * 1024 * 1024
_AGENT = """
    SELECT body FROM agents
    WHERE (name = :name AND removed_at IS NULL) OR agent_id = :name
"""
_AGENTS = """
    SELECT body FROM agents
    WHERE is_direct = 0 AND removed_at IS NULL
    ORDER BY name
"""


def agent(connection: Connection, name: str) -> Agent:
    found = rows.fetch_one(connection, _AGENT, {"name": name}, rows.decode_agent)
    return rules.require_found(found, "agent", name)


def agents(connection: Connection) -> list[Agent]:
    return [rows.decode_agent(row) for row in connection.execute(_AGENTS)]


_REQUESTS = """
    SELECT lanes.agent_id,
           EXISTS (
               SELECT 1 FROM items
               WHERE items.agent_id = lanes.agent_id
                 AND items.status = 'queued'
                 AND items.followup = 'steer'
                 AND items.delivery = 'none'
           ),
           (
               SELECT json_group_array(items.item_id) FROM items
               WHERE items.agent_id = lanes.agent_id
                 AND items.status = 'running'
                 AND items.cancel_requested
           )
    FROM lanes
    WHERE lanes.holder_id = :holder AND lanes.status = 'held'
    ORDER BY lanes.agent_id
"""
_item_ids = msgspec.json.Decoder(tuple[ItemId, ...])


def pending_requests(connection: Connection, holder: HolderId) -> list[PendingRequests]:
    answers = approvals.list_answers(connection, holder)
    found = connection.execute(_REQUESTS, {"holder": holder})
    return [
        PendingRequests(
            agent,
            _item_ids.decode(cancelled),
            bool(has_steerable),
            answers.get(agent, ()),
        )
        for agent, has_steerable, cancelled in found
        if has_steerable or cancelled != "[]" or agent in answers
    ]


def sessions(
    connection: Connection,
    agent: AgentId | None = None,
    *,
    provider: str | None = None,
    token: str | None = None,
) -> dict[str, Session]:
    conditions = ["agent_id = :agent"] if agent is not None else []
    conditions += ["provider = :provider"] if provider is not None else []
    conditions += ["token = :token"] if token is not None else []
    # Ids of agents are in the order of time: the newest agent comes last and is kept.
    sql = _build_page("provider, body", "sessions", conditions, "agent_id")
    values = {"agent": agent, "provider": provider, "token": token, "limit": -1}
    found = connection.execute(sql, values)
    return {name: rows.decode_session((body,)) for name, body in found}


def items(
    connection: Connection,
    agent: AgentId | None = None,
    *,
    include_settled: bool = False,
    before: ItemId | None = None,
    limit: int = PAGE,
) -> list[Item]:
    conditions = ["status IN ('queued', 'running')"] if not include_settled else []
    conditions += ["agent_id = :agent"] if agent is not None else []
    conditions += ["item_id < :before"] if before is not None else []
    sql = _build_page(ITEM_COLUMNS, "items", conditions, "item_id DESC")
    found = connection.execute(sql, {"agent": agent, "before": before, "limit": limit})
    return [rows.decode_item(row) for row in found]


def runs(
    connection: Connection,
    agent: AgentId | None = None,
    *,
    before: RunId | None = None,
    limit: int = 50,
) -> list[Run]:
    conditions = ["agent_id = :agent"] if agent is not None else []
    conditions += ["run_id < :before"] if before is not None else []
    sql = _build_page("body", "runs", conditions, "run_id DESC")
    found = connection.execute(sql, {"agent": agent, "before": before, "limit": limit})
    return [rows.decode_run(connection, row) for row in found.fetchall()]


def processes(connection: Connection, ids: Collection[ProcessId] | None = None) -> list[Process]:
    conditions = [
        "closed_at IS NULL" if ids is None else "process_id IN (SELECT value FROM json_each(:ids))"
    ]
    sql = _build_page(PROCESS_COLUMNS, "processes", conditions, "process_id")
    found = connection.execute(sql, {"ids": rows.to_json_list(ids or ()), "limit": -1})
    return [rows.decode_process(row) for row in found]


def events(
    connection: Connection,
    after: int = 0,
    *,
    agent: AgentId | None = None,
    run: RunId | None = None,
    limit: int = PAGE,
    newest: bool = False,
) -> list[StoredEvent]:
    conditions = ["event_batches.agent_id = :agent"] if agent is not None else []
    conditions += ["event_batches.run_id = :run"] if run is not None else []
    where = " AND ".join(conditions) or "true"
    values: dict[str, object] = {"agent": agent, "run": run, "after": after}
    # The batch that has the cursor may begin before it.
    first = f"SELECT max(id) FROM event_batches WHERE {where} AND id <= :after"  # noqa: S608
    start = connection.execute(first, values).fetchone()[0] if after else 0
    sql = f"{_BATCHES} WHERE {where} AND event_batches.id >= :start ORDER BY event_batches.id"
    pages: list[list[StoredEvent]] = []
    count = size = 0
    for found_row in connection.execute(
        f"{sql} DESC" if newest else sql, {**values, "start": start or 0}
    ):
        row = EventRow(*found_row)
        pages.append([event for event in decode_row(row) if event.cursor > after])
        count += len(pages[-1])
        size += len(row.body)
        if count >= limit or (count and size > PAGE_BYTES and not newest):
            break
    found = [event for page in (reversed(pages) if newest else pages) for event in page]
    return found[max(0, count - limit) :] if newest else found[:limit]


_BATCHES = """
    SELECT event_batches.id, event_batches.first_seq, agents.name, event_batches.run_id,
           event_batches.process_id, runs.provider, event_batches.body
    FROM event_batches
    LEFT JOIN agents USING (agent_id)
    LEFT JOIN runs USING (run_id)
"""


USAGE_COLUMNS = """
    count(*),
    coalesce(sum(input_tokens), 0),
    coalesce(sum(output_tokens), 0),
    coalesce(sum(cache_read_tokens), 0),
    coalesce(sum(cache_write_tokens), 0),
    total(cost_usd) FILTER (WHERE cost_kind = 'known'),
    total(cost_usd) FILTER (WHERE cost_kind = 'estimated'),
    count(*) FILTER (WHERE cost_kind = 'unknown'),
    coalesce(sum(
        coalesce(input_tokens, 0) + coalesce(output_tokens, 0)
        + coalesce(cache_read_tokens, 0) + coalesce(cache_write_tokens, 0)
    ) FILTER (WHERE cost_kind = 'unknown'), 0)
"""
# A direct agent is made for a single run and has no name of its own.
_GROUPS: dict[Grouping, str] = {
    "agent": "CASE WHEN agents.is_direct THEN '' ELSE agents.name END",
    "provider": "runs.provider",
    "model": "coalesce(json_extract(CAST(runs.body AS TEXT), '$.model'), '')",
    "day": "local_date(runs.created_at)",
}


def usage(
    connection: sqlite3.Connection,
    by: Grouping,
    *,
    agent: AgentId | None = None,
    since: datetime | None = None,
    zone: tzinfo = UTC,
) -> dict[str, UsageSum]:
    def to_local_date(at: int) -> str:
        return from_micros(at).astimezone(zone).date().isoformat()

    # SQLite has no time zones. The function replaces the one of an earlier call.
    connection.create_function("local_date", 1, to_local_date)
    sql = f"""
        SELECT {_GROUPS[by]}, {USAGE_COLUMNS} FROM runs
        JOIN agents USING (agent_id)
        WHERE (:agent IS NULL OR agent_id = :agent)
          AND runs.created_at >= coalesce(:since, runs.created_at)
        GROUP BY 1
    """  # noqa: S608
    found = connection.execute(sql, {"agent": agent, "since": to_maybe_micros(since)})
    return {key: UsageSum(*row) for key, *row in found}


def _build_page(columns: str, table: str, conditions: list[str], order: str) -> str:
    where = " AND ".join(conditions) or "true"
    return f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {order} LIMIT :limit"  # noqa: S608
