"""Messages are accepted, listed, retried and cancelled."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from steadyrun.errors import Conflict, InvalidUsage, MessageTooLong, NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.event import ErrorFact
from steadyrun.model.gate import Closed, Opened
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Attachment, Message, Payload
from steadyrun.model.run import Finished
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import AgentDocument
from steadyrun.operations.items import (
    ItemRequest,
    ListItemsRequest,
    RetryFailedRequest,
    RetryRequest,
    SendRequest,
    list_items,
    retry,
    retry_failed,
    send,
    show,
)
from steadyrun.operations.runs import CancelRequest, cancel
from steadyrun.operations.views import build_agent_document
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.testing.clock import START, FakeClock
from steadyrun.testing.store_conformance.fixtures import claim_lanes
from tests.support.fake_daemon import FakeDaemon, make_context

ADA = AgentId("agt_1")
FAR, NEAR = START.replace(year=2027), START.replace(month=12)


@pytest.fixture
def context(tmp_path: Path) -> OperationContext:
    clock = FakeClock()
    store = MemoryStore(clock)
    plain = make_context(store, tmp_path, clock=clock)
    daemon = FakeDaemon(store, tmp_path, clock, plain.ids)
    anyio.run(store.add_agent, Agent(ADA, "ada", ("scripted",), "/", followup="queue"))
    return OperationContext(
        store, clock, plain.ids, tmp_path, plain.abilities, plain.enforce, daemon
    )


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_send_refuses_an_empty_message(context: OperationContext, text: str) -> None:
    with pytest.raises(InvalidUsage, match="empty"):
        anyio.run(send, context, SendRequest(agent="ada", text=text))


def test_send_accepts_one_mebibyte_and_refuses_one_byte_more(context: OperationContext) -> None:
    most = "ä" * (1024 * 512)

    taken = anyio.run(send, context, SendRequest(agent="ada", text=most))
    with pytest.raises(MessageTooLong) as found:
        anyio.run(send, context, SendRequest(agent="ada", text=f"{most}x"))

    assert taken.text == most
    assert (found.value.found, found.value.most) == (1048577, 1048576)
    assert "file" in found.value.hint


def test_send_refuses_an_unknown_agent(context: OperationContext) -> None:
    with pytest.raises(NotFound, match="bob"):
        anyio.run(send, context, SendRequest(agent="bob", text="hello"))


def test_send_uses_the_followup_setting_of_the_agent_by_default(context: OperationContext) -> None:
    usual = anyio.run(send, context, SendRequest(agent="ada", text="one"))
    said = anyio.run(send, context, SendRequest(agent="ada", text="two", followup="steer"))

    assert (usual.followup, said.followup) == ("queue", "steer")
    assert anyio.run(context.store.item, ItemId(usual.id)).on_lost == "resume"


def test_send_with_the_same_key_returns_the_same_item(context: OperationContext) -> None:
    first = anyio.run(send, context, SendRequest(agent="ada", text="one", key="k"))
    again = anyio.run(send, context, SendRequest(agent="ada", text="another", key="k"))

    assert again == first


def test_queued_item_has_the_reason_it_waits_for(context: OperationContext) -> None:
    async def reasons() -> list[Any]:
        found: list[Any] = []
        item = await send(context, SendRequest(agent="ada", text="one"))
        later = await send(context, SendRequest(agent="ada", text="two"))

        async def look(at: OperationContext = context, which: str = item.id) -> None:
            document = await show(at, ItemRequest(which))
            found.append((document.waiting, document.until))

        await look()
        await look(which=later.id)
        await look(
            at=OperationContext(
                context.store,
                context.clock,
                context.ids,
                context.home,
                context.abilities,
                context.enforce,
            )
        )
        await context.store.update_gate("scripted", Closed(FAR, "limit"))
        await look()
        await context.store.set_paused(ADA, is_paused=True)
        await look()
        await context.store.set_paused(ADA, is_paused=False)
        await context.store.update_gate("scripted", Opened())
        holder = await context.store.join("test")
        await claim_lanes(context.store, holder.id)
        await look()
        await look(which=later.id)
        return found

    assert anyio.run(reasons) == [
        ("slot", None),
        ("turn", None),
        ("daemon", None),
        ("gate", FAR),
        ("paused", None),
        (None, None),
        ("turn", None),
    ]


def test_item_waits_for_a_gate_only_if_all_providers_of_the_agent_are_closed(
    context: OperationContext,
) -> None:
    async def reasons() -> list[Any]:
        found: list[Any] = []
        was = await context.store.agent("ada")
        await context.store.set_agent(replace(was, providers=("scripted", "shell")), was=was)
        item = await send(context, SendRequest(agent="ada", text="one"))

        async def look() -> None:
            document, agent = await show(context, ItemRequest(item.id)), await _shown(context)
            found.append((document.waiting, document.until, agent.state, agent.until))

        await context.store.update_gate("scripted", Closed(FAR, "limit"))
        await look()
        await context.store.update_gate("shell", Closed(NEAR, "limit"))
        await look()
        return found

    assert anyio.run(reasons) == [
        ("slot", None, "idle", None),
        ("gate", NEAR, "gated", NEAR),
    ]


async def _shown(context: OperationContext) -> AgentDocument:
    return await build_agent_document(context, await context.store.agent("ada"))


def test_inbox_lists_open_items_newest_first(context: OperationContext) -> None:
    async def listed() -> list[list[str]]:
        for text in ("one", "two", "three"):
            await send(context, SendRequest(agent="ada", text=text))
        direct = Agent(AgentId("agt_2"), "run_1", ("scripted",), "/", is_direct=True)
        await context.store.add_agent(direct)
        await context.store.accept(Message(direct.id, "direct"))
        await cancel(
            context, CancelRequest((await list_items(context, ListItemsRequest())).items[1].id)
        )
        asked = (
            ListItemsRequest(),
            ListItemsRequest("ada"),
            ListItemsRequest(all=True),
            ListItemsRequest(limit=1),
            ListItemsRequest(all=True, limit=2),
        )
        return [
            [item.text for item in (await list_items(context, each)).items] for each in asked
        ]  # fmt: skip

    assert anyio.run(listed) == [
        ["three", "one"], ["three", "one"], ["three", "two", "one"], ["three"], ["three", "two"],
    ]  # fmt: skip


def test_inbox_finds_items_of_agents_behind_a_page_of_direct_runs(
    context: OperationContext,
) -> None:
    async def listed() -> list[str]:
        await send(context, SendRequest(agent="ada", text="ours"))
        direct = Agent(AgentId("agt_2"), "run_1", ("scripted",), "/", is_direct=True)
        await context.store.add_agent(direct)
        await context.store.accept(Message(direct.id, "direct"))
        for _ in range(600):
            await context.store.accept(Message(direct.id, "direct"))
        return [item.text for item in (await list_items(context, ListItemsRequest())).items]

    assert anyio.run(listed) == ["ours"]


def test_inbox_refuses_a_limit_below_one(context: OperationContext) -> None:
    with pytest.raises(InvalidUsage, match="above 0"):
        anyio.run(list_items, context, ListItemsRequest(limit=0))


def test_find_item_accepts_an_unambiguous_prefix(context: OperationContext) -> None:
    first = anyio.run(send, context, SendRequest(agent="ada", text="one"))

    assert anyio.run(show, context, ItemRequest(first.id[:10])) == first
    anyio.run(send, context, SendRequest(agent="ada", text="two"))
    with pytest.raises(InvalidUsage, match="several"):
        anyio.run(show, context, ItemRequest("itm_"))
    for text in ("itm_none", "", "~", "run_1"):
        with pytest.raises(NotFound):
            anyio.run(show, context, ItemRequest(text))


async def run_one(context: OperationContext, status: Any = "failed") -> ItemId:
    holder = await context.store.join("test")
    [claim] = await claim_lanes(context.store, holder.id)
    now = context.clock.now()
    await context.store.settle(claim, Finished(now, status))
    return claim.item.id


def test_retry_creates_one_new_item_even_if_it_is_repeated(context: OperationContext) -> None:
    async def again() -> list[Any]:
        file = Attachment("a.txt", "attachments/1", 3)
        payload = Payload((file,), {"of": "mine"})
        accepted = await context.store.accept(
            Message(ADA, "one", on_lost="fail", followup="steer", payload=payload)
        )
        old = accepted.item
        with pytest.raises(Conflict, match="queued"):
            await retry(context, RetryRequest(old.id))
        await run_one(context)
        first, second = [await retry(context, RetryRequest(old.id)) for _ in range(2)]
        new = await context.store.item(ItemId(first.id))
        assert first == second
        assert (new.text, new.on_lost, new.followup) == ("one", "fail", "steer")
        assert new.payload == replace(payload, retry_of=old.id)
        await run_one(context)
        third = await retry(context, RetryRequest(first.id))
        return [old.id, first, third]

    old, first, third = anyio.run(again)

    assert (first.retry_of, first.files) == (old, ("a.txt",))
    assert third.retry_of == first.id
    assert len({old, first.id, third.id}) == 3


def test_retry_failed_retries_each_failed_item_once_in_its_order(context: OperationContext) -> None:
    async def again() -> list[Any]:
        for text in ("one", "two", "three"):
            await context.store.accept(Message(ADA, text))
        failed = [await run_one(context) for _ in range(2)]
        await run_one(context, "completed")
        other = await retry(context, RetryRequest(failed[1]))
        first, second = [
            await retry_failed(context, RetryFailedRequest("ada", "today")) for _ in range(2)
        ]
        with pytest.raises(NotFound):
            await retry_failed(context, RetryFailedRequest("unknown"))
        return [failed, other, first, second]

    failed, other, first, second = anyio.run(again)

    assert other.retry_of == failed[1]
    assert [(item.retry_of, item.text) for item in first.items] == [(failed[0], "one")]
    assert second.items == ()


def test_retry_without_an_item_is_refused(context: OperationContext) -> None:
    with pytest.raises(InvalidUsage, match="--failed"):
        anyio.run(retry, context, RetryRequest())


def test_cancel_settles_a_queued_item_at_once(context: OperationContext) -> None:
    item = anyio.run(send, context, SendRequest(agent="ada", text="one"))

    found, again = [
        anyio.run(cancel, context, CancelRequest(item.id, why)) for why in ("enough", "more")
    ]

    assert (found.item, found.run, found.status, found.is_over) == (
        item.id,
        None,
        "cancelled",
        True,
    )
    assert again == found
    error = anyio.run(show, context, ItemRequest(item.id)).error
    assert error == ErrorFact("cancelled", "enough")


def test_cancel_waits_for_the_end_of_a_running_item(context: OperationContext) -> None:
    async def ask() -> list[Any]:
        item = await send(context, SendRequest(agent="ada", text="one"))
        holder = await context.store.join("test")
        [claim] = await claim_lanes(context.store, holder.id)
        run, now = claim.item.run, context.clock.now()
        assert run
        asked = await cancel(context, CancelRequest(run))
        found: list[Any] = [asked, (await context.store.item(ItemId(item.id))).cancel_requested]

        async def wait() -> None:
            found.append(await cancel(context, CancelRequest(item.id, wait_seconds=30)))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.lowlevel.checkpoint()
                ended = Finished(now, "cancelled", stop_reason="user_stop")
                await context.store.settle(claim, ended)
        found.append(await cancel(context, CancelRequest(run[:12])))
        return found

    asked, is_requested, waited, run = anyio.run(ask)

    assert (asked.status, asked.is_over, is_requested) == ("starting", False, True)
    assert (waited.status, waited.stop_reason) == ("cancelled", "user_stop")
    assert (run.status, run.is_over) == ("cancelled", True)


def test_cancel_does_not_find_an_unknown_id(context: OperationContext) -> None:
    for text in ("itm_1", "run_1", "ada", ""):
        with pytest.raises(NotFound):
            anyio.run(cancel, context, CancelRequest(text))
