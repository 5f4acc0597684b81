"""Streams events to a caller as they happen."""

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
    agent: Annotated[str | None, hidden("only of this agent: a name or an id")] = None
    run: Annotated[str | None, hidden("only of this run")] = None
    after: Annotated[int | None, hidden("the cursor of the last event that the caller has")] = None


@dataclass(frozen=True, slots=True)
class EventFeed:
    """The first answer of a stream, and its events."""

    answer: StreamStart
    events: AsyncGenerator[StoredEvent | LiveEvent, None]


async def follow(context: OperationContext, request: FollowRequest) -> EventFeed:
    """Stream all events after the cursor; without one, after the last stored event."""
    daemon, store = require_daemon(context), context.store
    if request.agent is not None and request.run is not None:
        raise InvalidUsage("expected an agent or a run, found both", hint="Leave one of them out.")
    agent = None if request.agent is None else await store.agent(request.agent)
    run = None if request.run is None else (await find_run(store, request.run)).id
    after = request.after
    if after is None:
        newest = await store.events(limit=1, newest=True)
        after = newest[-1].cursor if newest else 0
    pruned_to = await store.pruned_to(agent.id if agent else None)
    return EventFeed(
        StreamStart(after, pruned_to), daemon.follow(agent=agent, run=run, after=after)
    )
