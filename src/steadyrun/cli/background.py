"""Who drives a run that was left alone? This process, in the background, until it is over."""

import platform
from argparse import Namespace
from contextlib import aclosing

import anyio

from steadyrun.app.runtime import open_runtime
from steadyrun.cli.output.ask import deny_unattended
from steadyrun.config import load
from steadyrun.lib.task_group import task_group
from steadyrun.library import RunHandle
from steadyrun.model.event import ApprovalRequested
from steadyrun.model.ids import RunId
from steadyrun.runtime.direct_runs import DirectRuns


def hold(_: Namespace) -> int:
    anyio.run(_hold)
    return 0


async def _hold() -> None:
    async with (
        open_runtime(load(), kind="holder", machine=platform.node()) as around,
        task_group() as tasks,
    ):
        holding = DirectRuns(around, tasks)
        while runs := await holding.adopt():
            async with task_group() as watching:
                for run in runs:
                    watching.start_soon(_drive_until_end, holding, run)
        # What it was here for is over.
        tasks.cancel_scope.cancel()


async def _drive_until_end(holding: DirectRuns, run: RunId) -> None:
    async with task_group() as watching:
        watching.start_soon(_deny_all, RunHandle(holding, run))
        await holding.wait(run)
        watching.cancel_scope.cancel()


async def _deny_all(run: RunHandle) -> None:
    """Nobody can be asked here."""
    async with aclosing(run.events()) as events:
        async for seen in events:
            if isinstance(seen.event, ApprovalRequested):
                await deny_unattended(run, seen.event)
