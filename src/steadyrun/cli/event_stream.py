"""Follows events: from the daemon while one answers, otherwise from the store."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from pathlib import Path

import anyio
import msgspec
from msgspec import Raw, Struct

from steadyrun.api import client
from steadyrun.cli.output.format import ShownEvent
from steadyrun.errors import DaemonNotAnswering, DaemonUnreachable, RpcFailed, VersionMismatch
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

# Called for each event in order. It returns True to end the stream.
EventHandler = Callable[[ShownEvent], Awaitable[bool]]

# How long the store is read before the daemon is tried again.
_RECONNECT_SECONDS = 2.0


class EventFilter(Struct, frozen=True):
    """The events of an agent or of a run; of all if neither is set."""

    agent: AgentId | None = None
    run: RunId | None = None


class EventStream:
    """Delivers every event after a cursor once, from the daemon or from the store."""

    def __init__(
        self,
        home: Path,
        store: Store,
        filter_: EventFilter,
        after: int,
        note: Callable[[str], None],
    ) -> None:
        """`note` prints a line for the user."""
        self._home, self._store, self._filter = home, store, filter_
        self._after, self._note = after, note
        # Whether the daemon does not answer and the user knows it.
        self._is_silent = False

    async def follow(self, handle: EventHandler) -> None:
        while True:
            if await self._follow_daemon(handle) or await self._follow_store(handle):
                return

    async def _follow_daemon(self, handle: EventHandler) -> bool:
        request = FollowRequest(self._filter.agent, self._filter.run, self._after)
        try:
            async with client.follow(self._home, request) as (_, events):
                self._is_silent = False
                async for raw in events:
                    if await self._deliver(decode_event(raw), handle):
                        return True
        except DaemonNotAnswering as silence:
            self._report_silence(silence)
            return False
        except (DaemonUnreachable, RpcFailed, VersionMismatch):
            # No daemon, or one of another version. The store has all events except live ones.
            return False
        return False

    def _report_silence(self, silence: DaemonNotAnswering) -> None:
        if not self._is_silent:
            self._is_silent = True
            self._note(f"{silence.message}; events come from the store")
            self._note(f"  {silence.hint}")

    async def _follow_store(self, handle: EventHandler) -> bool:
        agent, run = self._filter.agent, self._filter.run
        stored = follow(self._store, self._after, agent=agent, run=run)
        with anyio.move_on_after(_RECONNECT_SECONDS):
            async with aclosing(stored) as events:
                async for event in events:
                    if await self._deliver(event, handle):
                        return True
        return False

    async def _deliver(self, seen: ShownEvent, handle: EventHandler) -> bool:
        if isinstance(seen, StoredEvent):
            self._after = seen.cursor
        return await handle(seen)


class PublicEvent(Struct, frozen=True):
    """The public JSON form of an event."""

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
    """Decode the JSON of `event_json.public`."""
    document = msgspec.json.decode(raw, type=PublicEvent)
    event = _decode_event(document)
    if document.cursor is not None:
        return StoredEvent(
            document.cursor,
            document.seq,
            document.id,
            document.at,
            document.agent,
            document.run,
            document.provider,
            event,
        )
    assert not isinstance(event, Foreign), "a live event has the version of this program"
    return LiveEvent(
        document.id, document.at, document.agent or "", document.run, document.provider, event
    )


def _decode_event(document: PublicEvent) -> Event | Foreign:
    fields = {"type": document.type, **document.data}
    if document.v == VERSION:
        try:
            event: Event = msgspec.json.decode(msgspec.json.encode(fields), type=Event)
        except msgspec.ValidationError:
            pass
        else:
            return event
    return Foreign(document.type, document.v, msgspec.msgpack.encode(fields))
