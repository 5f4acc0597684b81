"""Notifies waiters that something has changed; the store has the change itself.

Hints may be lost, repeated or late: only the delay until a waiter reads the store depends on them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

import anyio

from steadyrun.lib.signal import Signal

# Hints may be lost: a waiter reads the store at least this often.
FALLBACK_POLL_SECONDS = 15.0


class Hint(IntEnum):
    """The kinds of hints, in order: a waiter for one kind also gets the kinds above it."""

    EVENTS = 0
    # The state of a lane has changed.
    STATE = 1
    # There may be work: an item to run, or a request of a user.
    WORK = 2


class Waiter:
    """Waits for hints about one agent or all agents."""

    def __init__(self, of: Hint) -> None:
        self.lowest = of
        # Called at each hint, for a task that also waits for other things.
        self.on_notify: Callable[[], None] = _do_nothing
        self._signal, self._seen = Signal(), 0

    def notify(self) -> None:
        self._signal.notify()
        self.on_notify()

    async def wait(self, limit_seconds: float = FALLBACK_POLL_SECONDS) -> bool:
        """Return True at the next hint, or False after the limit. In both cases read the store."""
        with anyio.move_on_after(limit_seconds):
            await self._signal.wait(since=self._seen)
        before, self._seen = self._seen, self._signal.count
        return self._seen > before


class Notifier:
    """The waiters by agent."""

    def __init__(self) -> None:
        self._watches: dict[str | None, set[Waiter]] = {}
        # Set by an engine that must act to learn of changes by other processes.
        self.on_watch: Callable[[], None] = _do_nothing

    @contextmanager
    def watch(self, agent: str | None, of: Hint = Hint.EVENTS) -> Iterator[Waiter]:
        """Register before reading, so that no change between the read and the wait is missed. A
        change by another process notifies all waiters."""
        self.on_watch()
        watch = Waiter(of)
        self._watches.setdefault(agent, set()).add(watch)
        try:
            yield watch
        finally:
            self._watches[agent].discard(watch)

    def notify(self, agents: Iterable[str], hint: Hint = Hint.WORK) -> None:
        """Notify the waiters for one of `agents` and those for all; without agents, none."""
        names = [*agents]
        for agent in (*names, None) if names else ():
            for watch in self._watches.get(agent, ()):
                if hint >= watch.lowest:
                    watch.notify()

    def notify_all(self) -> None:
        """Notify all waiters: something unknown has changed."""
        for watches in self._watches.values():
            for watch in watches:
                watch.notify()


def _do_nothing() -> None:
    """Nothing to do."""
