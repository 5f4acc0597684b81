"""How do secrets stay out of the record? Wrapped while carried, scrubbed before a write.

A `Scrubber` knows two kinds: the very values this process was given, and the shapes of common
tokens that an agent may print from a file we never saw.
"""

import re
from collections.abc import Iterable

import msgspec

REDACTED = "[redacted]"
# A shorter value would blank out ordinary words; a real secret is never that short.
SHORTEST_SECRET = 6


class Secret:
    """A value that prints as asterisks. Only `reveal` gives it back."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


# Each shape with the literal that announces it: `in` on the literal is several times cheaper than
# the expression, and nearly every batch has none of them.
_SHAPES: tuple[tuple[bytes, re.Pattern[bytes]], ...] = (
    (b"sk-", re.compile(rb"\bsk-[A-Za-z0-9_-]{20,}")),
    (b"ghp_", re.compile(rb"\bghp_[A-Za-z0-9]{36,}")),
    (b"gho_", re.compile(rb"\bgho_[A-Za-z0-9]{36,}")),
    (b"ghs_", re.compile(rb"\bghs_[A-Za-z0-9]{36,}")),
    (b"github_pat_", re.compile(rb"\bgithub_pat_[A-Za-z0-9_]{22,}")),
    (b"xox", re.compile(rb"\bxox[abeprs]-[A-Za-z0-9-]{10,}")),
    (b"xapp-", re.compile(rb"\bxapp-[A-Za-z0-9-]{10,}")),
    (b"AKIA", re.compile(rb"\bAKIA[A-Z0-9]{16}\b")),
    (b"AIza", re.compile(rb"\bAIza[A-Za-z0-9_-]{35}")),
    (b"PRIVATE KEY-----", re.compile(
        rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\s]|\\[nrt])*"
        rb"(?:-----END [A-Z ]*PRIVATE KEY-----)?"
    )),
)  # fmt: skip


class Scrubber:
    """Replaces secrets in encoded JSON. Line breaks and structure survive: only values shrink."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        values = {secret.reveal() for secret in secrets}
        found = {form for v in values if len(v) >= SHORTEST_SECRET for form in _forms(v)}
        # Longest first, so that a secret which contains another goes as a whole.
        self._known = sorted(found, key=len, reverse=True)

    def scrub(self, encoded: bytes) -> bytes:
        for value in self._known:
            if value in encoded:
                encoded = encoded.replace(value, REDACTED.encode())
        for literal, shape in _SHAPES:
            if literal in encoded:
                encoded = shape.sub(REDACTED.encode(), encoded)
        return encoded

    def scrub_text(self, text: str) -> str:
        return self.scrub(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")


def _forms(value: str) -> set[bytes]:
    """The value as it is, inside JSON, and inside JSON that is itself a string in JSON."""
    once = msgspec.json.encode(value)[1:-1]
    twice = msgspec.json.encode(once.decode())[1:-1]
    return {value.encode(), once, twice}
