"""Drives direct runs in this process: of a command, or of `steadyrun hold` in the background."""

from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from steadyrun.app.abandoned_runs import hand_over_abandoned
from steadyrun.app.runtime import open_direct_runs
from steadyrun.cli.output.ask import deny_unattended
from steadyrun.config import load
from steadyrun.lib.task_group import task_group
from steadyrun.library import RunHandle
from steadyrun.model.event import ApprovalRequested
from steadyrun.model.ids import RunId
from steadyrun.runtime.direct_runs import DirectRuns


@asynccontextmanager
async def open_command_runs() -> AsyncIterator[DirectRuns]:
    """Open the runtime for a command. Abandoned runs go to a holder in the background, because
    this command may end before they do."""
    config = load()
    async with open_direct_runs(config, kind="command") as direct_runs:
        await hand_over_abandoned(config.locations.home, direct_runs.deps.store)
        yield direct_runs


async def hold(_: Namespace) -> int:
    """Drive all abandoned runs until they have ended: the hidden command `steadyrun hold`."""
    async with open_direct_runs(load(), kind="holder") as direct_runs:
        while adopted := await direct_runs.adopt_all():
            async with task_group() as driving:
                for run in adopted:
                    driving.start_soon(_drive_until_end, direct_runs, run)
    return 0


async def _drive_until_end(direct_runs: DirectRuns, run: RunId) -> None:
    async with task_group() as tasks:
        tasks.start_soon(_deny_all, RunHandle(direct_runs, run))
        await direct_runs.wait(run)
        tasks.cancel_scope.cancel()


async def _deny_all(run: RunHandle) -> None:
    """Deny every approval request: a background process cannot ask the user."""
    async with aclosing(run.events()) as events:
        async for seen in events:
            if isinstance(seen.event, ApprovalRequested):
                await deny_unattended(run, seen.event)
