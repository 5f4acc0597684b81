"""Hands runs without a living holder to a new holder in the background.

A command that is killed leaves its runs without a holder. The next command on the same home finds
them and starts `steadyrun hold`, which drives them to their end.
"""

import subprocess
import sys
from pathlib import Path

import anyio

from steadyrun.drivers.keeper_client import is_alive
from steadyrun.model.process import Process
from steadyrun.store import Store

# How long a command waits until the new holder has recorded runs that have ended already.
SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.25


def start_holder() -> None:
    """Start a process that drives all abandoned runs, and ends when they have ended."""
    # Without -P, Python would import a package `steadyrun` of the current directory.
    command = [sys.executable, "-P", "-m", "steadyrun", "hold"]
    nowhere = subprocess.DEVNULL
    subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)


async def hand_over_abandoned(home: Path, store: Store) -> None:
    """Start a holder if there are abandoned runs. Wait for the end of those without a process."""
    abandoned = await _find_abandoned(store)
    if not abandoned and not await _has_dead_holder(store):
        return
    start_holder()
    ended = [process for process in abandoned if not is_alive(home / "processes" / process.id)]
    with anyio.move_on_after(SETTLE_SECONDS), store.hints.watch(None) as watch:
        while await _has_open(store, ended) or await _has_dead_holder(store):
            await watch.wait(_POLL_SECONDS)


async def _find_abandoned(store: Store) -> list[Process]:
    """Find the processes of direct runs whose holder is not alive. The daemon recovers the
    processes of lasting agents."""
    living = {holder.id for holder in await store.holders() if holder.is_alive}
    found = []
    for process in await store.open_processes():
        lane = await store.lane(process.agent)
        is_abandoned = lane.holder is not None and lane.holder not in living
        if is_abandoned and (await store.agent(process.agent)).is_direct:
            found.append(process)
    return found


async def _has_dead_holder(store: Store) -> bool:
    """Return whether a command or a background holder was killed and its lanes were not taken over
    yet. One of them may have a run that has no process yet."""
    return any(holder.kind != "daemon" and not holder.is_alive for holder in await store.holders())


async def _has_open(store: Store, processes: list[Process]) -> bool:
    for process in processes:
        if (await store.process(process.id)).closed_at is None:
            return True
    return False
