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


class LineSplitter:
    """Splits chunks into lines. Each byte is scanned once, however long the line is."""

    def __init__(self, offset: int = 0) -> None:
        # The end of the last complete line, and what followed it.
        self._end = offset
        self._open: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        """The lines that end in this chunk. Empty ones are left out, but counted in the offset."""
        # BytesIO finds line breaks several times as fast as bytes.split, and copies no chunk.
        pieces = BytesIO(chunk).readlines()
        if self._open and pieces:
            self._open.append(pieces.pop(0))
            pieces[:0] = self._close_line()
        if pieces and pieces[-1][-1:] != b"\n":
            self._open.append(pieces.pop())
        return self._build_frames(pieces)

    @property
    def open_bytes(self) -> int:
        """The length of the incomplete last line."""
        return sum(map(len, self._open))

    def read_rest(self) -> Frame | None:
        """What followed the last line break: at the end of a process it counts as a line."""
        raw = b"".join(self._open)
        return Frame(raw, self._end + len(raw)) if raw else None

    def _close_line(self) -> list[bytes]:
        if self._open[-1][-1:] != b"\n":
            return []
        whole = b"".join(self._open)
        self._open.clear()
        return [whole]

    def _build_frames(self, pieces: list[bytes]) -> list[Frame]:
        lines, end = [], self._end
        for piece in pieces:
            end += len(piece)
            if piece != b"\n":
                lines.append(Frame(piece[:-1], end))
        self._end = end
        return lines
