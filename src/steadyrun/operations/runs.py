"""How is something ended that was asked for? By its run or by its item, from any process."""

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
    id: Annotated[str, arg("a run's or an item's id, or the beginning of one", metavar="RUN|ITEM")]
    reason: Annotated[str | None, arg("why, for the record", metavar="TEXT")] = None
    wait_seconds: Annotated[float, hidden("how long to wait for its end")] = 0.0


async def cancel(desk: OperationContext, given: CancelRequest) -> CancelledDocument:
    """Ask for the end. What has ended stays as it is."""
    store = desk.store
    if given.id.startswith("itm_"):
        item = await find_item(store, given.id)
        return await _cancel(store, item.agent, lambda: _load_item(store, item.id), given)
    run = await find_run(store, given.id)
    return await _cancel(store, run.agent, lambda: _load_run(store, run.id), given)


async def _cancel(
    store: Store, agent: AgentId, look: CancelledLoader, given: CancelRequest
) -> CancelledDocument:
    found = await look()
    if found.is_over or found.item is None:
        return found
    # Registered before it is asked, so that an answer at once is heard.
    with store.hints.watch(agent) as watch:
        await store.cancel(ItemId(found.item), given.reason)
        with anyio.move_on_after(given.wait_seconds):
            while not (await look()).is_over:
                await watch.wait()
    return await look()


async def _load_item(store: Store, item: ItemId) -> CancelledDocument:
    found = await store.item(item)
    run = None if found.run is None else await store.run(found.run)
    reason = None if run is None else run.stop_reason
    return CancelledDocument(found.run, item, found.status, reason)


async def _load_run(store: Store, run: RunId) -> CancelledDocument:
    found = await store.run(run)
    return CancelledDocument(run, found.item, found.status, found.stop_reason)
