"""A stream gives stored events once and in order, and no live event that comes too late."""

from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from steadyrun.model.event import (
    AnyEvent,
    Event,
    LiveEvent,
    OutputRaw,
    StoredEvent,
    TextDelta,
    make_event_id,
)
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.events.bus import EventBus, EventPublisher
from steadyrun.runtime.events.stream import stream_events, stream_run
from steadyrun.testing.store_conformance.fixtures import Working, set_working
from tests.conformance.test_stores import MemoryHarness


def _make_live(working: Working, offset: int, event: Event) -> LiveEvent:
    name = make_event_id(working.process, offset, 0)
    return LiveEvent(name, working.harness.clock.now(), "ada", working.run, "claude", event)


def _read_place(event: AnyEvent) -> str:
    kind = "stored" if isinstance(event, StoredEvent) else "live"
    return f"{kind} {event.id.partition(':')[2]}"


@pytest.mark.parametrize("is_of_one_run", [False, True])
def test_live_event_before_a_stored_event_that_was_read_is_left_out(
    tmp_path: Path, is_of_one_run: bool
) -> None:
    async def check() -> list[str]:
        working = await set_working(MemoryHarness(tmp_path))
        bus = EventBus()
        publisher = EventPublisher(Scrubber(), bus)
        await working.store.append(working.claim, working.make_batch(0, 10))
        stream = (
            stream_run(working.store, working.run, publisher)
            if is_of_one_run
            else stream_events(working.store, bus, 0)
        )
        async with aclosing(stream) as events:
            given = [await anext(events)]
            # The stream has read the text at 10 from the store. The bus delivers its parts now.
            for offset in (5, 10, 15):
                publisher.publish(_make_live(working, offset, TextDelta("part")))
            # Output on stderr has no place in the journal.
            publisher.publish(_make_live(working, 0, OutputRaw("stderr", "warning")))
            given += [await anext(events) for _ in range(2)]
        return [_read_place(event) for event in given]

    assert anyio.run(check) == ["stored 10.0", "live 15.0", "live 0.0"]
