"""Shows the status of the daemon and stops it. Both need the running daemon."""

from itertools import starmap
from typing import Annotated

import anyio.to_thread
from msgspec import Struct

from steadyrun.drivers.aside_mark import list_set_aside
from steadyrun.drivers.lineage import PROCESSES
from steadyrun.errors import DaemonUnreachable
from steadyrun.operations.context import DaemonView, OperationContext
from steadyrun.operations.documents import AsideDocument, StatusDocument, StoppedDocument
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
    documents = await build_agent_documents(context)
    marks = await anyio.to_thread.run_sync(list_set_aside, context.home / PROCESSES)
    aside = tuple(starmap(AsideDocument, marks))
    return StatusDocument(daemon.describe(), documents, gates, aside)


async def stop(context: OperationContext, request: StopDaemonRequest) -> StoppedDocument:
    return await require_daemon(context).stop(request.drain, keep=request.keep)


def require_daemon(context: OperationContext) -> DaemonView:
    if context.daemon is None:
        raise DaemonUnreachable(context.home, found="this process is not a daemon")
    return context.daemon
