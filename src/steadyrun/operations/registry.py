"""The table of all operations. The command line and the socket are built from it."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from msgspec import Struct

from steadyrun.operations import agents, approvals, costs, daemon, events, gates, items, runs
from steadyrun.operations import documents as doc
from steadyrun.operations.context import OperationContext

# The right that a caller needs: to read, to send messages, to work with agents, or to configure
# them. A process of an agent has the first two.
OperationScope = Literal["read", "message", "operator", "admin"]
# Whether a repeated call has one effect only: by a key that is required, optional or not accepted.
Idempotency = Literal["required", "accepted", "none"]
# A "store" operation needs the store only. A "daemon" operation needs the running daemon.
OperationPlace = Literal["store", "daemon"]


class Operation(Struct, frozen=True, kw_only=True):
    """One operation. `words` are its commands. A stream operation returns an `EventFeed`."""

    name: str
    summary: str
    request: type[Struct]
    answer: type[Struct]
    do: Callable[[OperationContext, Any], Awaitable[Any]]
    scope: OperationScope
    idempotency: Idempotency = "none"
    place: OperationPlace = "store"
    is_stream: bool = False
    words: tuple[str, ...] = ()


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="agent.add", words=("agent add",), summary="add an agent", scope="admin",
        request=agents.AddAgentRequest, answer=doc.AgentDocument, do=agents.add,
    ),
    Operation(
        name="agent.show", words=("agent show",), summary="show an agent", scope="read",
        request=agents.AgentRequest, answer=doc.AgentPage, do=agents.show,
    ),
    Operation(
        name="agent.set", words=("agent set",), summary="change an agent", scope="admin",
        request=agents.SetAgentRequest, answer=doc.AgentDocument, do=agents.change,
    ),
    Operation(
        name="agent.rm", words=("agent rm",), scope="admin",
        summary="remove an agent and keep its runs and events",
        request=agents.AgentRequest, answer=doc.RemovedDocument, do=agents.remove,
    ),
    Operation(
        name="agent.list", words=("agents",), summary="list agents and their state", scope="read",
        request=agents.ListAgentsRequest, answer=doc.AgentsDocument, do=agents.list_agents,
    ),
    Operation(
        name="agent.pause", words=("pause", "agent pause"), scope="operator",
        summary="start no new runs for an agent; the current run continues",
        request=agents.AgentSelection, answer=doc.AgentsDocument, do=agents.pause,
    ),
    Operation(
        name="agent.resume", words=("resume", "agent resume"), scope="operator",
        summary="end the pause of an agent",
        request=agents.AgentSelection, answer=doc.AgentsDocument, do=agents.resume,
    ),
    Operation(
        name="gate.list", words=("gate",), summary="list gates of providers", scope="read",
        request=gates.ListGatesRequest, answer=doc.GatesDocument, do=gates.list_gates,
    ),
    Operation(
        name="gate.open", words=("gate open",), scope="operator",
        summary="allow new runs with a provider",
        request=gates.OpenGateRequest, answer=doc.GatesDocument, do=gates.open_gate,
    ),
    Operation(
        name="gate.close", words=("gate close",), scope="operator",
        summary="start no new runs with a provider",
        request=gates.CloseGateRequest, answer=doc.GatesDocument, do=gates.close_gate,
    ),
    Operation(
        name="item.send", words=("send",), summary="send a message to an agent", scope="message",
        request=items.SendRequest, answer=doc.ItemDocument, do=items.send,
        idempotency="accepted",
    ),
    Operation(
        name="item.list", words=("inbox",), scope="read",
        summary="list messages to agents, newest first",
        request=items.ListItemsRequest, answer=doc.ItemsDocument, do=items.list_items,
    ),
    Operation(
        name="item.show", summary="show one message and its result", scope="read",
        request=items.ItemRequest, answer=doc.ItemDocument, do=items.show,
    ),
    Operation(
        name="item.cancel", words=("cancel",), summary="cancel a run or an item", scope="operator",
        request=runs.CancelRequest, answer=doc.CancelledDocument, do=runs.cancel,
    ),
    Operation(
        name="item.retry", words=("retry",), scope="operator",
        summary="send a settled message again",
        request=items.RetryRequest, answer=doc.ItemDocument, do=items.retry,
    ),
    Operation(
        name="items.retry", summary="send all failed messages again", scope="operator",
        request=items.RetryFailedRequest, answer=doc.ItemsDocument, do=items.retry_failed,
    ),
    Operation(
        name="approval.list", words=("approvals",), scope="read",
        summary="list approval requests, newest first",
        request=approvals.ListApprovalsRequest, answer=doc.ApprovalsDocument,
        do=approvals.list_approvals,
    ),
    Operation(
        name="approval.approve", words=("approve",), scope="operator",
        summary="approve a request of an agent",
        request=approvals.ApproveRequest, answer=doc.ApprovalDocument, do=approvals.approve,
    ),
    Operation(
        name="approval.deny", words=("deny",), scope="operator",
        summary="deny a request of an agent",
        request=approvals.DenyRequest, answer=doc.ApprovalDocument, do=approvals.deny,
    ),
    Operation(
        name="cost.show", words=("cost",), summary="show tokens and costs", scope="read",
        request=costs.CostRequest, answer=doc.CostDocument, do=costs.show,
    ),
    Operation(
        name="status", words=("status",), scope="read", place="daemon",
        summary="show the daemon, its agents and closed gates",
        request=daemon.StatusRequest, answer=doc.StatusDocument, do=daemon.load_status,
    ),
    Operation(
        name="daemon.stop", words=("down",), summary="stop the daemon", scope="admin",
        request=daemon.StopDaemonRequest, answer=doc.StoppedDocument, do=daemon.stop,
        place="daemon",
    ),
    Operation(
        name="events.follow", summary="stream events as they happen", scope="read",
        request=events.FollowRequest, answer=doc.StreamStart, do=events.follow, place="daemon",
        is_stream=True,
    ),
)  # fmt: skip
BY_NAME: dict[str, Operation] = {operation.name: operation for operation in OPERATIONS}
