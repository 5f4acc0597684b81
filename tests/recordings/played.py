"""Replays changed recordings, and checks what must hold for any output."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal

import msgspec

from steadyrun.dialect import ProcessExit
from steadyrun.drivers.replay import RecordedLine, replay
from steadyrun.drivers.turn_tracker import TrackedOutput, TurnTracker
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.event import AnyEvent
from tests.recordings.recorded import CLIS, Cli, Recording, Telling, recordings, telling
from tests.recordings.shape_claude import CLAUDE
from tests.recordings.shape_codex import CODEX
from tests.recordings.shapes import Shape

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KILLED = ProcessExit(signal=9)
Step = tuple[Literal["in", "out"], Frame]
Fate = ev.FollowupAbsorbed | ev.FollowupOwnTurn | ev.FollowupReturned

SHAPES: dict[Cli, Shape] = {"claude": CLAUDE, "codex": CODEX}


def raw_of(line: RecordedLine) -> bytes:
    """The line as it stands in a journal."""
    return line.msg.encode() if isinstance(line.msg, str) else msgspec.json.encode(line.msg)


def steps(lines: Iterable[RecordedLine]) -> Iterator[Step]:
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


def feed(turns: TurnTracker, frames: Iterable[Step]) -> list[list[TrackedOutput]]:
    """What is reported for each frame."""
    return [
        turns.on_received(frame, NOW) if way == "out" else turns.on_sent(frame, NOW)
        for way, frame in frames
    ]


def played(
    recording: Recording, lines: Iterable[RecordedLine], last: ProcessExit | None = None
) -> list[AnyEvent]:
    """What these lines come to, in the place of the recording's own."""
    return list(replay(recording.dialect(), lines, last or recording.exit()))


def told(recording: Recording, lines: Iterable[RecordedLine]) -> list[Telling]:
    """The same as the expectations have it, with all that was said."""
    return list(telling(played(recording, lines), sys.maxsize))


def events_of(seen: Iterable[AnyEvent]) -> list[ev.Event]:
    return [each.event for each in seen if not isinstance(each.event, ev.Foreign)]


def is_sound(seen: list[AnyEvent]) -> bool:
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


def outcomes(seen: Iterable[AnyEvent]) -> list[tuple[Any, ...]]:
    """How the runs ended, apart from their words."""
    return [
        (
            end.status,
            end.stop_reason,
            end.usage,
            end.cost,
            end.error and (end.error.code, end.error.retryable, end.error.retry_at),
        )
        for end in events_of(seen)
        if isinstance(end, ev.RunEnded)
    ]


def texts(seen: Iterable[AnyEvent]) -> list[tuple[str, Any]]:
    """What the agent said, and where."""
    return [
        (ev.get_type(event), event.text)
        for event in events_of(seen)
        if isinstance(event, ev.TextFinal | ev.TextDelta | ev.RunEnded)
    ]


def unknown(seen: Iterable[AnyEvent]) -> set[str | None]:
    """The lines that the Dialect could not read."""
    return {event.text for event in events_of(seen) if isinstance(event, ev.Unknown)}


def _first_of_each_kind(cli: Cli) -> dict[str, tuple[Recording, int]]:
    """Where each kind of frame comes first."""
    found: dict[str, tuple[Recording, int]] = {}
    for recording in recordings(cli):
        for place, line in enumerate(recording.lines()):
            if isinstance(line.msg, dict):
                kind = f"{cli} {SHAPES[cli].kind_of(line)}"
                found.setdefault(kind, (recording, place))
    return found


KINDS = {kind: found for cli in CLIS for kind, found in _first_of_each_kind(cli).items()}
