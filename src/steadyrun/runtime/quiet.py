"""When is nothing more to be waited for? No turn is open, and no offer that may come to be one."""

from typing import Protocol

import anyio

from steadyrun.runtime.clocks import ClockLimits
from steadyrun.runtime.process import LiveProcess
from steadyrun.runtime.runner import Runner


class Running(Protocol):
    """Where runs go on, one after the other."""

    runner: Runner | None


async def until_quiet(seat: Running, live: LiveProcess, limits: ClockLimits) -> None:
    """Wait for the end of the turn and of what was offered to it; what stays open too long is
    called back."""
    # What an earlier holder had offered is known only then.
    await live.until_reached()
    while not _is_over(seat) and not live.is_gone:
        await live.changed()
    await _wait_for_offers(seat, live, limits.offer)
    if live.offers.open and not live.is_gone:
        await live.offers.recall()
        await _wait_for_offers(seat, live, limits.interrupt)


async def _wait_for_offers(seat: Running, live: LiveProcess, limit: float | None) -> None:
    with anyio.move_on_after(limit or None):
        while (live.offers.open or not _is_over(seat)) and not live.is_gone:
            await live.changed()


def _is_over(seat: Running) -> bool:
    return seat.runner is None or seat.runner.is_over
