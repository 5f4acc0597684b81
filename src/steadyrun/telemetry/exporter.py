"""Exports runs to a collector: it reads the record and sends each span once, in batches.

No run waits for the export, so a collector that is slow, unreachable or refuses spans has no effect
on runs. The position up to which the record is exported is stored, too.
"""

from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.to_thread
import msgspec

from steadyrun.errors import NotFound, StoreFailed
from steadyrun.lib.notifier import Hint
from steadyrun.lib.signal import Signal
from steadyrun.model.event import RunStarted, StoredEvent
from steadyrun.model.ids import ItemId
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.log import log_bug, log_event
from steadyrun.store import Store
from steadyrun.telemetry.spans import INPUT, ITEM, SpanBuilder, SpanData, encode_message

CURSOR = "telemetry/cursor"
# The largest number of spans in a batch.
MOST_SENT = 100
# The seconds between tries; after the last one a batch is dropped.
WAITS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 60.0, 60.0)
# The end of a tool call notifies no watcher of states: it is found by polling.
_LOOK_SECONDS = 2.0
# Spans that end within this time are sent together.
_GATHER_SECONDS = 0.5
_PAGE = 500


# Sends spans to a collector and returns whether they were accepted. It is called in a thread, never
# twice at once, and may take seconds.
SendSpans = Callable[[Sequence[SpanData]], bool]


class Exporter:
    """Follows the record of all agents. The first export of a home begins at the present end."""

    def __init__(
        self,
        store: Store,
        send: SendSpans,
        scrubber: Scrubber,
        *,
        content: bool = False,
        kinds: Mapping[str, str] | None = None,
        waits: Sequence[float] = WAITS,
    ) -> None:
        self._store, self._send_spans, self._scrubber = store, send, scrubber
        self._content, self._waits = content, waits
        self._spans = SpanBuilder(content=content, kinds=kinds)
        self._ready: list[SpanData] = []
        # The cursor of the last event that was read.
        self._cursor = 0
        self._changed, self._ending = Signal(), anyio.Event()

    async def begin(self) -> None:
        """Find the position to continue from."""
        if found := await self._store.get(CURSOR):
            self._cursor = msgspec.json.decode(found, type=int)
            return
        last = await self._store.events(limit=1, newest=True)
        self._cursor = last[-1].cursor if last else 0
        await self._save_cursor()

    async def run(self) -> None:
        """Export until `end`. An unexpected error is logged and affects no run."""
        with self._store.hints.watch(None, Hint.STATE) as watch:
            watch.on_notify = self._changed.notify
            try:
                await self._run()
            except Exception as error:  # noqa: BLE001 (it must affect no run)
                log_bug(error)

    def end(self) -> None:
        """Let `run` return once all stored events were offered to the collector."""
        self._ending.set()
        self._changed.notify()

    async def _run(self) -> None:
        while True:
            seen = self._changed.count
            is_last = self._ending.is_set()
            has_more = await self._step()
            if is_last and not has_more:
                return
            if not has_more and not self._ending.is_set():
                with anyio.move_on_after(_LOOK_SECONDS):
                    await self._changed.wait(since=seen)
                await _wait(self._ending, _GATHER_SECONDS)

    async def _step(self) -> bool:
        """Send the spans of one page of the record; False if there was none, or if it failed."""
        try:
            page = await self._store.events(self._cursor, limit=_PAGE)
            for seen in page:
                self._ready += await self._read_event(seen)
                self._cursor = seen.cursor
            if page and await self._deliver():
                await self._save_cursor()
        except StoreFailed as error:
            log_event("store.failed", error=error.code)
            return False
        return bool(page) and not self._ready

    async def _save_cursor(self) -> None:
        await self._store.put(CURSOR, msgspec.json.encode(self._cursor))

    async def _read_event(self, seen: StoredEvent) -> list[SpanData]:
        """Read an event. The earlier events of its run are read first, if they are missing."""
        run = seen.run
        if run is None:
            return []
        if not self._spans.has_open(run) and not isinstance(seen.event, RunStarted):
            for each in await self._read_earlier(seen):
                self._spans.read(each)
        found = self._spans.read(seen)
        return [await self._finish_span(span) for span in found]

    async def _read_earlier(self, seen: StoredEvent) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        after = 0
        while page := await self._store.events(after, run=seen.run, limit=_PAGE):
            found += (each for each in page if each.cursor < seen.cursor)
            after = page[-1].cursor
        return found

    async def _finish_span(self, span: SpanData) -> SpanData:
        """Add the text of the message, if content is exported, and remove secrets."""
        attributes = dict(span.attributes)
        item = attributes.get(ITEM)
        if self._content and span.parent is None and isinstance(item, str):
            try:
                asked = await self._store.item(ItemId(item))
            except NotFound:
                pass
            else:
                attributes[INPUT] = encode_message("user", asked.text)
        name, attributes = self._scrubber.clean((span.name, attributes))
        return msgspec.structs.replace(span, name=name, attributes=attributes)

    async def _deliver(self) -> bool:
        """Send all spans that are ready; False if the export ends before they are accepted."""
        while self._ready:
            batch = self._ready[:MOST_SENT]
            if not await self._send(batch):
                if self._ending.is_set():
                    return False
                log_event("telemetry.dropped", spans=len(batch))
            del self._ready[: len(batch)]
        return True

    async def _send(self, batch: list[SpanData]) -> bool:
        for tries, wait in enumerate((*self._waits, 0.0)):
            # The thread is abandoned if the export ends: the collector has its own timeout.
            in_thread = anyio.to_thread.run_sync
            if await in_thread(self._send_spans, batch, abandon_on_cancel=True):
                return True
            if not tries:
                log_event("telemetry.failed", spans=len(batch))
            if self._ending.is_set():
                return False
            await _wait(self._ending, wait)
        return False


async def _wait(event: anyio.Event, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await event.wait()
