"""Splits bytes that arrive in chunks of any size into lines."""

from io import BytesIO

from msgspec import Struct


class Frame(Struct, frozen=True, gc=False):
    """One line without its line break.

    Of a line from the CLI, `end` is its end in the journal. Of a line to the CLI, `key` identifies
    it, `number` counts the frames of the process, and `end` is how far the journal had been read.
    """

    raw: bytes
    end: int
    key: str = ""
    number: int = 0


class PartFrame(Frame, frozen=True, gc=False):
    """A part of a line that continues in the next frame."""


class CutFrame(Frame, frozen=True, gc=False, kw_only=True):
    """A line that was too long: the journal has `length` bytes of it, from `start` on.

    With `is_document`, `raw` is the document of the line with its long texts cut. Without it, `raw`
    is only the beginning of the line.
    """

    start: int
    length: int
    is_document: bool


class LineSplitter:
    """Splits chunks into lines. Each byte is scanned once, however long the line is."""

    def __init__(self, offset: int = 0) -> None:
        # The end of the last complete line, what followed it, and the length of that.
        self._end = offset
        self._open: list[bytes] = []
        self.open_bytes = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """The lines that end in this chunk. Empty ones are left out, but counted in the offset."""
        # BytesIO finds line breaks several times as fast as bytes.split, and copies no chunk.
        pieces = BytesIO(chunk).readlines()
        if self._open and pieces:
            self._extend(pieces.pop(0))
            pieces[:0] = self._close_line()
        if pieces and pieces[-1][-1:] != b"\n":
            self._extend(pieces.pop())
        return self._build_frames(pieces)

    def take_open(self) -> tuple[int, bytes]:
        """Remove the incomplete last line: return its offset and what has come of it."""
        start, raw = self._end, b"".join(self._open)
        self.restart(start)
        return start, raw

    def restart(self, offset: int, begun: bytes = b"") -> None:
        """Continue at another offset, with the beginning of the line there."""
        self._end, self.open_bytes = offset, len(begun)
        self._open = [begun] if begun else []

    def _extend(self, piece: bytes) -> None:
        self._open.append(piece)
        self.open_bytes += len(piece)

    def read_rest(self) -> Frame | None:
        """What followed the last line break: at the end of a process it counts as a line."""
        raw = b"".join(self._open)
        return Frame(raw, self._end + len(raw)) if raw else None

    def _close_line(self) -> list[bytes]:
        if self._open[-1][-1:] != b"\n":
            return []
        whole = b"".join(self._open)
        self._open.clear()
        self.open_bytes = 0
        return [whole]

    def _build_frames(self, pieces: list[bytes]) -> list[Frame]:
        lines, end = [], self._end
        for piece in pieces:
            end += len(piece)
            if piece != b"\n":
                lines.append(Frame(piece[:-1], end))
        self._end = end
        return lines
