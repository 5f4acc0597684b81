"""Lets tasks on one event loop wait for each other."""

import asyncio


class Signal:
    """Wakes all tasks that wait for it.

    An `asyncio.Event` allocates a queue for its waiters when it is created. The runtime has several
    signals per process; with a thousand processes those queues would be most of their memory. A
    Signal allocates only while a task waits.
    """

    __slots__ = ("_waiting", "count")

    def __init__(self) -> None:
        # How many notifications there were.
        self.count = 0
        self._waiting: list[asyncio.Future[None]] | None = None

    def notify(self) -> None:
        self.count += 1
        waiting, self._waiting = self._waiting, None
        for each in waiting or ():
            if not each.done():
                each.set_result(None)

    async def wait(self, since: int | None = None) -> None:
        """Wait for the next notification. Return at once if there were more than `since`."""
        if since is not None and self.count > since:
            return
        waits = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(waits)
        await waits
