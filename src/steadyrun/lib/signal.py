"""How does one task wait for another? By a bell, which weighs nearly nothing while nobody waits."""

import asyncio


class Signal:
    """Wakes all who wait for it, on one event loop.

    An Event of asyncio has room for many who wait from its beginning on, and each process that is
    heard needs some: with a thousand of them that is most of what they weigh.
    """

    __slots__ = ("_waiting", "rung")

    def __init__(self) -> None:
        # How often.
        self.rung = 0
        self._waiting: list[asyncio.Future[None]] | None = None

    def notify(self) -> None:
        self.rung += 1
        waiting, self._waiting = self._waiting, None
        for each in waiting or ():
            if not each.done():
                each.set_result(None)

    async def wait(self, since: int | None = None) -> None:
        """Wait for its next ring; not at all if it has rung more than `since` times already."""
        if since is not None and self.rung > since:
            return
        waits = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(waits)
        await waits
