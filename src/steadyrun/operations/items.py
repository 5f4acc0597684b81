"""How does a message come in, and what becomes of it?"""

from pathlib import Path
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import Conflict, InvalidUsage
from steadyrun.model.ids import ItemId
from steadyrun.model.item import Followup, Item
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import ItemDocument, ItemsDocument
from steadyrun.operations.fields import arg
from steadyrun.operations.lookup import (
    build_item_document,
    build_item_documents,
    find_agent,
    find_item,
)
from steadyrun.runtime.inbox import accept
from steadyrun.store import PAGE


class SendRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: Annotated[str, arg("the agent's name", metavar="AGENT")]
    text: Annotated[str, arg("the message; - reads standard input", metavar="TEXT|-")]
    files: Annotated[
        tuple[str, ...],
        arg("a file to come with it; may be repeated", metavar="F", flag="--file", kind="paths"),
    ] = ()
    followup: Annotated[
        Followup | None,
        arg(
            "queue: wait for a run of its own; steer: enter the one that is going on",
            constants={"--queue": "queue", "--steer": "steer"},
        ),
    ] = None
    key: Annotated[str | None, arg("the same key again is the same item", metavar="K")] = None


class ListItemsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    agent: Annotated[str | None, arg("only of this agent", metavar="AGENT", is_word=True)] = None
    all: Annotated[bool, arg("the settled ones, too")] = False
    limit: Annotated[int, arg("how many (50)", metavar="N", flag="-n")] = 50


class ItemRequest(Struct, frozen=True, forbid_unknown_fields=True):
    item: Annotated[str, arg("an item's id, or the beginning of one", metavar="ITEM")]


async def send(desk: OperationContext, given: SendRequest) -> ItemDocument:
    agent = await find_agent(desk, given.agent)
    accepted = await accept(
        desk.accept,
        agent,
        given.text,
        home=desk.home,
        key=given.key,
        followup=given.followup,
        files=[Path(file) for file in given.files],
    )
    return await build_item_document(desk, accepted.item)


async def show(desk: OperationContext, given: ItemRequest) -> ItemDocument:
    return await build_item_document(desk, await find_item(desk.store, given.item))


async def list_items(desk: OperationContext, given: ListItemsRequest) -> ItemsDocument:
    if given.limit < 1:
        raise InvalidUsage(f"expected a number from 1 on, found {given.limit}")
    if given.agent is not None:
        agent = (await find_agent(desk, given.agent)).id
        found = await desk.store.items(agent, include_settled=given.all, limit=given.limit)
    else:
        found = await _list_lasting(desk, given)
    return ItemsDocument(await build_item_documents(desk, found))


async def retry(desk: OperationContext, given: ItemRequest) -> ItemDocument:
    item = await find_item(desk.store, given.item)
    if not item.is_settled:
        hint = f"Wait for it, or cancel it first: steadyrun cancel {item.id}"
        raise Conflict(f"{item.id} is {item.status}", hint=hint)
    agent = await find_agent(desk, item.agent)
    accepted = await accept(
        desk.accept,
        agent,
        item.text,
        home=desk.home,
        key=f"retry:{item.id}",
        followup=item.followup,
        on_lost=item.on_lost,
        payload=replace(item.payload, retry_of=item.id),
    )
    return await build_item_document(desk, accepted.item)


async def _list_lasting(desk: OperationContext, given: ListItemsRequest) -> list[Item]:
    """A run that no agent was asked for has an item as well, which nobody looks for here."""
    lasting = {agent.id for agent in await desk.store.agents()}
    found: list[Item] = []
    before: ItemId | None = None
    while len(found) < given.limit:
        page = await desk.store.items(include_settled=given.all, before=before, limit=PAGE)
        found += [item for item in page if item.agent in lasting]
        if len(page) < PAGE:
            break
        before = page[-1].id
    return found[: given.limit]
