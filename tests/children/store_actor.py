"""A process that executes commands on a store: one command per line on stdin, one answer per line
on stdout.

join                    become a holder
claim                   own a lane, begin its run and open a process for it
append COUNT            that many batches of one event each, one after the other
accept COUNT AGENT      that many items, one after the other
both COUNT AGENT        the two above at the same time
flood                   append until the next line comes
close                   close the store; the process stays
visit COUNT AGENT       after that: open the store, accept an item and close it, COUNT times
stop-in-transaction     begin a write transaction by hand and stop; commit when continued
stop-in-turnstile       stop between passing the turnstile and beginning
"""

import fcntl
import os
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from steadyrun.lib.clock import SystemClock
from steadyrun.model.batch import Batch
from steadyrun.model.event import Emitted, Note
from steadyrun.model.ids import AgentId, HolderId, Ids, ItemId, ProcessId, RunId
from steadyrun.model.item import Claim, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created
from steadyrun.stores.sqlite import SqliteStore


class Actor:
    """A store and what this process owns in it."""

    def __init__(self, home: Path, store: SqliteStore) -> None:
        self._home = home
        self._store = store
        self._ids = Ids(SystemClock().now)
        self._holder = HolderId("")
        self._claim: Claim | None = None
        self._run, self._process = self._ids.make_run(), self._ids.make_process()
        self._offset = 0

    async def execute(self) -> None:
        verbs: dict[str, Callable[..., Awaitable[object]]] = {
            "join": self._join,
            "claim": self._claim_one,
            "append": self._append,
            "accept": self._accept,
            "both": self._both,
            "flood": self._flood,
            "close": self._close,
            "visit": self._visit,
            "stop-in-transaction": self._stop_in_transaction,
            "stop-in-turnstile": self._stop_in_turnstile,
        }
        while line := await _next_line():
            verb, *arguments = line.split()
            _say(await verbs[verb](*arguments))

    async def _join(self) -> object:
        holder = await self._store.join("actor")
        self._holder = holder.id
        return holder

    async def _claim_one(self) -> object:
        now = SystemClock().now()
        [started] = await self._store.start(
            self._holder, lambda agent, item: Created(self._run, agent.id, item.id, "claude", now)
        )
        self._claim = claim = started.claim
        process = Process(self._process, claim.agent, "claude", "here", "keeper", now)
        await self._store.open_process(claim, process)
        return claim

    async def _append(self, count: str) -> object:
        for _ in range(int(count)):
            await self._append_one()
        return self._offset

    async def _append_one(self) -> None:
        assert self._claim is not None
        batch = one_event(self._process, self._run, self._offset)
        await self._store.append(self._claim, batch)
        self._offset = batch.to_offset

    async def _accept(self, count: str, agent: str) -> list[ItemId]:
        found = []
        for n in range(int(count)):
            accepted = await self._store.accept(Message(AgentId(agent), f"{os.getpid()} {n}"))
            found.append(accepted.item.id)
        return found

    async def _both(self, count: str, agent: str) -> object:
        accepted: list[object] = []

        async def accept() -> None:
            accepted.append(await self._accept(count, agent))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept)
            tasks.start_soon(self._append, count)
        return {"items": accepted[0], "offset": self._offset}

    async def _flood(self) -> object:
        enough = anyio.Event()

        async def append_on() -> None:
            while not enough.is_set():
                await self._append_one()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_on)
            _say("flooding")
            await _next_line()
            enough.set()
        return self._offset

    async def _close(self) -> object:
        await self._store.close()
        return "closed"

    async def _visit(self, count: str, agent: str) -> object:
        found: list[ItemId] = []
        for _ in range(int(count)):
            self._store = await SqliteStore.open(self._home)
            found += await self._accept("1", agent)
            await self._store.close()
        return found

    async def _stop_in_transaction(self) -> object:
        connection = sqlite3.connect(self._home / "steadyrun.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        _stop()
        connection.execute("COMMIT")
        connection.close()
        return "committed"

    async def _stop_in_turnstile(self) -> object:
        turnstile = os.open(self._home / "steadyrun.turnstile", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        _stop()
        os.close(turnstile)
        return "passed"


def one_event(process: ProcessId, run: RunId, offset: int) -> Batch:
    """The batch of one event that stands for one byte of the journal."""
    event = Emitted(offset + 1, 0, SystemClock().now(), Note(str(os.getpid())))
    return Batch(process, run, offset, offset + 1, (event,))


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _say(answer: object) -> None:
    os.write(1, msgspec.json.encode(answer) + b"\n")


async def _next_line() -> str:
    line: str = await anyio.to_thread.run_sync(sys.stdin.readline)
    return line.strip()


async def main(home: Path) -> None:
    store = await SqliteStore.open(home)
    await Actor(home, store).execute()
    await store.close()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
