"""Shortens a JSON document that is too long for memory: it cuts the long texts in it.

The document is read in chunks and never held as a whole. The result is valid JSON if the document
is, so a Dialect can read it: the end of a turn is found although its text had 200 MB.
"""

import re

from steadyrun.model.secret import Scrubber

# Whole characters and whole escapes of a JSON text: a cut between two of them is valid.
_UNITS = re.compile(
    rb"""(?>[^"\\\x80-\xff]+
        |[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}
        |\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
        |\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*""",
    re.VERBOSE | re.DOTALL,
)
# The rest of a text, up to its closing quote or to an escape that is not complete.
_REST = re.compile(rb'(?>[^"\\]+|\\.)*', re.DOTALL)
# An escaped pair of surrogates has this many bytes.
_LONGEST_UNIT = 12


class JsonCutter:
    """Reads one document by `feed`; `result` is the document with its long texts cut.

    A text above `text_bytes` keeps its beginning, without the part of a secret that may be at the
    cut, and ends with a remark that states how many bytes are missing. If the result would have
    more than `most_bytes`, there is none.
    """

    def __init__(self, text_bytes: int, most_bytes: int, scrubber: Scrubber | None = None) -> None:
        self._text_bytes, self._most_bytes = text_bytes, most_bytes
        self._scrubber = scrubber or Scrubber()
        self._result: bytearray | None = bytearray()
        # Bytes of a unit that is not complete.
        self._pending = b""
        self._is_in_text = False
        # How many bytes of the present text were kept, and how many were left out.
        self._kept = self._cut = 0

    @property
    def result(self) -> bytes | None:
        """The shortened document; None if it is still too long."""
        return None if self._result is None else bytes(self._result)

    def feed(self, chunk: bytes) -> None:
        """Read the next part of the document."""
        data, self._pending = self._pending + chunk, b""
        at = 0
        while at < len(data) and self._result is not None:
            at = self._read_text(data, at) if self._is_in_text else self._read_outside(data, at)

    def _read_outside(self, data: bytes, at: int) -> int:
        quote = data.find(b'"', at)
        end = len(data) if quote < 0 else quote + 1
        self._add(data[at:end])
        if quote >= 0:
            self._is_in_text, self._kept, self._cut = True, 0, 0
        return end

    def _read_text(self, data: bytes, at: int) -> int:
        end = at if self._cut else self._keep_units(data, at)
        if end < len(data) and data[end] != ord('"') and self._has_to_cut(data, end):
            end = self._leave_out(data, end)
        if end == len(data):
            return end
        if data[end] != ord('"'):
            self._pending = data[end:]
            return len(data)
        remark = b" [%d bytes cut by steadyrun]" % self._cut if self._cut else b""
        self._add(remark + b'"')
        self._is_in_text = False
        return end + 1

    def _keep_units(self, data: bytes, at: int) -> int:
        """Keep as many units as there is room for; return where the rest begins."""
        found = _UNITS.match(data, at, min(len(data), at + self._text_bytes - self._kept))
        assert found
        self._add(found[0])
        self._kept += len(found[0])
        return found.end()

    def _has_to_cut(self, data: bytes, at: int) -> bool:
        """Whether what follows is left out: there is no room for it, or it is no valid unit."""
        is_full = self._kept + _LONGEST_UNIT > self._text_bytes
        return self._cut > 0 or is_full or len(data) - at >= _LONGEST_UNIT

    def _leave_out(self, data: bytes, at: int) -> int:
        if not self._cut:
            self._drop_open_secret()
        found = _REST.match(data, at)
        assert found
        self._cut += len(found[0])
        return found.end()

    def _drop_open_secret(self) -> None:
        """Remove the beginning of a secret from the end of the text that was kept."""
        if self._result is None:
            return
        start = len(self._result) - self._kept
        text = bytes(self._result[start:]).decode(errors="surrogateescape")
        safe = text[: self._scrubber.find_safe_end(text, is_cut=True)].encode(
            errors="surrogateescape"
        )
        found = _UNITS.match(safe)
        assert found
        dropped = self._kept - found.end()
        del self._result[len(self._result) - dropped :]
        self._kept -= dropped
        self._cut += dropped

    def _add(self, part: bytes) -> None:
        if self._result is not None:
            self._result += part
            if len(self._result) > self._most_bytes:
                self._result = None
