"""Builds the lines of the fake agent: the same number and sizes of lines in both formats.

The sizes are those of recorded sessions, the texts are cut from the standard library's sources.
The envelope of a line is shorter in the scripted format, so its lines carry more text.
"""

import functools
import itertools
import json
import random
import re
import sys
import sysconfig
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench import fake_agent
from bench.corpus import SECRETS
from bench.measure import compute_percentile, expect
from steadyrun.model.secret import Scrubber, Secret

Speech = Literal["claude", "scripted", "raw"]
Kind = Literal["text", "delta", "tool_start", "tool_end"]

MEAN_BYTES = 799
DELTAS = 0.62
MEGABYTE = 1_000_000
_TOLERANCE = 0.03
# Shares of the lines, and the longest line of each share.
_SIZES = ((0.0, 214), (0.5, 342), (0.75, 840), (0.9, 1919), (0.99, 3804), (1.0, 5200))
# Below this size the envelope of a tool leaves no room for its text.
_TOOL_BYTES = 330
# One line in this many contains a secret.
_PLANTED_EVERY = 10_000
_TOOLS = ("Read", "Bash", "Edit", "Grep")
_SESSION = "8d5f2b14-6a3c-4e0f-9b7a-1c2d3e4f5a6b"
_AGENT = Path(fake_agent.__file__)


@dataclass(frozen=True)
class Lines:
    """The same lines in both formats. `kinds` has the kind of each."""

    claude: list[bytes]
    scripted: list[bytes]
    kinds: list[Kind]

    def save(self, folder: Path) -> "Saved":
        claude, scripted = folder / "claude.lines", folder / "scripted.lines"
        claude.write_bytes(b"".join(self.claude))
        scripted.write_bytes(b"".join(self.scripted))
        return Saved(claude, scripted)


@dataclass(frozen=True)
class Saved:
    """The files that contain the lines."""

    claude: Path
    scripted: Path

    def of(self, speech: Speech) -> Path:
        return self.claude if speech == "claude" else self.scripted


def build_usual(count: int, *, deltas: float = 0.0) -> Lines:
    """Lines of the usual sizes; `deltas` is the share that is only shown, the shortest ones."""
    sizes = _draw_sizes(count)
    longest_delta = sorted(sizes)[round(count * deltas) - 1] if deltas else 0
    lines = _build(sizes, _choose_kinds(sizes, longest_delta), secrets=SECRETS)
    _check(lines, deltas)
    return lines


def build_stamped(count: int) -> Lines:
    """Texts of the usual sizes, each with room for the time at which it is printed."""
    return _build(_draw_sizes(count), ["text"] * count, stamp=fake_agent.STAMP.decode())


def build_texts(count: int, size: int) -> Lines:
    """Texts of one size."""
    return _build([size] * count, ["text"] * count)


def build_command(
    speech: Speech, lines: Path, pace_seconds: float = 0.0, gate: Path | None = None
) -> tuple[str, ...]:
    """The command that starts the agent."""
    pace = f"{pace_seconds}@{gate}" if gate else f"{pace_seconds}"
    return (sys.executable, "-I", "-S", str(_AGENT), speech, str(lines), pace)


def _draw_sizes(count: int) -> list[int]:
    sizes = [_draw_size((n + 0.5) / count) for n in range(count)]
    random.Random(7).shuffle(sizes)
    return sizes


def _draw_size(part: float) -> int:
    at = next(n for n, (end, _) in enumerate(_SIZES) if part <= end)
    (begin, low), (end, high) = _SIZES[at - 1], _SIZES[at]
    return round(low + (high - low) * (part - begin) / (end - begin))


def _choose_kinds(sizes: Sequence[int], longest_delta: int) -> list[Kind]:
    """Two in three of the lines with enough room belong to a tool, its end after its start."""
    turns: Iterator[Kind] = itertools.cycle(("tool_start", "tool_end", "text"))
    kinds: list[Kind] = []
    for number, size in enumerate(sizes):
        if _is_planted(number) or longest_delta < size < _TOOL_BYTES:
            kinds.append("text")
        else:
            kinds.append("delta" if size <= longest_delta else next(turns))
    if kinds.count("tool_start") > kinds.count("tool_end"):
        kinds[len(kinds) - 1 - kinds[::-1].index("tool_start")] = "text"
    return kinds


def _is_planted(number: int) -> bool:
    return number % _PLANTED_EVERY == 0


def _check(lines: Lines, deltas: float) -> None:
    sizes = [len(line) for line in lines.claude]
    expect(sizes == [len(line) for line in lines.scripted], "the speeches differ in size")
    mean = sum(sizes) / len(sizes)
    expect(abs(mean / MEAN_BYTES - 1) < _TOLERANCE, f"a line has {mean:.0f} bytes on average")
    for part, size in _SIZES[:-1]:
        found = compute_percentile(sizes, part)
        expect(abs(found / size - 1) < _TOLERANCE, f"p{part * 100:.0f} is {found} bytes")
    part = lines.kinds.count("delta") / len(sizes)
    expect(abs(part - deltas) < _TOLERANCE, f"{part:.0%} are deltas")


def _build(
    sizes: Sequence[int], kinds: list[Kind], *, stamp: str = "", secrets: Sequence[Secret] = ()
) -> Lines:
    source, claude, scripted, call = _Source(), [], [], 0
    for number, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        call += kind == "tool_start"
        begin, room = stamp, size
        if secrets and _is_planted(number):
            begin = secrets[number // _PLANTED_EVERY % len(secrets)].reveal()
            room = max(size, _TOOL_BYTES)
        claude.append(_fill(_build_claude(kind, number, call), room, begin, source))
        scripted.append(_fill(_build_scripted(kind, call), room, begin, source))
    return Lines(claude, scripted, kinds)


def _fill(around: tuple[str, str], size: int, begin: str, source: "_Source") -> bytes:
    before, after = around
    room = size - len(before) - len(begin) - len(after) - 1
    expect(room >= 0, f"a line of {size} bytes is too short")
    return f"{before}{begin}{source.take(room)}{after}\n".encode()


def _build_claude(kind: Kind, number: int, call: int) -> tuple[str, str]:
    ids = f'"session_id":"{_SESSION}","uuid":"{uuid.UUID(int=number)}"'
    match kind:
        case "delta":
            before = (
                '{"type":"stream_event","event":{"type":"content_block_delta","index":0,'
                '"delta":{"type":"text_delta","text":"'
            )
            return before, f'"}}}},{ids}}}'
        case "tool_end":
            before = (
                '{"type":"user","message":{"role":"user","content":[{"type":"tool_result",'
                f'"tool_use_id":"{_make_id(call)}","content":[{{"type":"text","text":"'
            )
            return before, f'"}}]}}]}},{ids}}}'
        case "tool_start":
            block = (
                f'{{"type":"tool_use","id":"{_make_id(call)}","name":"{_make_tool(call)}",'
                '"input":{"content":"'
            )
            return f"{_ASSISTANT}{block}", f'"}}}}]}},{ids}}}'
        case "text":
            return f'{_ASSISTANT}{{"type":"text","text":"', f'"}}]}},{ids}}}'


_ASSISTANT = '{"type":"assistant","message":{"model":"claude","content":['


def _build_scripted(kind: Kind, call: int) -> tuple[str, str]:
    match kind:
        case "delta" | "text":
            return f'{{"type":"{kind}","text":"', '"}'
        case "tool_start":
            called = f'"id":"{_make_id(call)}","name":"{_make_tool(call)}"'
            return f'{{"type":"tool_start",{called},"input":{{"content":"', '"}}'
        case "tool_end":
            called = f'"id":"{_make_id(call)}","name":"{_make_tool(call)}"'
            before = f'{{"type":"tool_end",{called},"output":[{{"type":"text","text":"'
            return before, '"}]}'


def _make_id(call: int) -> str:
    return f"toolu_{call:024d}"


def _make_tool(call: int) -> str:
    return _TOOLS[call % len(_TOOLS)]


class _Source:
    """Endless source text, escaped for JSON, in pieces of any length."""

    def __init__(self) -> None:
        self._text, self._at = _escape_sources(), 0

    def take(self, length: int) -> str:
        while len(self._text) - self._at < length:
            self._text, self._at = self._text[self._at :] + _escape_sources(), 0
        piece = self._text[self._at : self._at + length]
        if (len(piece) - len(piece.rstrip("\\"))) % 2:
            piece = piece[:-1]
        self._at += len(piece)
        return piece.ljust(length, ".")


@functools.cache
def _escape_sources() -> str:
    folder = Path(sysconfig.get_path("stdlib"))
    sources = [path.read_bytes().decode("ascii", "ignore") for path in sorted(folder.glob("*.py"))]
    # Texts that look like a token are left out: the only secrets are the planted ones.
    plain = [Scrubber().clean(source) for source in sources]
    return json.dumps(_UNPRINTABLE.sub("", "".join(plain)))[1:-1]


_UNPRINTABLE = re.compile("[^\n -~]+")
