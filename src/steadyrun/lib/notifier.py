"""Who is told that something has changed? Whoever waits for it; the record itself says what.

Hints may be lost, doubled or late; nothing depends on them but how soon somebody looks.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

import anyio

from steadyrun.lib.signal import Signal

# Hints may be lost: whoever waits looks again at least this often.
FALLBACK_POLL_SECONDS = 15.0


class Hint(IntEnum):
    """What a hint is about, the least first: who waits for one kind hears of those above, too."""

    EVENTS = 0
    # What is being done has changed.
    STATE = 1
    # There may be something to do: an item to run, or a wish of somebody.
    WORK = 2


class Waiter:
    """Somebody waiting for news of one agent or of all."""

    def __init__(self, of: Hint) -> None:
        self.lowest = of
        # Called at each hint, for whoever waits for other things as well.
        self.on_notify: Callable[[], None] = _do_nothing
        self._signal, self._seen = Signal(), 0

    def notify(self) -> None:
        self._signal.notify()
        self.on_notify()

    async def wait(self, limit_seconds: float = FALLBACK_POLL_SECONDS) -> bool:
        """Return at the next hint, True, or after the limit, False. Either way: look again."""
        with anyio.move_on_after(limit_seconds):
            await self._signal.wait(since=self._seen)
        before, self._seen = self._seen, self._signal.count
        return self._seen > before


class Notifier:
    """Who wants to hear of what."""

    def __init__(self) -> None:
        self._watches: dict[str | None, set[Waiter]] = {}
        # An engine that must do something to hear of other processes hangs it in here.
        self.on_watch: Callable[[], None] = _do_nothing

    @contextmanager
    def watch(self, agent: str | None, of: Hint = Hint.EVENTS) -> Iterator[Waiter]:
        """Register before reading, so that news between the reading and the waiting is heard. What
        another process writes is news for everybody."""
        self.on_watch()
        watch = Waiter(of)
        self._watches.setdefault(agent, set()).add(watch)
        try:
            yield watch
        finally:
            self._watches[agent].discard(watch)

    def notify(self, agents: Iterable[str], hint: Hint = Hint.WORK) -> None:
        """Tell those who watch one of `agents`, and those who watch everything: none is no news."""
        told = [*agents]
        for agent in (*told, None) if told else ():
            for watch in self._watches.get(agent, ()):
                if hint >= watch.lowest:
                    watch.notify()

    def notify_all(self) -> None:
        """Tell everybody: something changed and we cannot say what."""
        for watches in self._watches.values():
            for watch in watches:
                watch.notify()


def _do_nothing() -> None:
    """Nothing to do."""
