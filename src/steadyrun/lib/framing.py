"""Which lines are in these bytes? They come in chunks of any size; a line names where it ends."""

from io import BytesIO

from msgspec import Struct


class Frame(Struct, frozen=True, gc=False):
    """One line without its line break.

    Printed by the CLI: `end` is where it ends in the journal. Sent by us: `key` names it, `number`
    counts the frames sent to the process, and `end` is how far the journal had been read.
    """

    raw: bytes
    end: int
    key: str = ""
    number: int = 0


class LineSplitter:
    """Cuts what is fed to it into lines. Each byte is looked at once, however long the line."""

    def __init__(self, offset: int = 0) -> None:
        # Where the last whole line ended, and what came behind it.
        self._end = offset
        self._open: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        """The lines that end in this chunk. Empty ones are left out, but counted in the offset."""
        # BytesIO looks for line breaks several times as fast as bytes.split, and copies no chunk.
        pieces = BytesIO(chunk).readlines()
        if self._open and pieces:
            self._open.append(pieces.pop(0))
            pieces[:0] = self._close_line()
        if pieces and pieces[-1][-1:] != b"\n":
            self._open.append(pieces.pop())
        return self._build_frames(pieces)

    @property
    def open_bytes(self) -> int:
        """How long the line is so far that has not ended."""
        return sum(map(len, self._open))

    def read_rest(self) -> Frame | None:
        """What came behind the last line break: at the end of a process it is a line, too."""
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
