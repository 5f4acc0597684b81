"""Splits the output of a process into frames of bounded size, whatever the process prints.

A line that is too long is handed on in parts, if the Dialect takes parts, or with its long texts
cut. Where a line is divided depends on its bytes alone: an adoption divides it in the same places.
"""

from steadyrun.drivers.journal.json_cutter import JsonCutter
from steadyrun.lib.framing import CutFrame, Frame, LineSplitter, PartFrame
from steadyrun.model.secret import Scrubber

LINE_BYTES = 64 * 1024 * 1024
# Decoding, recording and publishing a line takes up to six times its length. A longer line than
# this part of the limit is cut, so that all of it together stays below twice the limit.
_WHOLE_SHARE = 4
# The length of a part, and of a text in a line that is cut.
PART_BYTES = 1024 * 1024
# How much is kept of a line that cannot be cut to a document.
_BEGINNING_BYTES = 64 * 1024
_LONGEST_CHARACTER = 4


class OutputLines:
    """The lines of one process. `line_bytes` limits the memory that one line may take.

    States: between lines, or in a line that fits (`_lines` has its beginning); in a line that is
    being cut (`_cutter` reads it).
    """

    __slots__ = ("_cutter", "_has_parts", "_lines", "_longest", "_scrubber")

    def __init__(
        self,
        offset: int,
        line_bytes: int = LINE_BYTES,
        *,
        scrubber: Scrubber | None = None,
        has_parts: bool,
    ) -> None:
        self._lines = LineSplitter(offset)
        self._scrubber = scrubber or Scrubber()
        self._has_parts = has_parts
        whole = max(1, line_bytes // _WHOLE_SHARE)
        self._longest = min(whole, PART_BYTES) if has_parts else whole
        self._cutter: _LineCutter | None = None

    @property
    def is_long(self) -> bool:
        """Whether the line that is not complete is a long one."""
        return self._cutter is not None or self._lines.open_bytes > PART_BYTES

    def feed(self, chunk: bytes) -> list[Frame]:
        """The lines that end in this chunk, and the parts of a line that it completes."""
        if self._cutter:
            frames, chunk = self._continue_cut(self._cutter, chunk)
            return [*frames, *self.feed(chunk)] if chunk else frames
        can_be_long = self._lines.open_bytes + len(chunk) > self._longest
        frames = self._lines.feed(chunk)
        return self._shorten_all(frames) if can_be_long else frames

    def read_rest(self) -> Frame | None:
        """What followed the last line break: at the end of a process it counts as a line."""
        return self._cutter.finish() if self._cutter else self._lines.read_rest()

    def _shorten_all(self, frames: list[Frame]) -> list[Frame]:
        """Divide or cut the frames that are too long, and the line that is not complete."""
        short: list[Frame] = []
        for frame in frames:
            short += self._shorten(frame) if len(frame.raw) > self._longest else (frame,)
        if self._lines.open_bytes > self._longest:
            start, begun = self._lines.take_open()
            if self._has_parts:
                parts, begun = self._split_line(start, begun)
                short += parts
                self._lines.restart(parts[-1].end, begun)
            else:
                self._cutter = _LineCutter(start, self._longest, self._scrubber)
                self._cutter.feed(begun)
        return short

    def _shorten(self, frame: Frame) -> list[Frame]:
        """A complete line that is too long, in parts or cut."""
        start = frame.end - len(frame.raw) - 1
        if self._has_parts:
            parts, rest = self._split_line(start, frame.raw)
            return [*parts, Frame(rest, frame.end)]
        cutter = _LineCutter(start, self._longest, self._scrubber)
        cutter.feed(frame.raw)
        return [cutter.finish(break_bytes=1)]

    def _split_line(self, start: int, line: bytes) -> tuple[list[Frame], bytes]:
        """All parts of a line but the last, and the last."""
        parts: list[Frame] = []
        at = 0
        while len(line) - at > self._longest:
            end = _find_character_end(line, at + self._longest)
            parts.append(PartFrame(line[at:end], start + end))
            at = end
        return parts, line[at:]

    def _continue_cut(self, cutter: "_LineCutter", chunk: bytes) -> tuple[list[Frame], bytes]:
        """Read the part of the chunk that belongs to the line; return the rest of the chunk."""
        end = chunk.find(b"\n")
        if end < 0:
            cutter.feed(chunk)
            return [], b""
        cutter.feed(chunk[:end])
        self._cutter = None
        frame = cutter.finish(break_bytes=1)
        self._lines.restart(frame.end)
        return [frame], chunk[end + 1 :]


class _LineCutter:
    """Reads one line that is too long, and keeps a short form of it."""

    def __init__(self, start: int, most_bytes: int, scrubber: Scrubber) -> None:
        self._start, self._length = start, 0
        self._scrubber = scrubber
        self._document = JsonCutter(min(PART_BYTES, most_bytes // 2), most_bytes, scrubber)
        self._beginning = b""

    def feed(self, chunk: bytes) -> None:
        if self._length < _BEGINNING_BYTES:
            self._beginning += chunk[: _BEGINNING_BYTES - self._length]
        self._length += len(chunk)
        self._document.feed(chunk)

    def finish(self, *, break_bytes: int = 0) -> CutFrame:
        document = self._document.result
        return CutFrame(
            self._read_beginning() if document is None else document,
            self._start + self._length + break_bytes,
            start=self._start,
            length=self._length,
            is_document=document is not None,
        )

    def _read_beginning(self) -> bytes:
        """The beginning of the line, without the part of a secret that may be at the cut."""
        text = self._beginning.decode(errors="surrogateescape")
        end = self._scrubber.find_safe_end(text, is_cut=True)
        return text[:end].encode(errors="surrogateescape")


def _find_character_end(data: bytes, end: int) -> int:
    """The end, or a little before it: not between the bytes of one character."""
    for back in range(_LONGEST_CHARACTER):
        if data[end - back] & 0xC0 != 0x80:
            return end - back
    return end
