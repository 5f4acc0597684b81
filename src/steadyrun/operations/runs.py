"""Cancels a run or an item, from any process."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import anyio
from msgspec import Struct

from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import CancelledDocument
from steadyrun.operations.fields import arg, hidden
from steadyrun.operations.lookup import find_item, find_run
from steadyrun.store import Store

CancelledLoader = Callable[[], Awaitable[CancelledDocument]]


class CancelRequest(Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, arg("a run id, an item id, or the beginning of one", metavar="RUN|ITEM")]
    reason: Annotated[str | None, arg("the reason, for the record", metavar="TEXT")] = None
    wait_seconds: Annotated[float, hidden("how long to wait for the end")] = 0.0


async def cancel(context: OperationContext, request: CancelRequest) -> CancelledDocument:
    """Request the cancellation. A run or an item that has ended is not changed."""
    store = context.store
    if request.id.startswith("itm_"):
        item = await find_item(store, request.id)
        return await _cancel(store, item.agent, lambda: _load_item(store, item.id), request)
    run = await find_run(store, request.id)
    return await _cancel(store, run.agent, lambda: _load_run(store, run.id), request)


async def _cancel(
    store: Store, agent: AgentId, load: CancelledLoader, request: CancelRequest
) -> CancelledDocument:
    found = await load()
    if found.is_over or found.item is None:
        return found
    # The watch begins before the request, so that an immediate answer is not missed.
    with store.hints.watch(agent) as watch:
        await store.cancel(ItemId(found.item), request.reason)
        with anyio.move_on_after(request.wait_seconds):
            while not (await load()).is_over:
                await watch.wait()
    return await load()


async def _load_item(store: Store, item: ItemId) -> CancelledDocument:
    found = await store.item(item)
    run = None if found.run is None else await store.run(found.run)
    reason = None if run is None else run.stop_reason
    return CancelledDocument(found.run, item, found.status, reason)


async def _load_run(store: Store, run: RunId) -> CancelledDocument:
    found = await store.run(run)
    return CancelledDocument(run, found.item, found.status, found.stop_reason)
