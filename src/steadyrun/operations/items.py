"""How does a message come in, and what becomes of it?"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import Conflict, MessageTooLong, Usage
from steadyrun.model.agent import Agent
from steadyrun.model.ids import ItemId
from steadyrun.model.item import Followup, Item, Message, OnLost, Payload
from steadyrun.operations.desk import Desk
from steadyrun.operations.documents import ItemDocument, ItemsDocument
from steadyrun.operations.looks import find_agent, find_item, item_document, item_documents
from steadyrun.operations.words import said
from steadyrun.store import PAGE, Accepted

LONGEST_TEXT_BYTES = 1024 * 1024


class Send(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: Annotated[str, said("the agent's name", metavar="AGENT")]
    text: Annotated[str, said("the message; - reads standard input", metavar="TEXT|-")]
    files: Annotated[
        tuple[str, ...],
        said("a file to come with it; may be repeated", metavar="F", flag="--file", kind="paths"),
    ] = ()
    followup: Annotated[
        Followup | None,
        said(
            "wait for a run of its own, or enter the one that is going on",
            constants={"--queue": "queue", "--steer": "steer"},
        ),
    ] = None
    key: Annotated[str | None, said("the same key again is the same item", metavar="K")] = None


class ListItems(Struct, frozen=True, forbid_unknown_fields=True):
    agent: Annotated[str | None, said("only of this agent", metavar="AGENT", is_word=True)] = None
    all: Annotated[bool, said("the settled ones, too")] = False
    limit: Annotated[int, said("how many (50)", metavar="N", flag="-n")] = 50


class ChooseItem(Struct, frozen=True, forbid_unknown_fields=True):
    item: Annotated[str, said("an item's id, or the beginning of one", metavar="ITEM")]


async def send(desk: Desk, given: Send) -> ItemDocument:
    agent = await find_agent(desk, given.agent)
    followup = given.followup or agent.followup
    accepted = await _accept(
        desk, agent, given.text, key=given.key, followup=followup, files=given.files
    )
    return await item_document(desk, accepted.item)


async def show(desk: Desk, given: ChooseItem) -> ItemDocument:
    return await item_document(desk, await find_item(desk.store, given.item))


async def list_items(desk: Desk, given: ListItems) -> ItemsDocument:
    if given.limit < 1:
        raise Usage(f"expected a number from 1 on, found {given.limit}")
    if given.agent is not None:
        agent = (await find_agent(desk, given.agent)).id
        found = await desk.store.items(agent, include_settled=given.all, limit=given.limit)
    else:
        found = await _of_lasting(desk, given)
    return ItemsDocument(await item_documents(desk, found))


async def retry(desk: Desk, given: ChooseItem) -> ItemDocument:
    item = await find_item(desk.store, given.item)
    if not item.is_settled:
        hint = f"Wait for it, or cancel it first: steadyrun cancel {item.id}"
        raise Conflict(f"{item.id} is {item.status}", hint=hint)
    agent = await find_agent(desk, item.agent)
    accepted = await _accept(
        desk,
        agent,
        item.text,
        key=f"retry:{item.id}",
        followup=item.followup,
        on_lost=item.on_lost,
        payload=replace(item.payload, retry_of=item.id),
    )
    return await item_document(desk, accepted.item)


async def _of_lasting(desk: Desk, given: ListItems) -> list[Item]:
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


async def _accept(  # noqa: PLR0913 (the same as those of the one that takes files, too)
    desk: Desk,
    agent: Agent,
    text: str,
    *,
    key: str | None,
    followup: Followup,
    on_lost: OnLost | None = None,
    files: Sequence[str] = (),
    payload: Payload = Payload(),  # noqa: B008 (frozen)
) -> Accepted:
    size = len(text.encode())
    if not text.strip():
        raise Usage("the message is empty", hint='Type it: steadyrun send AGENT "…"')
    if size > LONGEST_TEXT_BYTES:
        raise MessageTooLong(found=size, most=LONGEST_TEXT_BYTES)
    if files:
        raise Usage("files cannot be sent yet", hint="Name them in the message.")
    message = Message(
        agent.id,
        text,
        key=key,
        on_lost=on_lost or agent.on_lost,
        followup=followup,
        payload=payload,
    )
    return await desk.store.accept(message)
