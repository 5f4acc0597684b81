"""Sends messages to agents, lists and shows items, and retries them."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import Conflict, InvalidUsage
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Followup, Item
from steadyrun.operations.context import OperationContext
from steadyrun.operations.costs import parse_since
from steadyrun.operations.documents import ItemDocument, ItemsDocument
from steadyrun.operations.fields import arg
from steadyrun.operations.lookup import find_agent, find_item
from steadyrun.operations.views import build_item_document, build_item_documents
from steadyrun.runtime.inbox import accept
from steadyrun.store import PAGE


class SendRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: Annotated[str, arg("the name of the agent", metavar="AGENT")]
    text: Annotated[str, arg("the message; - reads standard input", metavar="TEXT|-")]
    files: Annotated[
        tuple[str, ...],
        arg("a file to attach; repeatable", metavar="F", flag="--file", kind="paths"),
    ] = ()
    followup: Annotated[
        Followup | None,
        arg(
            "queue: wait for a separate run; steer: join the current run",
            constants={"--queue": "queue", "--steer": "steer"},
        ),
    ] = None
    key: Annotated[
        str | None, arg("idempotency key: a repeated key returns the same item", metavar="K")
    ] = None


class ListItemsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    agent: Annotated[str | None, arg("only of this agent", metavar="AGENT", is_word=True)] = None
    all: Annotated[bool, arg("include settled items")] = False
    limit: Annotated[int, arg("number of items (50)", metavar="N", flag="-n")] = 50


class ItemRequest(Struct, frozen=True, forbid_unknown_fields=True):
    item: Annotated[str, arg("an item id or the beginning of one", metavar="ITEM")]


class RetryRequest(Struct, frozen=True, forbid_unknown_fields=True):
    item: Annotated[
        str | None,
        arg("an item id or the beginning of one; with --failed: an agent", metavar="ITEM|AGENT",
            is_word=True),
    ] = None  # fmt: skip


class RetryFailedRequest(Struct, frozen=True, forbid_unknown_fields=True):
    agent: Annotated[str | None, arg("only of this agent", metavar="AGENT", is_word=True)] = None
    since: Annotated[
        str | None,
        arg("only items that failed since then: today, a date, or a time span", metavar="WHEN"),
    ] = None


async def send(context: OperationContext, request: SendRequest) -> ItemDocument:
    agent = await find_agent(context, request.agent)
    accepted = await accept(
        context.accept,
        agent,
        request.text,
        home=context.home,
        key=request.key,
        followup=request.followup,
        files=[Path(file) for file in request.files],
    )
    return await build_item_document(context, accepted.item)


async def show(context: OperationContext, request: ItemRequest) -> ItemDocument:
    return await build_item_document(context, await find_item(context.store, request.item))


async def list_items(context: OperationContext, request: ListItemsRequest) -> ItemsDocument:
    if request.limit < 1:
        raise InvalidUsage(f"expected a number above 0, found {request.limit}")
    if request.agent is not None:
        agent = (await find_agent(context, request.agent)).id
        found = await context.store.items(agent, include_settled=request.all, limit=request.limit)
    else:
        found = await _list_lasting(context, request)
    return ItemsDocument(await build_item_documents(context, found))


async def retry(context: OperationContext, request: RetryRequest) -> ItemDocument:
    if request.item is None:
        raise InvalidUsage("name an item, or use --failed", hint="`steadyrun inbox --all` lists.")
    item = await find_item(context.store, request.item)
    return await build_item_document(context, await _retry(context, item))


async def retry_failed(context: OperationContext, request: RetryFailedRequest) -> ItemsDocument:
    """Send every failed item again that was not sent again yet, in the order of the queue."""
    agent = None if request.agent is None else (await find_agent(context, request.agent)).id
    since = None
    if request.since is not None:
        since = parse_since(request.since, context.clock.now(), context.budgets.zone)
    failed = await _list_failed(context, agent, since)
    retried = [await _retry(context, item) for item in reversed(failed)]
    return ItemsDocument(await build_item_documents(context, retried))


async def _list_failed(
    context: OperationContext, agent: AgentId | None, since: datetime | None
) -> list[Item]:
    """The failed items of lasting agents that have no retry, newest first."""
    lasting = {each.id for each in await context.store.agents()}
    found: list[Item] = []
    retried: set[ItemId | None] = set()
    before: ItemId | None = None
    is_last = False
    while not is_last:
        page = await context.store.items(agent, include_settled=True, before=before, limit=PAGE)
        # A retry is newer than its item, so it has been seen before.
        retried |= {item.payload.retry_of for item in page}
        found += [
            item
            for item in page
            if item.status == "failed"
            and item.agent in lasting
            and (since is None or (item.settled_at or item.created_at) >= since)
        ]
        is_last = len(page) < PAGE
        before = page[-1].id if page else None
    return [item for item in found if item.id not in retried]


async def _retry(context: OperationContext, item: Item) -> Item:
    if not item.is_settled:
        hint = f"Wait until it is settled, or cancel it: steadyrun cancel {item.id}"
        raise Conflict(f"{item.id} is {item.status}", hint=hint)
    if item.payload.text_pruned:
        raise Conflict(f"the text of {item.id} was pruned", hint="Send the message again.")
    agent = await find_agent(context, item.agent)
    accepted = await accept(
        context.accept,
        agent,
        item.text,
        home=context.home,
        key=f"retry:{item.id}",
        followup=item.followup,
        on_lost=item.on_lost,
        payload=replace(item.payload, retry_of=item.id),
    )
    return accepted.item


async def _list_lasting(context: OperationContext, request: ListItemsRequest) -> list[Item]:
    """List the items of lasting agents. Direct runs have items as well; they are left out."""
    lasting = {agent.id for agent in await context.store.agents()}
    found: list[Item] = []
    before: ItemId | None = None
    while len(found) < request.limit:
        page = await context.store.items(include_settled=request.all, before=before, limit=PAGE)
        found += [item for item in page if item.agent in lasting]
        if len(page) < PAGE:
            break
        before = page[-1].id
    return found[: request.limit]
