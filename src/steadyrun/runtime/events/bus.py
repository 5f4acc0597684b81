"""Publishes events inside this process: stored ones after they were stored, live ones at once.

A subscriber that is too slow loses live events, never stored ones: it gets a signal to read them
from the store. `stream.py` combines both into one stream.
"""

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

from msgspec import Struct

from steadyrun.lib.signal import Signal
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.events.scrubber import LiveScrubber

# Beyond so many unread events, or bytes of them, a subscriber has to read from the store.
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 16 * 1024 * 1024


class StreamSignal(Enum):
    """Sent in place of events: the subscriber has to read them from the store."""

    RESYNC = auto()


BusMessage = LiveEvent | list[StoredEvent] | StreamSignal


class Subscription:
    """The messages that one subscriber has not read yet."""

    def __init__(self) -> None:
        # Each with its size in bytes.
        self._messages: deque[tuple[BusMessage, int]] = deque()
        self._waiting = self._waiting_bytes = 0
        self._changed = Signal()
        self.is_closed = False

    def put(self, message: BusMessage, size: int = 0) -> None:
        """Add a message; `size` is that of `measure_bytes`."""
        resync = StreamSignal.RESYNC
        if message is resync and self._messages and self._messages[-1][0] is resync:
            return
        self._waiting += _count_events(message)
        self._waiting_bytes += size
        if self._waiting > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            self._messages.clear()
            self._waiting, self._waiting_bytes, message, size = 1, 0, resync, 0
        self._messages.append((message, size))
        self._changed.notify()

    def close(self) -> None:
        self.is_closed = True
        self._changed.notify()

    async def next(self) -> BusMessage | None:
        """Wait for the next message; None once the subscription is closed and all are read."""
        while not self._messages and not self.is_closed:
            await self._changed.wait()
        if not self._messages:
            return None
        message, size = self._messages.popleft()
        self._waiting -= _count_events(message)
        self._waiting_bytes -= size
        return message


def _count_events(message: BusMessage) -> int:
    return len(message) if isinstance(message, list) else 1


def measure_bytes(value: object) -> int:
    """About how much memory the texts of a message take: nothing else in it can be large."""
    if isinstance(value, str | bytes):
        return sys.getsizeof(value)
    if isinstance(value, Struct):
        return sum(measure_bytes(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, dict):
        return sum(measure_bytes(key) + measure_bytes(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return sum(map(measure_bytes, value))
    return 0


class EventBus:
    """Sends the messages of all publishers of this process to its subscribers."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        subscription = Subscription()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    @property
    def has_subscribers(self) -> bool:
        return bool(self._subscriptions)

    def publish(self, message: BusMessage) -> None:
        if self._subscriptions:
            size = measure_bytes(message)
            for subscription in self._subscriptions:
                subscription.put(message, size)


class EventPublisher(EventBus):
    """Sends the messages of one agent to its own subscribers and to the bus.

    Secrets are removed from live events.
    """

    def __init__(self, scrubber: Scrubber, bus: EventBus) -> None:
        super().__init__()
        self._live, self._bus = LiveScrubber(scrubber), bus
        self._is_closed = False

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        with super().subscribe() as subscription:
            subscription.is_closed = self._is_closed
            yield subscription

    @property
    def has_subscribers(self) -> bool:
        return super().has_subscribers or self._bus.has_subscribers

    def publish(self, message: BusMessage) -> None:
        if not self.has_subscribers:
            return
        messages: list[BusMessage]
        if isinstance(message, LiveEvent):
            messages = [*self._live.scrub(message)]
        elif self._live.has_held:
            messages = [*self._live.flush(is_last=self._is_closed), message]
        else:
            messages = [message]
        for each in messages:
            super().publish(each)
            self._bus.publish(each)

    def close(self) -> None:
        """No more events will come; subscribers may still have to read stored ones."""
        self._is_closed = True
        self.publish(StreamSignal.RESYNC)
        for subscription in self._subscriptions:
            subscription.close()
