"""How long to wait before somebody who was out of reach is asked again? Longer each time."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from steadyrun.errors import StoreFailed

PAUSE_SECONDS = 0.5
_LONGEST_SECONDS = 30.0

Answer = TypeVar("Answer")


def longer(pause: float) -> float:
    """The pause that follows this one."""
    return min(2 * pause, _LONGEST_SECONDS)


async def written(
    verb: Callable[[], Awaitable[Answer]], is_worth_it: Callable[[StoreFailed], Awaitable[bool]]
) -> Answer:
    """Write, again and again while the store cannot be written and that may change."""
    pause = PAUSE_SECONDS
    while True:
        try:
            return await verb()
        except StoreFailed as error:
            if not await is_worth_it(error):
                raise
            await anyio.sleep(pause)
            pause = longer(pause)
