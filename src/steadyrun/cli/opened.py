"""What does a command need that starts or reaches runs? Everything but the runs of others."""

import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from steadyrun.app.runtime import open_runtime
from steadyrun.cli.lost_runs import hand_over_abandoned
from steadyrun.config import load
from steadyrun.lib.task_group import task_group
from steadyrun.runtime.direct_runs import DirectRuns


@asynccontextmanager
async def open_direct_runs() -> AsyncIterator[DirectRuns]:
    """Hold nothing yet. What nobody drives is for a holder in the background: it would be let go
    of again when this command ends."""
    config = load()
    async with (
        open_runtime(config, kind="command", machine=platform.node()) as around,
        task_group() as tasks,
    ):
        await hand_over_abandoned(config.places.home, around.store)
        yield DirectRuns(around, tasks)
        tasks.cancel_scope.cancel()
