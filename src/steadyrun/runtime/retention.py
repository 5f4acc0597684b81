"""Deletes old events and texts in small steps, with pauses in which other writers write."""

import anyio

from steadyrun.errors import StoreFailed
from steadyrun.lib.clock import Clock
from steadyrun.model.retention import (
    PruneCounts,
    PrunePosition,
    RetentionLimits,
    RetentionPeriods,
)
from steadyrun.runtime.log import log_event
from steadyrun.store import Maintenance

PRUNE_SECONDS = 3600.0
_PAUSE_SECONDS = 0.01


async def prune_regularly(store: Maintenance, clock: Clock, periods: RetentionPeriods) -> None:
    """Prune at once and then once an hour: run this in a task."""
    while not periods.is_endless:
        try:
            counts = await prune_all(store, periods.to_limits(clock.now()))
            if counts != PruneCounts():
                await release_all_space(store)
                log_event("store.pruned", events=counts.events, texts=counts.texts)
        except StoreFailed as error:
            # The next pruning does the rest.
            log_event("store.failed", phase="prune", code=error.code)
        await anyio.sleep(PRUNE_SECONDS)


async def prune_all(
    store: Maintenance, limits: RetentionLimits, *, is_dry: bool = False
) -> PruneCounts:
    """Delete all that is beyond the limits, or count it."""
    counts, position = PruneCounts(), PrunePosition()
    while True:
        step = await store.prune(limits, position, is_dry=is_dry)
        counts += step.counts
        if step.next is None:
            return counts
        position = step.next
        await anyio.sleep(0.0 if is_dry else _PAUSE_SECONDS)


async def release_all_space(store: Maintenance) -> None:
    """Give the space of what was deleted back to the file system."""
    left = await store.release_space()
    while left:
        await anyio.sleep(_PAUSE_SECONDS)
        left = await store.release_space()
