"""How is the daemon, and how does it end? Only itself can tell."""

from typing import Annotated

from msgspec import Struct

from steadyrun.errors import DaemonUnreachable
from steadyrun.operations.context import DaemonView, OperationContext
from steadyrun.operations.documents import StatusDocument, StoppedDocument
from steadyrun.operations.fields import arg
from steadyrun.operations.gates import build_gate_documents
from steadyrun.operations.lookup import build_agent_documents


class StatusRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """There is nothing to say."""


class StopDaemonRequest(Struct, frozen=True, forbid_unknown_fields=True):
    drain: Annotated[
        float | None,
        arg(
            "how long to wait for what runs (60s); 0s: not at all", metavar="DURATION", kind="wait"
        ),
    ] = None
    keep: Annotated[bool, arg("leave what runs to its keepers")] = False


async def load_status(desk: OperationContext, _: StatusRequest) -> StatusDocument:
    daemon = require_daemon(desk)
    agents = await desk.store.agents()
    gates = await build_gate_documents(desk, agents)
    return StatusDocument(daemon.state(), await build_agent_documents(desk), gates)


async def stop(desk: OperationContext, given: StopDaemonRequest) -> StoppedDocument:
    return await require_daemon(desk).stop(given.drain, keep=given.keep)


def require_daemon(desk: OperationContext) -> DaemonView:
    if desk.daemon is None:
        raise DaemonUnreachable(desk.home, found="this process is none")
    return desk.daemon
