"""What has a holder that is gone left? Asked for all its lanes at once, before any is taken up."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from steadyrun.dialect import LaunchRequest
from steadyrun.errors import StoreFailed
from steadyrun.model.ids import AgentId, ProcessId
from steadyrun.model.process import Process
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.log import log_event
from steadyrun.store import AbandonedLane, LaneSnapshot, Store


class AbandonedProcess(Struct, frozen=True):
    """A process that was left, and what it was launched with."""

    process: Process
    request: LaunchRequest
    # None: it could not be read. Whoever hears the process asks again.
    known: LaneSnapshot | None


async def look_for(
    around: Deps, lost: Sequence[AbandonedLane]
) -> dict[ProcessId, AbandonedProcess]:
    """The processes that were left; one that never was started is not among them."""
    processes = [process for each in lost for process in each.processes]
    if not processes:
        return {}
    launched = await around.drivers.read_requests(processes)
    known = await _known(around.store, lost)
    return {
        each.id: AbandonedProcess(each, launched[each.id], known.get(each.agent))
        for each in processes
        if each.id in launched
    }


async def _known(store: Store, lost: Sequence[AbandonedLane]) -> Mapping[AgentId, LaneSnapshot]:
    lanes = {each.agent.id: each.run.id if each.run else None for each in lost}
    try:
        return await store.lane_snapshots(lanes)
    except StoreFailed as error:
        log_event("store.failed", phase="adopt", code=error.code)
        return {}
