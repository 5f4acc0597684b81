"""Which operations are there? One table: the command line and the socket are made from it."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from msgspec import Struct

from steadyrun.operations import agents, approvals, costs, daemon, events, gates, items, runs
from steadyrun.operations import documents as doc
from steadyrun.operations.context import OperationContext

# Who may ask: whoever may look, whoever works with agents, whoever sets them up.
Scope = Literal["read", "operator", "admin"]
# Whether asking twice does it once: by a key that must, may or cannot be given.
Idempotency = Literal["required", "accepted", "none"]
# A "store" operation is done by whoever has the store; only a daemon can do the others.
Place = Literal["store", "daemon"]


class Operation(Struct, frozen=True, kw_only=True):
    """One thing that can be asked. `words` are its commands; a stream answers with a `Stream`."""

    name: str
    summary: str
    given: type[Struct]
    answer: type[Struct]
    do: Callable[[OperationContext, Any], Awaitable[Any]]
    scope: Scope
    idempotency: Idempotency = "none"
    place: Place = "store"
    is_stream: bool = False
    words: tuple[str, ...] = ()


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="agent.add", words=("agent add",), summary="add an agent",
        given=agents.AddAgent, answer=doc.AgentDocument, do=agents.add, scope="admin",
    ),
    Operation(
        name="agent.show", words=("agent show",), summary="show an agent",
        given=agents.ShowAgent, answer=doc.AgentPage, do=agents.show, scope="read",
    ),
    Operation(
        name="agent.set", words=("agent set",), summary="change an agent",
        given=agents.SetAgent, answer=doc.AgentDocument, do=agents.change, scope="admin",
    ),
    Operation(
        name="agent.rm", words=("agent rm",), summary="remove an agent; its record stays",
        given=agents.ShowAgent, answer=doc.RemovedDocument, do=agents.remove, scope="admin",
    ),
    Operation(
        name="agent.list", words=("agents",), summary="list agents and what they do",
        given=agents.ListAgents, answer=doc.AgentsDocument, do=agents.list_all, scope="read",
    ),
    Operation(
        name="agent.pause", words=("pause", "agent pause"),
        summary="give an agent nothing new; what runs goes on",
        given=agents.ChooseAgents, answer=doc.AgentsDocument, do=agents.pause, scope="operator",
    ),
    Operation(
        name="agent.resume", words=("resume", "agent resume"), summary="end a pause",
        given=agents.ChooseAgents, answer=doc.AgentsDocument, do=agents.resume, scope="operator",
    ),
    Operation(
        name="gate.list", words=("gate",), summary="show which providers may be used now",
        given=gates.ListGates, answer=doc.GatesDocument, do=gates.list_all, scope="read",
    ),
    Operation(
        name="gate.open", words=("gate open",), summary="let a provider be used again",
        given=gates.OpenGate, answer=doc.GatesDocument, do=gates.open_by_hand, scope="operator",
    ),
    Operation(
        name="gate.close", words=("gate close",), summary="give a provider nothing new",
        given=gates.CloseGate, answer=doc.GatesDocument, do=gates.close_by_hand, scope="operator",
    ),
    Operation(
        name="item.send", words=("send",), summary="send an agent a message",
        given=items.SendMessage, answer=doc.ItemDocument, do=items.send, scope="operator",
        idempotency="accepted",
    ),
    Operation(
        name="item.list", words=("inbox",), summary="list what agents were asked, newest first",
        given=items.ListItems, answer=doc.ItemsDocument, do=items.list_items, scope="read",
    ),
    Operation(
        name="item.show", summary="show what was asked, and what became of it",
        given=items.ChooseItem, answer=doc.ItemDocument, do=items.show, scope="read",
    ),
    Operation(
        name="item.cancel", words=("cancel",), summary="end a run, or what it shall do",
        given=runs.Cancel, answer=doc.CancelledDocument, do=runs.cancel, scope="operator",
    ),
    Operation(
        name="item.retry", words=("retry",), summary="ask the same once more",
        given=items.ChooseItem, answer=doc.ItemDocument, do=items.retry, scope="operator",
    ),
    Operation(
        name="approval.list", words=("approvals",), summary="list what agents ask, newest first",
        given=approvals.ListApprovals, answer=doc.ApprovalsDocument, do=approvals.list_all,
        scope="read",
    ),
    Operation(
        name="approval.approve", words=("approve",), summary="allow what an agent asks for",
        given=approvals.GiveApproval, answer=doc.ApprovalDocument, do=approvals.approve,
        scope="operator",
    ),
    Operation(
        name="approval.deny", words=("deny",), summary="deny what an agent asks for",
        given=approvals.DenyApproval, answer=doc.ApprovalDocument, do=approvals.deny,
        scope="operator",
    ),
    Operation(
        name="cost.show", words=("cost",), summary="show what was spent",
        given=costs.ShowCost, answer=doc.CostDocument, do=costs.show, scope="read",
    ),
    Operation(
        name="status", words=("status",), summary="show the daemon, its agents and gates",
        given=daemon.StatusRequest, answer=doc.StatusDocument, do=daemon.status, scope="read",
        place="daemon",
    ),
    Operation(
        name="daemon.stop", words=("down",), summary="end the daemon",
        given=daemon.Stop, answer=doc.Stopped, do=daemon.stop, scope="admin", place="daemon",
    ),
    Operation(
        name="events.follow", summary="tell every event as it comes",
        given=events.Follow, answer=doc.AsOf, do=events.follow, scope="read", place="daemon",
        is_stream=True,
    ),
)  # fmt: skip
BY_NAME: dict[str, Operation] = {operation.name: operation for operation in OPERATIONS}
