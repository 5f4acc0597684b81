"""Finds the processes that a dead holder has left, for all its lanes at once."""

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
    # None if the record could not be read: then it is read when the process is connected.
    snapshot: LaneSnapshot | None


async def find_abandoned(
    deps: Deps, lanes: Sequence[AbandonedLane]
) -> dict[ProcessId, AbandonedProcess]:
    """The processes that were left; one that was never started is not among them."""
    processes = [process for each in lanes for process in each.processes]
    if not processes:
        return {}
    launched = await deps.launcher.read_requests(processes)
    snapshots = await _load_snapshots(deps.store, lanes)
    return {
        each.id: AbandonedProcess(each, launched[each.id], snapshots.get(each.agent))
        for each in processes
        if each.id in launched
    }


async def find_process(
    store: Store, lane: AbandonedLane, processes: Mapping[ProcessId, AbandonedProcess]
) -> AbandonedProcess | None:
    """The process of a lane, if it was ever started; one that was not is closed."""
    found = None
    for process in lane.processes:
        if process.id in processes:
            log_event("process.adopted", agent=lane.agent.name, process=process.id)
            found = processes[process.id]
        else:
            await store.close_process(lane.lease, process.id)
    return found


async def _load_snapshots(
    store: Store, lanes: Sequence[AbandonedLane]
) -> Mapping[AgentId, LaneSnapshot]:
    runs = {each.agent.id: each.run.id if each.run else None for each in lanes}
    try:
        return await store.lane_snapshots(runs)
    except StoreFailed as error:
        log_event("store.failed", phase="adopt", code=error.code)
        return {}
