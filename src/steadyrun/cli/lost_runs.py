"""Is there a run that nobody drives any more? It is handed to a holder in the background."""

import subprocess
import sys
from pathlib import Path

import anyio

from steadyrun.drivers.keeper_client import is_alive
from steadyrun.model.process import Process
from steadyrun.store import Store
from steadyrun.stores.sqlite.db.liveness import Liveness

# How long a command waits for the end of what has ended already to be written down.
SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.25


def start_holder() -> None:
    """Start a process that drives what nobody drives, and ends when that is over."""
    # Without -P a package in the present directory could take our place.
    command = [sys.executable, "-P", "-m", "steadyrun", "hold"]
    nowhere = subprocess.DEVNULL
    subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)


async def hand_over_abandoned(home: Path, store: Store) -> None:
    """Have lost runs driven; those whose process is gone are taken in to their end at once."""
    lost = await _find_abandoned(home, store)
    if not lost and not await _has_dead_holder(home, store):
        return
    start_holder()
    ended = [process for process in lost if not is_alive(home / "processes" / process.id)]
    with anyio.move_on_after(SETTLE_SECONDS), store.hints.watch(None) as watch:
        while await _has_open(store, ended) or await _has_dead_holder(home, store):
            await watch.wait(_POLL_SECONDS)


async def _find_abandoned(home: Path, store: Store) -> list[Process]:
    """The processes of direct runs that nobody drives; lasting agents are the daemon's."""
    presence = Liveness(home / "holders")
    found = []
    for process in await store.open_processes():
        lane = await store.lane(process.agent)
        is_alone = lane.holder is not None and not presence.is_alive(lane.holder)
        if is_alone and (await store.agent(process.agent)).is_direct:
            found.append(process)
    return found


async def _has_dead_holder(home: Path, store: Store) -> bool:
    """Whether somebody was killed and nobody has looked yet what that one has left: it may be a run
    that has no process yet."""
    presence = Liveness(home / "holders")
    return any(
        holder.kind != "daemon" and not presence.is_alive(holder.id)
        for holder in await store.holders()
    )


async def _has_open(store: Store, processes: list[Process]) -> bool:
    for process in processes:
        if (await store.process(process.id)).closed_at is None:
            return True
    return False
