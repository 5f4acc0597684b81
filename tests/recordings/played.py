"""How is a recording played with something changed, and what must hold of whatever comes out?"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal

import msgspec

from steadyrun.model import event as ev
from steadyrun.model.frame import Frame
from steadyrun.provider import Exit
from steadyrun.providers.replay import Line, Seen, replay
from steadyrun.providers.turns import Told, Turns
from tests.recordings.recorded import Recording, Telling, telling

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KILLED = Exit(signal=9)
Step = tuple[Literal["in", "out"], Frame]
Json = dict[str, Any]
Fate = ev.FollowupAbsorbed | ev.FollowupOwnTurn | ev.FollowupReturned

_NAMES = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:toolu|msg)_[0-9a-f]+")
# Names of the same shape.
_OTHERS = str.maketrans("0123456789abcdef", "fedcba9876543210")


def raw_of(line: Line) -> bytes:
    """The line as it stands in a journal."""
    return line.msg.encode() if isinstance(line.msg, str) else msgspec.json.encode(line.msg)


def steps(lines: Iterable[Line]) -> Iterator[Step]:
    """The frames of a recording, as a driver sees them."""
    offset = sent = 0
    for line in lines:
        raw = raw_of(line)
        if line.dir == "out":
            offset += len(raw) + 1
            yield "out", Frame(raw, offset)
        elif line.dir == "in":
            sent += 1
            yield "in", Frame(raw, offset, "", sent)


def feed(turns: Turns, frames: Iterable[Step]) -> list[list[Told]]:
    """What is told for each frame."""
    return [
        turns.received(frame, NOW) if way == "out" else turns.sent(frame, NOW)
        for way, frame in frames
    ]


def played(recording: Recording, lines: Iterable[Line], last: Exit | None = None) -> list[Seen]:
    """What these lines come to, in the place of the recording's own."""
    return list(replay(recording.dialect(), lines, last or recording.exit()))


def told(recording: Recording, lines: Iterable[Line]) -> list[Telling]:
    """The same, as the expectations have it."""
    return list(telling(played(recording, lines)))


def events_of(seen: Iterable[Seen]) -> list[ev.Event]:
    return [each.event for each in seen if not isinstance(each.event, ev.Foreign)]


def is_sound(seen: list[Seen]) -> bool:
    """Check what holds whatever was printed: each run begins and ends once, and leaves no tool
    open; each follow-up has one fate. It returns so that it can stand in an `assert`."""
    runs = [(name, list(events)) for name, events in groupby(seen, key=lambda each: each.run)]
    names = [name for name, _ in runs if name is not None]
    assert names == [f"run_{n + 1}" for n in range(len(names))], "runs overlap"
    for name, inside in runs:
        if name is not None:
            _check_run(events_of(inside))
    _check_fates(events_of(seen))
    return True


def _check_run(events: list[ev.Event]) -> None:
    started = [n for n, event in enumerate(events) if isinstance(event, ev.RunStarted)]
    ended = [n for n, event in enumerate(events) if isinstance(event, ev.RunEnded)]
    assert started == [0]
    assert ended == [len(events) - 1]
    open_tools = Counter[str]()
    for event in events:
        match event:
            case ev.ToolStarted():
                open_tools[event.tool_call_id] = 1
            case ev.ToolCompleted() | ev.ToolFailed():
                open_tools[event.tool_call_id] = 0
            case _:
                pass
    assert not +open_tools


def _check_fates(events: list[ev.Event]) -> None:
    offered = Counter(event.item for event in events if isinstance(event, ev.FollowupOffered))
    fates = Counter(event.item for event in events if isinstance(event, Fate))
    assert fates.keys() == offered.keys()
    assert not fates - offered


def kind_of(line: Line) -> str:
    """What a line calls itself: its type, the type of what is in it, and its marks."""
    if isinstance(line.msg, str):
        return "text"
    inner = [line.msg.get(name) for name in ("event", "request", "response", "message")]
    parts = [line.msg, *inner, *(_content(each) for each in inner)]
    words = [part.get(key) for part in parts if isinstance(part, dict) for key in _KINDS]
    marks = [mark for mark in ("isReplay", "isSynthetic", "error") if line.msg.get(mark)]
    return " ".join([line.dir, *(word for word in words if isinstance(word, str)), *marks])


_KINDS = ("type", "subtype")


def _content(part: Any) -> Any:
    """The first part of a message, or what has changed in a stream."""
    if not isinstance(part, dict):
        return None
    content = part.get("content") or [part.get("delta")]
    return content[0] if isinstance(content, list) else {"type": "string"}


def garbled(message: Json, value: Any) -> Json:
    """The same kind of frame, with this in the place of all that it says."""
    kept = {key: message[key] for key in ("type", "subtype") if key in message}
    return dict.fromkeys(message, value) | kept


def changed(lines: Iterable[Line], change: Callable[[Json], Any]) -> list[Line]:
    """All that was printed, with a change to each frame."""
    return [
        Line(line.dir, change(line.msg), line.t)
        if line.dir == "out" and isinstance(line.msg, dict)
        else line
        for line in lines
    ]


def renamed(value: Any) -> Any:
    """Everything as it was under other names: sessions, messages, tools, requests."""
    match value:
        case str():
            return _NAMES.sub(lambda found: found[0].translate(_OTHERS), value)
        case list():
            return [renamed(each) for each in value]
        case dict():
            return {key: renamed(each) for key, each in value.items()}
        case _:
            return value
