"""How do deltas stay free of secrets? One may come in pieces: what could begin one is held back."""

from typing import Any

from msgspec.structs import replace

from steadyrun.model.event import LIVE_ONLY, LiveEvent, OutputRaw
from steadyrun.model.secret import Scrubber


class LiveScrubber:
    """Cleans the live events of one process, and keeps the end of each stream until it is plain."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._held: dict[str, LiveEvent] = {}

    @property
    def held(self) -> bool:
        """Whether anything is held back."""
        return bool(self._held)

    def passed(self, live: LiveEvent) -> list[LiveEvent]:
        """The event with what was held back before it, as far as it can be told now."""
        if type(live.event) not in LIVE_ONLY:
            # No part of a stream.
            return [replace(live, event=self._scrubber.clean(live.event))]
        stream = _stream(live)
        if self._held:
            return [*self._ended_by(stream), *self._passed(live, stream)]
        return self._passed(live, stream)

    def _ended_by(self, stream: str) -> list[LiveEvent]:
        """Who goes on to speak has ended a thought, and the other way round."""
        ended = [name for name in self._held if {name, stream} <= _WORDS and name != stream]
        return [self._let_go(self._held.pop(name)) for name in ended]

    def _passed(self, live: LiveEvent, stream: str) -> list[LiveEvent]:
        text = _text(self._held.pop(stream)) + _text(live) if stream in self._held else _text(live)
        end = self._end(text)
        if end < len(text):
            self._held[stream] = _with_text(live, text[end:])
        return [_with_text(live, self._cleaned(text[:end]))] if end else []

    def _end(self, text: str) -> int:
        """How far it can be told; never to within a secret, which may end as another begins."""
        clean, end = self._scrubber.clean, self._scrubber.open_end(text)
        if end == len(text):
            return end
        whole = clean(text)
        while end and clean(text[:end]) + clean(text[end:]) != whole:
            end -= 1
        return end

    def rest(self, *, is_over: bool = False) -> list[LiveEvent]:
        """What was held back: nothing more comes that could make it a secret.

        A stored event ends what was being said before it; raw output goes on until all is over.
        """
        held, self._held = self._held, {}
        if not is_over:
            self._held = {name: live for name, live in held.items() if _is_raw(live)}
        ended = [live for name, live in held.items() if name not in self._held]
        return [self._let_go(live) for live in ended]

    def _let_go(self, live: LiveEvent) -> LiveEvent:
        return _with_text(live, self._cleaned(_text(live)))

    def _cleaned(self, text: str) -> str:
        is_suspect = self._scrubber.suspects(text.encode(errors="replace"))
        return str(self._scrubber.clean(text)) if is_suspect else text


_WORDS = frozenset({"text.delta", "thinking.delta"})


def _is_raw(live: LiveEvent) -> bool:
    return isinstance(live.event, OutputRaw)


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
