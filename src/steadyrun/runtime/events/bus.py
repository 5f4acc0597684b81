"""Publishes events inside this process: stored ones after they were stored, live ones at once.

A subscriber that is too slow loses live events, never stored ones: it gets a signal to read them
from the store. `stream.py` combines both into one stream.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

from steadyrun.lib.signal import Signal
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.events.scrubber import LiveScrubber

# Beyond this many unread events a subscriber has to read from the store.
MAX_WAITING = 20_000


class StreamSignal(Enum):
    """Sent in place of events: the subscriber has to read them from the store."""

    RESYNC = auto()


BusMessage = LiveEvent | list[StoredEvent] | StreamSignal


class Subscription:
    """The messages that one subscriber has not read yet."""

    def __init__(self) -> None:
        self._messages: deque[BusMessage] = deque()
        self._waiting = 0
        self._changed = Signal()
        self.is_closed = False

    def put(self, message: BusMessage) -> None:
        resync = StreamSignal.RESYNC
        if message is resync and self._messages and self._messages[-1] is resync:
            return
        self._waiting += len(message) if isinstance(message, list) else 1
        if self._waiting > MAX_WAITING:
            self._messages.clear()
            self._waiting, message = 1, resync
        self._messages.append(message)
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
        message = self._messages.popleft()
        self._waiting -= len(message) if isinstance(message, list) else 1
        return message


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
        for subscription in self._subscriptions:
            subscription.put(message)


class EventPublisher:
    """Sends the messages of one agent to its own subscribers and to the bus.

    Secrets are removed from live events.
    """

    def __init__(self, scrubber: Scrubber, bus: EventBus | None = None) -> None:
        self._live = LiveScrubber(scrubber)
        self._bus = bus or EventBus()
        self._subscriptions: set[Subscription] = set()
        self._is_closed = False

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        subscription = Subscription()
        subscription.is_closed = self._is_closed
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    @property
    def has_subscribers(self) -> bool:
        return bool(self._subscriptions) or self._bus.has_subscribers

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
            for subscription in self._subscriptions:
                subscription.put(each)
            self._bus.publish(each)

    def close(self) -> None:
        """No more events will come; subscribers may still have to read stored ones."""
        self._is_closed = True
        self.publish(StreamSignal.RESYNC)
        for subscription in self._subscriptions:
            subscription.close()
