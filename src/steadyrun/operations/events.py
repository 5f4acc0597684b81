"""How is somebody told what happens, as it happens?"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated

from msgspec import Struct

from steadyrun.errors import InvalidUsage
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.operations.context import OperationContext
from steadyrun.operations.daemon import require_daemon
from steadyrun.operations.documents import StreamStart
from steadyrun.operations.fields import hidden
from steadyrun.operations.lookup import find_run


class FollowRequest(Struct, frozen=True, forbid_unknown_fields=True):
    agent: Annotated[str | None, hidden("only of this agent, by its name or id")] = None
    run: Annotated[str | None, hidden("only of this run")] = None
    after: Annotated[int | None, hidden("the cursor of the last event that is known")] = None


@dataclass(frozen=True, slots=True)
class EventFeed:
    """What a stream begins with, and what it tells."""

    answer: StreamStart
    events: AsyncGenerator[StoredEvent | LiveEvent, None]


async def follow(desk: OperationContext, given: FollowRequest) -> EventFeed:
    """Everything after the cursor, or after what is stored now."""
    daemon, store = require_daemon(desk), desk.store
    if given.agent is not None and given.run is not None:
        raise InvalidUsage("expected an agent or a run, found both", hint="Leave one of them out.")
    agent = None if given.agent is None else (await store.agent(given.agent)).id
    run = None if given.run is None else (await find_run(store, given.run)).id
    after = given.after
    if after is None:
        newest = await store.last_events(limit=1)
        after = newest[-1].cursor if newest else 0
    return EventFeed(StreamStart(after), daemon.follow(agent=agent, run=run, after=after))
