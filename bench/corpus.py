"""Builds events like those of a coding agent, with texts from the standard library's sources."""

import hashlib
import itertools
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from bench.measure import expect
from steadyrun.model.event import (
    VERSION,
    Emitted,
    Event,
    EventId,
    Foreign,
    TextFinal,
    ToolCompleted,
    ToolStarted,
    make_event_id,
)
from steadyrun.model.event_codec import decode_events, encode_events
from steadyrun.model.ids import ProcessId
from steadyrun.model.secret import Scrubber, Secret

LINE_BYTES = 794
_TOLERANCE = 0.05
# Most texts are short, but half of the bytes are in the long ones.
_TEXT_CHARS = (70, 130, 190, 90, 1900, 160, 240, 460, 80, 960, 110, 3300, 210, 330, 60, 1100)
# One event in this many contains a secret.
_PLANTED_EVERY = 10_000
_TOOLS = ("Read", "Bash", "Edit", "Grep")
_BEGIN = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)

PROCESS = ProcessId("prc_01ke6xq8n5v3c7m2t9w4h6j0ab")
SECRETS = tuple(Secret(hashlib.sha1(bytes([n])).hexdigest()) for n in range(3))


class Line(Struct, frozen=True, gc=False):
    """An event as the peers store it: each by itself, with its full identity."""

    id: EventId
    at: datetime
    event: Event | Foreign
    v: int = VERSION


class Frame(NamedTuple):
    """What a reader of the journal has: where the frame ends, when it came, and its event."""

    offset: int
    at: datetime
    event: Event


@dataclass(frozen=True)
class Corpus:
    """Frames to write, and the expected record afterwards: as events and as lines."""

    frames: list[Frame]
    stored: list[Line]
    lines: list[bytes]


def build(count: int) -> Corpus:
    frames = list(itertools.islice(_make_frames(), count))
    body = encode_events([Emitted(f.offset, 0, f.at, f.event) for f in frames], Scrubber(SECRETS))
    stored = [
        Line(make_event_id(PROCESS, e.place, e.n), e.at, e.event) for e in decode_events(body)
    ]
    lines = [msgspec.json.encode(line) + b"\n" for line in stored]
    _check(lines)
    return Corpus(frames, stored, lines)


def _check(lines: list[bytes]) -> None:
    mean = sum(map(len, lines)) / len(lines)
    expect(abs(mean / LINE_BYTES - 1) < _TOLERANCE, f"a line has {mean:.0f} bytes on average")
    expect(len(set(lines)) == len(lines), "two events are the same")
    redacted = sum(b"[redacted]" in line for line in lines)
    expect(redacted == -(-len(lines) // _PLANTED_EVERY), f"{redacted} lines were scrubbed")


def _make_frames() -> Iterator[Frame]:
    offset, texts = 0, _cut_texts()
    for n in itertools.count():
        text = next(texts)
        if n % _PLANTED_EVERY == 0:
            text += SECRETS[n // _PLANTED_EVERY % len(SECRETS)].reveal()
        offset += len(text) + 300
        yield Frame(offset, _BEGIN + timedelta(microseconds=1001 * n), _make_event(n, text))


def _make_event(n: int, text: str) -> Event:
    call, tool = f"toolu_{hashlib.sha1(b'%d' % (n // 3)).hexdigest()[:24]}", _TOOLS[n // 3 % 4]
    match n % 3:
        case 0:
            return ToolStarted(call, tool, {"file_path": f"/src/m{n}.py", "content": text})
        case 1:
            return ToolCompleted(call, tool, None, [{"type": "text", "text": text}])
        case _:
            return TextFinal(text)


def _cut_texts() -> Iterator[str]:
    """Endless pieces of source text in many lengths; a later pass cuts at other places."""
    sizes, scrubber = itertools.cycle(_TEXT_CHARS), Scrubber()
    for skipped in itertools.count():
        for source in _read_sources():
            start = skipped * 17
            while start < len(source):
                piece = source[start : start + next(sizes)]
                start += len(piece)
                # Texts that look like a token are left out: the only secrets are the planted ones.
                if "[redacted]" not in piece and scrubber.clean(piece) == piece:
                    yield piece


def _read_sources() -> Iterator[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-r]*/**/*.py")):
        yield path.read_bytes().decode(errors="ignore")
