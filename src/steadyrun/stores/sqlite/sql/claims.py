"""How does a run begin? Claim, run and all there is to know, as one step inside a transaction."""

from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Item
from steadyrun.model.process import Process
from steadyrun.model.run import Created
from steadyrun.store import Start, Started
from steadyrun.stores.sqlite.db.settings import StoreSettings
from steadyrun.stores.sqlite.sql import gates, items, rows, runs
from steadyrun.stores.sqlite.sql.items import Chosen
from steadyrun.stores.sqlite.sql.rows import PROCESS_COLUMNS, Connection

_NEWEST_PROCESS = f"""
    SELECT {PROCESS_COLUMNS} FROM processes
    WHERE agent_id = :agent AND closed_at IS NULL
    ORDER BY process_id DESC
    LIMIT 1
"""  # noqa: S608


def start(
    connection: Connection,
    start: Start,
    limit: int,
    agent: AgentId | None,
    now: datetime,
    terms: StoreSettings,
) -> list[Started]:
    """Several at once, unless some gate takes one and no more: then each is let through by itself,
    and the next one finds the gate as that has left it."""
    at_once = 1 if gates.awaiting_probe(connection, now, terms) else limit
    started: list[Started] = []
    while len(started) < limit:
        shut = gates.shut(connection, now, terms, start.but_not)
        chosen = items.claim(connection, start.holder, at_once, agent, now, shut)
        started += [_start(connection, each, start.opened, terms) for each in chosen]
        if len(chosen) < at_once or at_once == limit:
            break
    return started


def _start(
    connection: Connection,
    chosen: Chosen,
    opened: Callable[[Agent, Item], Created],
    terms: StoreSettings,
) -> Started:
    claim = chosen.claim
    agent = rows.agent(connection, claim.agent).with_provider(chosen.provider)
    run = runs.create(connection, claim, opened(agent, claim.item), terms)
    return Started(
        replace(claim, item=replace(claim.item, run=run.id)),
        run,
        agent,
        rows.maybe_session(connection, agent.id, run.provider),
        _process(connection, agent.id),
        rows.run(connection, claim.item.before) if claim.item.before else None,
        gates.is_probe(connection, run),
    )


def _process(connection: Connection, agent: AgentId) -> Process | None:
    row = rows.one(connection, _NEWEST_PROCESS, {"agent": agent})
    return None if row is None else rows.process_from(row)
