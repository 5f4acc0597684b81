"""How do deltas stay free of secrets? One may come in pieces: what could begin one is held back."""

from typing import Any

from msgspec.structs import replace

from steadyrun.model.event import LiveEvent, OutputRaw
from steadyrun.model.secret import Scrubber


class LiveScrubber:
    """Cleans the live events of one process, and keeps the end of each stream until it is plain."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._held: dict[str, LiveEvent] = {}

    def passed(self, live: LiveEvent) -> list[LiveEvent]:
        """The event with what was held back before it, as far as it can be told now."""
        stream = _stream(live)
        text = _text(self._held.pop(stream)) + _text(live) if stream in self._held else _text(live)
        end = self._scrubber.open_end(text)
        if end < len(text):
            self._held[stream] = _with_text(live, text[end:])
        return [_with_text(live, self._scrubber.clean(text[:end]))] if end else []

    def rest(self) -> list[LiveEvent]:
        """What was held back: nothing more comes that could make it a secret."""
        held, self._held = self._held, {}
        return [_with_text(live, self._scrubber.clean(_text(live))) for live in held.values()]


def _stream(live: LiveEvent) -> str:
    event = live.event
    kind = str(event.__struct_config__.tag)
    return f"{kind} {event.stream}" if isinstance(event, OutputRaw) else kind


def _text(live: LiveEvent) -> str:
    event: Any = live.event
    return str(event.text)


def _with_text(live: LiveEvent, text: str) -> LiveEvent:
    event: Any = live.event
    return live if event.text == text else replace(live, event=replace(event, text=text))
