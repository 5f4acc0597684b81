"""Every operation gives the same document in the process that has the store and over the socket."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Struct

from steadyrun.api import client, errors
from steadyrun.errors import SteadyrunError
from steadyrun.operations.agents import (
    AddAgentRequest,
    AgentRequest,
    AgentSelection,
    ListAgentsRequest,
    SetAgentRequest,
)
from steadyrun.operations.approvals import ApproveRequest, DenyRequest, ListApprovalsRequest
from steadyrun.operations.context import OperationContext
from steadyrun.operations.costs import CostRequest
from steadyrun.operations.daemon import StatusRequest, StopDaemonRequest
from steadyrun.operations.gates import CloseGateRequest, ListGatesRequest, OpenGateRequest
from steadyrun.operations.items import (
    ItemRequest,
    ListItemsRequest,
    RetryFailedRequest,
    SendRequest,
)
from steadyrun.operations.registry import BY_NAME, OPERATIONS, Operation
from steadyrun.operations.runs import CancelRequest
from steadyrun.testing.clock import FakeClock, make_ids
from tests.support.fake_daemon import open_context, serve_daemon

PATIENCE_SECONDS = 60.0
# What an operation answers, or why it does not.
Answers = list[tuple[str, Any]]
Way = Callable[[Operation, Struct], Awaitable[Any]]


def script(work: Path) -> list[tuple[str, Struct]]:
    """What is asked, in order. An item or run is named by what all of its kind begin with."""
    home = str(work)
    return [
        ("agent.list", ListAgentsRequest()),
        (
            "agent.add",
            AddAgentRequest(name="ada", provider="scripted", home=home, fallback=("shell",)),
        ),
        ("agent.add", AddAgentRequest(name="ada", provider="scripted", home=home)),
        ("agent.add", AddAgentRequest(name="bob", provider="missing", home=home)),
        ("agent.add", AddAgentRequest(name="bob", provider="shell", home=f"{home}/nowhere")),
        ("agent.add", AddAgentRequest(name="bob", provider="shell", home=home, role="none")),
        ("agent.set", SetAgentRequest(name="ada", model="m", mode="plan", clear=("fallback",))),
        ("agent.set", SetAgentRequest(name="eve", model="m")),
        ("agent.show", AgentRequest("ada")),
        ("item.send", SendRequest(agent="ada", text="first", key="k")),
        ("item.send", SendRequest(agent="ada", text="first", key="k")),
        ("item.show", ItemRequest("itm_")),
        ("item.retry", ItemRequest("itm_")),
        ("agent.pause", AgentSelection("ada")),
        ("item.list", ListItemsRequest("ada")),
        ("agent.rm", AgentRequest("ada")),
        ("status", StatusRequest()),
        ("item.cancel", CancelRequest("itm_")),
        ("item.cancel", CancelRequest("run_")),
        ("item.retry", ItemRequest("itm_")),
        ("items.retry", RetryFailedRequest(since="7d")),
        ("item.list", ListItemsRequest(all=True)),
        ("agent.resume", AgentSelection(all=True)),
        ("gate.close", CloseGateRequest("shell", 60.0, "the bill")),
        ("gate.list", ListGatesRequest()),
        ("gate.open", OpenGateRequest("shell")),
        ("approval.list", ListApprovalsRequest(all=True)),
        ("approval.approve", ApproveRequest("prc_")),
        ("approval.deny", DenyRequest("prc_", "no")),
        ("item.send", SendRequest(agent="ada", text="second", followup="queue")),
        ("agent.list", ListAgentsRequest()),
        ("cost.show", CostRequest()),
        ("cost.show", CostRequest("ada", by="day", since="7d")),
        ("daemon.stop", StopDaemonRequest(drain=2.0, keep=True)),
        ("status", StatusRequest()),
    ]


async def ask_all(work: Path, way: Way) -> Answers:
    answers: Answers = []
    for name, given in script(work):
        try:
            answer = await way(BY_NAME[name], given)
        except SteadyrunError as error:
            answer = errors.to_document(error)
        answers.append((name, json.loads(msgspec.json.encode(answer))))
    return answers


async def in_process(home: Path, work: Path) -> Answers:
    clock = FakeClock()
    async with open_context(home, clock=clock, ids=make_ids(clock, 7)) as (context, _):
        return await ask_all(work, lambda operation, given: operation.do(context, given))


async def over_socket(home: Path, work: Path) -> Answers:
    clock = FakeClock()
    with anyio.fail_after(PATIENCE_SECONDS):
        async with serve_daemon(home, clock=clock, ids=make_ids(clock, 7)):
            return await ask_all(
                work, lambda operation, given: client.call(home, operation, given)
            )  # fmt: skip


def test_operations_return_the_same_documents_in_process_and_over_the_socket(
    tmp_path: Path,
) -> None:
    here = anyio.run(in_process, tmp_path / "here", tmp_path)
    there = anyio.run(over_socket, tmp_path / "there", tmp_path)

    # Each names its own home, and nothing else.
    mine = json.loads(json.dumps(here).replace(str(tmp_path / "here"), str(tmp_path / "there")))
    assert mine == json.loads(json.dumps(there))


def test_comparison_covers_every_operation_except_the_stream(tmp_path: Path) -> None:
    named = {name for name, _ in script(tmp_path)}

    assert named == {each.name for each in OPERATIONS if not each.is_stream}


def test_operations_return_their_results_and_error_codes(tmp_path: Path) -> None:
    answers = anyio.run(in_process, tmp_path / "here", tmp_path)

    codes = [(name, answer.get("code")) for name, answer in answers if "code" in answer]
    assert codes == [
        ("agent.add", "name_taken"), ("agent.add", "usage"), ("agent.add", "agent_home_missing"),
        ("agent.add", "role_missing"), ("agent.set", "not_found"), ("item.retry", "conflict"),
        ("agent.rm", "conflict"), ("item.cancel", "not_found"),
        ("approval.approve", "not_found"), ("approval.deny", "not_found"),
    ]  # fmt: skip
    by_name: dict[str, list[Any]] = {}
    for name, answer in answers:
        by_name.setdefault(name, []).append(answer)
    first, again, second = by_name["item.send"]
    [agent] = by_name["agent.list"][-1]["agents"]
    assert first == again
    assert (first["waiting"], second["waiting"], second["followup"]) == ("slot", "turn", "queue")
    assert [item["status"] for item in by_name["item.list"][1]["items"]] == ["queued", "cancelled"]
    assert by_name["item.cancel"][0]["status"] == "cancelled"
    assert by_name["item.retry"][1]["retry_of"] == first["id"]
    assert (agent["state"], agent["queued"], agent["fallback"]) == ("idle", 2, [])
    assert by_name["daemon.stop"] == [{"stopped": 0, "kept": 0, "queued": 0}]
    assert [each["daemon"]["is_draining"] for each in by_name["status"]] == [False, True]
    assert by_name["status"][0]["gates"][0]["provider"] == "scripted"


def test_agent_show_without_a_daemon_lacks_only_the_process(tmp_path: Path) -> None:
    async def both() -> tuple[Any, Any]:
        async with open_context(tmp_path / "home") as (context, daemon):
            given = AddAgentRequest(name="ada", provider="scripted", home=str(tmp_path))
            added = await BY_NAME["agent.add"].do(context, given)
            daemon.processes[added.id] = "background"
            alone = OperationContext(
                context.store,
                context.clock,
                context.ids,
                context.home,
                context.abilities,
                context.enforce,
            )
            show = BY_NAME["agent.show"].do
            return await show(context, AgentRequest("ada")), await show(alone, AgentRequest("ada"))

    shown, alone = anyio.run(both)

    assert (shown.process, alone.process) == ("background", None)
    assert msgspec.structs.replace(shown, process=None) == alone


@pytest.mark.parametrize("name", ["status", "daemon.stop", "events.follow"])
def test_daemon_operation_is_refused_without_a_daemon(tmp_path: Path, name: str) -> None:
    async def ask() -> None:
        async with open_context(tmp_path / "home") as (context, _):
            alone = OperationContext(
                context.store,
                context.clock,
                context.ids,
                context.home,
                context.abilities,
                context.enforce,
            )
            operation = BY_NAME[name]
            await operation.do(alone, operation.request())

    with pytest.raises(SteadyrunError) as found:
        anyio.run(ask)

    assert (BY_NAME[name].place, found.value.code) == ("daemon", "daemon_unreachable")
