"""The library with a clock that can be put forward: half an hour is too long for a test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import msgspec

from steadyrun.app.runtime import open_runtime
from steadyrun.config import Config
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.task_group import task_group
from steadyrun.library import Steadyrun
from steadyrun.runtime.direct_runs import DirectRuns
from tests.support.real_cli_harness import TIMEOUT_SECONDS


class AdjustableClock(SystemClock):
    """The machine's clock, put forward by hand."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


def with_timeouts(config: Config, **seconds: float) -> Config:
    """The configuration with other `[clocks]`."""
    clocks = msgspec.structs.replace(config.settings.clocks, **seconds)
    settings: Any = msgspec.structs.replace(config.settings, clocks=clocks)
    return replace(config, settings=settings)


@asynccontextmanager
async def library_with_clock(config: Config, clock: AdjustableClock) -> AsyncIterator[Steadyrun]:
    with anyio.fail_after(TIMEOUT_SECONDS):
        async with (
            open_runtime(config, kind="test", machine="here") as around,
            task_group() as tasks,
        ):
            yield Steadyrun(DirectRuns(replace(around, clock=clock), tasks))
            tasks.cancel_scope.cancel()
