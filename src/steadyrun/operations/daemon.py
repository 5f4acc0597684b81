"""Shows the status of the daemon and stops it. Both need the running daemon."""

from typing import Annotated

from msgspec import Struct

from steadyrun.errors import DaemonUnreachable
from steadyrun.operations.context import DaemonView, OperationContext
from steadyrun.operations.documents import StatusDocument, StoppedDocument
from steadyrun.operations.fields import arg
from steadyrun.operations.gates import build_gate_documents
from steadyrun.operations.views import build_agent_documents


class StatusRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The request has no fields."""


class StopDaemonRequest(Struct, frozen=True, forbid_unknown_fields=True):
    drain: Annotated[
        float | None,
        arg(
            "how long to wait for current runs (60s); 0s: do not wait",
            metavar="DURATION",
            kind="wait",
        ),
    ] = None
    keep: Annotated[bool, arg("keep current runs alive for the next daemon")] = False


async def load_status(context: OperationContext, _: StatusRequest) -> StatusDocument:
    daemon = require_daemon(context)
    agents = await context.store.agents()
    gates = await build_gate_documents(context, agents)
    return StatusDocument(daemon.describe(), await build_agent_documents(context), gates)


async def stop(context: OperationContext, request: StopDaemonRequest) -> StoppedDocument:
    return await require_daemon(context).stop(request.drain, keep=request.keep)


def require_daemon(context: OperationContext) -> DaemonView:
    if context.daemon is None:
        raise DaemonUnreachable(context.home, found="this process is not a daemon")
    return context.daemon
