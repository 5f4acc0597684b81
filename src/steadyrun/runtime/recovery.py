"""Finds the processes that a holder has left when it ended, for all its lanes at once.

A process that has done more than the store has is set aside: the store was restored from a backup.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from steadyrun.dialect import LaunchRequest
from steadyrun.driver import LaunchRecord
from steadyrun.errors import NotFound, StoreFailed
from steadyrun.model.event import Note
from steadyrun.model.ids import AgentId, ProcessId, RunId
from steadyrun.model.process import Process
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.log import log_event
from steadyrun.store import AbandonedLane, LaneSnapshot, Store

# Why a process is set aside: it has done more than the store has.
STORE_OLDER = "store_older"


class AbandonedProcess(Struct, frozen=True):
    """A process that was left, and what it was launched with."""

    process: Process
    request: LaunchRequest
    # None if the record could not be read: then it is read when the process is connected.
    snapshot: LaneSnapshot | None


class AbandonedProcesses(Struct, frozen=True):
    """The processes that can be adopted, and those that were set aside."""

    found: Mapping[ProcessId, AbandonedProcess]
    set_aside: AbstractSet[ProcessId] = frozenset()

    def list_notes(self, lane: AbandonedLane) -> list[Note]:
        """What the record of the lane's agent has to say about its processes."""
        return [
            Note(f"{each.id} was set aside: the store is older than the files of this process")
            for each in lane.processes
            if each.id in self.set_aside
        ]


async def find_abandoned(deps: Deps, lanes: Sequence[AbandonedLane]) -> AbandonedProcesses:
    """The processes that were left; one that was never started is not among them."""
    processes = [process for each in lanes for process in each.processes]
    if not processes:
        return AbandonedProcesses({})
    launched = await deps.launcher.read_launches(processes)
    set_aside = await _set_aside_newer(deps, lanes, launched)
    snapshots = await _load_snapshots(deps.store, lanes)
    found = {
        each.id: AbandonedProcess(each, launched[each.id].request, snapshots.get(each.agent))
        for each in processes
        if each.id in launched and each.id not in set_aside
    }
    return AbandonedProcesses(found, set_aside)


async def find_process(
    store: Store, lane: AbandonedLane, processes: AbandonedProcesses
) -> AbandonedProcess | None:
    """The process of a lane, if it can be adopted; one that cannot is closed."""
    found = None
    for process in lane.processes:
        if process.id in processes.found:
            log_event("process.adopted", agent=lane.agent.name, process=process.id)
            found = processes.found[process.id]
        else:
            await store.close_process(lane.lease, process.id)
    return found


async def set_aside_strays(deps: Deps) -> None:
    """Set aside the processes that the store does not have: they were started after the backup from
    which it was restored. A process is stored before it is started."""
    names = await deps.launcher.files.list_unmarked()
    stored = {each.id for each in await deps.store.processes(names)} if names else set()
    for name in names:
        if name not in stored and await deps.launcher.files.is_stray(name):
            log_event("process.set_aside", process=name, why=STORE_OLDER)
            await _set_aside(deps, name)


async def _set_aside(deps: Deps, process: ProcessId) -> None:
    await deps.launcher.files.mark_aside(process, STORE_OLDER)
    await deps.launcher.end_any(process)


async def _set_aside_newer(
    deps: Deps, lanes: Sequence[AbandonedLane], launched: Mapping[ProcessId, LaunchRecord]
) -> AbstractSet[ProcessId]:
    found = set()
    for lane in lanes:
        for process in lane.processes:
            launch = launched.get(process.id)
            if launch and not await _is_known(deps.store, lane, launch):
                log_event(
                    "process.set_aside", agent=lane.agent.name, process=process.id, why=STORE_OLDER
                )
                await _set_aside(deps, process.id)
                found.add(process.id)
    return found


async def _is_known(store: Store, lane: AbandonedLane, launch: LaunchRecord) -> bool:
    """Whether the store has everything that the process was asked to do. A run is stored before
    its turn is sent, so a turn without a run was sent after the backup."""
    if not launch.is_of_store or launch.last_turn is None:
        return launch.is_of_store
    if lane.run and lane.run.id == launch.last_turn:
        return True
    try:
        await store.run(RunId(launch.last_turn))
    except NotFound:
        return False
    return True


async def _load_snapshots(
    store: Store, lanes: Sequence[AbandonedLane]
) -> Mapping[AgentId, LaneSnapshot]:
    runs = {each.agent.id: each.run.id if each.run else None for each in lanes}
    try:
        return await store.lane_snapshots(runs)
    except StoreFailed as error:
        log_event("store.failed", phase="adopt", code=error.code)
        return {}
