"""When is nothing more to be waited for? No turn is open, and no offer that may come to be one."""

from typing import Protocol

import anyio

from steadyrun.runtime.agent.process import LiveProcess
from steadyrun.runtime.run.active_run import ActiveRun
from steadyrun.runtime.run.timeouts import Timeouts


class Running(Protocol):
    """Where runs go on, one after the other."""

    runner: ActiveRun | None


async def until_quiet(seat: Running, live: LiveProcess, limits: Timeouts) -> None:
    """Wait for the end of what runs, and until nothing is offered that could begin a turn: what
    stays open too long is called back. A turn has the clocks of its run, and no other."""
    # What an earlier holder had offered is known only then.
    await live.until_reached()
    while not live.is_gone:
        await _until_over(seat, live)
        if await _begins(seat, live, limits.offer):
            continue
        if live.offers.open and not live.is_gone:
            await live.offers.recall()
            if await _begins(seat, live, limits.interrupt):
                continue
        return


async def _until_over(seat: Running, live: LiveProcess) -> None:
    while not _is_over(seat) and not live.is_gone:
        await live.changed()


async def _begins(seat: Running, live: LiveProcess, limit: float | None) -> bool:
    """Whether what was offered begins a turn, before the limit and before all is settled."""
    with anyio.move_on_after(limit or None):
        while live.offers.open and _is_over(seat) and not live.is_gone:
            await live.changed()
    return not _is_over(seat) and not live.is_gone


def _is_over(seat: Running) -> bool:
    return seat.runner is None or seat.runner.is_over
