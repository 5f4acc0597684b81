"""How does a command hear what happens? From the daemon while one answers, else from the record."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from pathlib import Path

import anyio
import msgspec
from msgspec import Raw, Struct

from steadyrun.api import client
from steadyrun.errors import DaemonUnreachable, RpcFailed, VersionMismatch
from steadyrun.model.event import (
    VERSION,
    Event,
    EventId,
    Foreign,
    JsonObject,
    LiveEvent,
    StoredEvent,
)
from steadyrun.model.ids import AgentId, RunId
from steadyrun.operations.events import FollowRequest
from steadyrun.store import Store, follow

ShownEvent = StoredEvent | LiveEvent
# Called for each event in order; True: that was enough.
EventHandler = Callable[[ShownEvent], Awaitable[bool]]

# How long the record is read before a daemon is looked for again.
_RECONNECT_SECONDS = 2.0


class EventFilter(Struct, frozen=True):
    """What it is about; with neither, everything."""

    agent: AgentId | None = None
    run: RunId | None = None


class EventStream:
    """Hears everything after a cursor, once, wherever it comes from."""

    def __init__(self, home: Path, store: Store, filter_: EventFilter, after: int) -> None:
        self._home, self._store, self._filter = home, store, filter_
        self._after = after

    async def follow(self, tell: EventHandler) -> None:
        while True:
            if await self._follow_daemon(tell) or await self._follow_store(tell):
                return

    async def _follow_daemon(self, tell: EventHandler) -> bool:
        given = FollowRequest(self._filter.agent, self._filter.run, self._after)
        try:
            async with client.follow(self._home, given) as (_, events):
                async for raw in events:
                    if await self._deliver(decode_event(raw), tell):
                        return True
        except (DaemonUnreachable, RpcFailed, VersionMismatch):
            # Gone, or none that we understand: the record has it all but for what is live.
            return False
        return False

    async def _follow_store(self, tell: EventHandler) -> bool:
        agent, run = self._filter.agent, self._filter.run
        stored = follow(self._store, self._after, agent=agent, run=run)
        with anyio.move_on_after(_RECONNECT_SECONDS):
            async with aclosing(stored) as events:
                async for event in events:
                    if await self._deliver(event, tell):
                        return True
        return False

    async def _deliver(self, seen: ShownEvent, tell: EventHandler) -> bool:
        if isinstance(seen, StoredEvent):
            self._after = seen.cursor
        return await tell(seen)


class PublicEvent(Struct, frozen=True):
    """An event as every surface shows it."""

    v: int
    cursor: int | None
    seq: int | None
    id: EventId
    type: str
    at: datetime
    agent: str | None
    run: RunId | None
    provider: str | None
    data: JsonObject


def decode_event(raw: Raw) -> ShownEvent:
    """What `model.public.public` was made of."""
    found = msgspec.json.decode(raw, type=PublicEvent)
    event = _decode_event(found)
    if found.cursor is not None:
        return StoredEvent(
            found.cursor, found.seq, found.id, found.at, found.agent, found.run, found.provider,
            event,
        )  # fmt: skip
    assert not isinstance(event, Foreign), "what is not stored is of this version"
    return LiveEvent(found.id, found.at, found.agent or "", found.run, found.provider, event)


def _decode_event(found: PublicEvent) -> Event | Foreign:
    fields = {"type": found.type, **found.data}
    if found.v == VERSION:
        try:
            known: Event = msgspec.json.decode(msgspec.json.encode(fields), type=Event)
        except msgspec.ValidationError:
            pass
        else:
            return known
    return Foreign(found.type, found.v, msgspec.msgpack.encode(fields))
