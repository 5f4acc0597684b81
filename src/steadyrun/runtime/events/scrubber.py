"""Removes secrets from live events. A secret may come in pieces, so the end of a stream that could
be the beginning of a secret is held back."""

from typing import Any

from msgspec.structs import replace

from steadyrun.model.event import LIVE_ONLY, LiveEvent, OutputRaw
from steadyrun.model.secret import Scrubber

_DELTAS = frozenset({"text.delta", "thinking.delta"})


class LiveScrubber:
    """Scrubs the live events of one process, and holds back the end of each stream until it is
    clear that no secret begins there."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._held: dict[str, LiveEvent] = {}

    @property
    def has_held(self) -> bool:
        """Whether any text is held back."""
        return bool(self._held)

    def scrub(self, live: LiveEvent) -> list[LiveEvent]:
        """Return the event, with the text that was held back before it, as far as that is safe."""
        if type(live.event) not in LIVE_ONLY:
            # It is no part of a stream.
            return [replace(live, event=self._scrubber.clean(live.event))]
        stream = _name_stream(live)
        if self._held:
            return [*self._end_other(stream), *self._scrub_delta(live, stream)]
        return self._scrub_delta(live, stream)

    def _end_other(self, stream: str) -> list[LiveEvent]:
        """A delta of text ends a stream of thinking, and the other way round."""
        ended = [name for name in self._held if {name, stream} <= _DELTAS and name != stream]
        return [self._release(self._held.pop(name)) for name in ended]

    def _scrub_delta(self, live: LiveEvent, stream: str) -> list[LiveEvent]:
        text = _read_text(live)
        if stream in self._held:
            text = _read_text(self._held.pop(stream)) + text
        end = self._scrubber.find_safe_end(text)
        if end < len(text):
            self._held[stream] = _with_text(live, text[end:])
        return [_with_text(live, self._clean(text[:end]))] if end else []

    def flush(self, *, is_last: bool = False) -> list[LiveEvent]:
        """Return the text that was held back: no text follows that could complete a secret.

        A stored event ends the deltas before it; raw output continues until `is_last`.
        """
        held, self._held = self._held, {}
        if not is_last:
            self._held = {name: live for name, live in held.items() if _is_raw(live)}
        ended = [live for name, live in held.items() if name not in self._held]
        return [self._release(live) for live in ended]

    def _release(self, live: LiveEvent) -> LiveEvent:
        return _with_text(live, self._clean(_read_text(live)))

    def _clean(self, text: str) -> str:
        is_suspect = self._scrubber.is_suspicious(text.encode(errors="replace"))
        return str(self._scrubber.clean(text)) if is_suspect else text


def _is_raw(live: LiveEvent) -> bool:
    return isinstance(live.event, OutputRaw)


def _name_stream(live: LiveEvent) -> str:
    event = live.event
    kind = str(event.__struct_config__.tag)
    return f"{kind} {event.stream}" if isinstance(event, OutputRaw) else kind


def _read_text(live: LiveEvent) -> str:
    event: Any = live.event
    return str(event.text)


def _with_text(live: LiveEvent, text: str) -> LiveEvent:
    event: Any = live.event
    return live if event.text == text else replace(live, event=replace(event, text=text))
