"""How does a run begin? Claim, run and all there is to know, as one step inside a transaction."""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Claim, Item
from steadyrun.model.process import Process
from steadyrun.model.run import Created
from steadyrun.model.secret import Scrubber
from steadyrun.store import Started
from steadyrun.stores.sqlite import rows, runs
from steadyrun.stores.sqlite.rows import PROCESS_COLUMNS, Connection

_NEWEST_PROCESS = f"""
    SELECT {PROCESS_COLUMNS} FROM processes
    WHERE agent_id = :agent AND closed_at IS NULL
    ORDER BY process_id DESC
    LIMIT 1
"""  # noqa: S608


def start(
    connection: Connection,
    claims: Iterable[Claim],
    opened: Callable[[Agent, Item], Created],
    scrubber: Scrubber,
) -> list[Started]:
    return [_start(connection, claim, opened, scrubber) for claim in claims]


def _start(
    connection: Connection,
    claim: Claim,
    opened: Callable[[Agent, Item], Created],
    scrubber: Scrubber,
) -> Started:
    agent = rows.agent(connection, claim.agent)
    run = runs.create(connection, claim, opened(agent, claim.item), scrubber)
    return Started(
        replace(claim, item=replace(claim.item, run=run.id)),
        run,
        agent,
        rows.maybe_session(connection, agent.id, run.provider),
        _process(connection, agent.id),
        rows.run(connection, claim.item.before) if claim.item.before else None,
    )


def _process(connection: Connection, agent: AgentId) -> Process | None:
    row = rows.one(connection, _NEWEST_PROCESS, {"agent": agent})
    return None if row is None else rows.process_from(row)
