"""Hands runs without a living holder to a new holder in the background.

A command that is killed leaves its runs without a holder. The next command on the same home finds
them and starts `steadyrun hold`, which drives them to their end.
"""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from steadyrun.app.store import open_store
from steadyrun.config import Config
from steadyrun.drivers.keeper_client import is_alive
from steadyrun.model.process import Process
from steadyrun.store import MaintainedStore, Store

# How long a command waits until the new holder has recorded runs that have ended already.
SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.25


def start_holder() -> None:
    """Start a process that drives all abandoned runs, and ends when they have ended."""
    # Without -P, Python would import a package `steadyrun` of the current directory.
    command = [sys.executable, "-P", "-m", "steadyrun", "hold"]
    nowhere = subprocess.DEVNULL
    subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)


@asynccontextmanager
async def open_record(config: Config) -> AsyncIterator[MaintainedStore]:
    """Open the store for a command that reads it, and hand over abandoned runs."""
    async with open_store(config) as store:
        await hand_over_abandoned(config.locations.home, store)
        yield store


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
    for process in await store.processes():
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
    stored = await store.processes([process.id for process in processes])
    return any(process.closed_at is None for process in stored)
