"""The store contract over one SQLite file.

The functions of `sql` are the verbs: a query becomes one by `make_read`, a step of a transaction by
`make_write`. A method is written here only where a verb needs more than the database.
"""

import platform
from collections.abc import Callable

from steadyrun.model.agent import Agent
from steadyrun.model.batch import AppendResult, Batch
from steadyrun.model.gate import Gate
from steadyrun.model.ids import HolderId, ItemId
from steadyrun.model.item import Claim, Item, Lease, Message
from steadyrun.model.run import Created, RunChange
from steadyrun.store import AbandonedLane, Accepted, Holder, Start, Started
from steadyrun.stores.sqlite.base import SqliteBase, make_read, make_write
from steadyrun.stores.sqlite.db.errors import translate_errors
from steadyrun.stores.sqlite.maintenance import SqliteMaintenance
from steadyrun.stores.sqlite.sql import (
    agents,
    answers,
    approvals,
    claims,
    gates,
    holders,
    items,
    kv,
    offers,
    queries,
    rows,
    runs,
)
from steadyrun.stores.sqlite.sql.rows import Connection
from steadyrun.stores.sqlite.sql.runs import EncodedBatch, LastWrites
from steadyrun.stores.sqlite.views import inspection, overview, snapshot
from steadyrun.version import __version__


class SqliteReads(SqliteBase):
    """The verbs that only read."""

    agent = make_read(queries.agent)
    agents = make_read(queries.agents)
    sessions = make_read(queries.sessions)
    lane = make_read(rows.lane)
    item = make_read(rows.item)
    items = make_read(queries.items)
    run = make_read(rows.run)
    runs = make_read(queries.runs)
    processes = make_read(queries.processes)
    pending_requests = make_read(queries.pending_requests)
    events = make_read(queries.events)
    approval = make_read(approvals.find_approval)
    approvals = make_read(approvals.list_approvals)
    agent_overviews = make_read(overview.agent_overviews)
    lane_snapshots = make_read(snapshot.lane_snapshots)
    usage = make_read(queries.usage)
    get = make_read(kv.get)

    async def holders(self) -> list[Holder]:
        return await self.read(lambda c: holders.list_holders(c, self._liveness))

    async def gates(self, *, include_others: bool = False) -> list[Gate]:
        accounts = None if include_others else self.accounts
        return await self.read(lambda c: gates.list_gates(c, accounts))

    async def check(self, *, is_deep: bool = False) -> list[str]:
        """The problems that SQLite finds in its file; an empty list if there are none. A deep check
        also decodes every row."""
        return await self.read(_check_deeply if is_deep else _check_quickly)


class SqliteStore(SqliteReads, SqliteMaintenance):
    """The store of one process over the SQLite file in its home directory."""

    add_agent = make_write(agents.add_agent)
    set_agent = make_write(agents.set_agent)
    remove_agent = make_write(agents.remove_agent)
    retire_token = make_write(runs.retire_token)
    set_paused = make_write(approvals.set_paused)
    cancel = make_write(items.cancel)
    start = make_write(claims.start)
    release_lane = make_write(claims.release_lane)
    change = make_write(runs.change)
    open_process = make_write(runs.open_process)
    close_process = make_write(runs.close_process)
    offer_followups = make_write(offers.offer_followups)
    close_offer = make_write(offers.close_offer)
    retry = make_write(claims.retry)
    answer = make_write(answers.answer)
    update_gate = make_write(gates.update_gate)
    put = make_write(kv.put)

    async def accept(self, message: Message, start: Start | None = None) -> Accepted:
        new = self._ids.make_item()
        return await self.write(lambda tx: claims.accept(tx, new, message, start))

    async def join(self, kind: str) -> Holder:
        now = self._clock.now()
        holder = Holder(self._ids.make_holder(), kind, platform.node(), __version__, now)
        with translate_errors(self._path):
            self._liveness.acquire(holder.id)
        await self.write(lambda tx: holders.add(tx, holder))
        return holder

    async def leave(self, holder: HolderId) -> None:
        await self.write(lambda tx: holders.remove(tx, holder))
        self._liveness.release(holder)

    async def reap(self, holder: HolderId, *, lasting: bool = True) -> list[AbandonedLane]:
        return await self.write(
            lambda tx: holders.reap(tx, holder, self._liveness, lasting=lasting)
        )

    async def start_direct(
        self,
        holder: HolderId,
        agent: Agent,
        message: Message,
        create_run: Callable[[Agent, Item], Created],
    ) -> Started:
        new, start = self._ids.make_item(), Start(holder, create_run)
        return await self.write(lambda tx: claims.start_direct(tx, new, agent, message, start))

    async def continue_with(self, lease: Lease, to: ItemId | Message) -> Claim:
        new = self._ids.make_item()
        return await self.write(
            lambda tx: claims.continue_with(tx, new, lease, to), lane=lease.agent
        )

    async def settle(
        self,
        claim: Claim,
        change: RunChange | None = None,
        batch: Batch | None = None,
        *,
        keep_warm: bool = False,
    ) -> Item:
        encoded = EncodedBatch.from_batch(batch, self._settings.scrubber) if batch else None
        last = LastWrites(change, encoded)
        return await self.write(
            lambda tx: claims.settle(tx, claim, last, keep_warm=keep_warm), lane=claim.agent
        )

    async def append(self, lease: Lease, batch: Batch) -> AppendResult:
        encoded = EncodedBatch.from_batch(batch, self._settings.scrubber)
        return await self.write(
            lambda tx: runs.append(tx, lease, encoded), lane=lease.agent, is_durable=False
        )


def _check_quickly(connection: Connection) -> list[str]:
    return _check_file(connection, "quick_check")


def _check_deeply(connection: Connection) -> list[str]:
    # Rows of a damaged file cannot be told from damaged rows.
    return _check_file(connection, "integrity_check") or inspection.inspect_rows(connection)


def _check_file(connection: Connection, check: str) -> list[str]:
    found = [str(row[0]) for row in connection.execute(f"PRAGMA {check}")]
    return [] if found == ["ok"] else found
