"""Keeps secrets out of the store: they are wrapped in memory, and removed before a write.

A `Scrubber` finds two kinds: the values that this process was given, and the patterns of common
tokens that an agent may print from any file.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from ahocorasick_rs import BytesAhoCorasick, MatchKind
from msgspec import Struct

REDACTED = "[redacted]"
# A shorter value, or a short plain word, would match ordinary text; it is not a secret.
SHORTEST_SECRET = 6
# Prefixes of secrets are listed up to this length; longer ones are found by it.
_LONG = 64
_PLAIN_WORD = re.compile(r"[a-z_.]{1,24}")


class Secret:
    """A value that prints as asterisks. Only `reveal` returns it."""

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


class _Shape(NamedTuple):
    """A kind of token. It contains `literal`; `loose` finds it in encoded values, and more."""

    literal: bytes
    loose: re.Pattern[bytes]
    strict: re.Pattern[str]


def _build_shape(literal: str, rest: str, strict: str | None = None) -> _Shape:
    pattern = re.escape(literal) + rest
    return _Shape(
        literal.encode(), re.compile(pattern.encode()), re.compile(strict or pattern, re.ASCII)
    )


_SHAPES = (
    _build_shape(
        "PRIVATE KEY-----",
        "",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\s]|\\+[nrt])*"
        r"(?:-----END [A-Z ]*PRIVATE KEY-----)?",
    ),
    # The only literal at the end of ordinary words (task-, disk-): it must begin a word, or follow
    # an escaped line break or a colour code.
    _build_shape(
        "sk-",
        r"[A-Za-z0-9_-]{20,}",
        r"sk-(?:(?<!\wsk-)|(?<=\\[bfnrt]sk-)|(?<=[0-9;\[]msk-))[A-Za-z0-9_-]{20,}",
    ),
    _build_shape("ghp_", r"[A-Za-z0-9]{36,}"),
    _build_shape("gho_", r"[A-Za-z0-9]{36,}"),
    _build_shape("ghs_", r"[A-Za-z0-9]{36,}"),
    _build_shape("ghu_", r"[A-Za-z0-9]{36,}"),
    _build_shape("ghr_", r"[A-Za-z0-9]{36,}"),
    _build_shape("glpat-", r"[A-Za-z0-9_-]{20,}"),
    _build_shape("github_pat_", r"[A-Za-z0-9_]{22,}"),
    _build_shape("xox", r"[abeprs]-[A-Za-z0-9-]{10,}"),
    _build_shape("xapp-", r"[A-Za-z0-9-]{10,}"),
    _build_shape("AKIA", r"[A-Z0-9]{16}"),
    _build_shape("ASIA", r"[A-Z0-9]{16}"),
    _build_shape("AIza", r"[A-Za-z0-9_-]{35}"),
)


class Scrubber:
    """Finds secrets in encoded events quickly, and removes them from values completely."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        values = {secret.reveal() for secret in secrets}
        spellings = {s for value in values if _is_secret(value) for s in _list_spellings(value)}
        # Longest first, so that a secret that contains another is removed as a whole.
        self._known = sorted(spellings, key=len, reverse=True)
        self._encoded = [spelling.encode() for spelling in self._known]
        literals = [*self._encoded, *(shape.literal for shape in _SHAPES)]
        # Leftmost matching of a dozen literals can use vector instructions: a hundred times faster
        # than separate searches, and this runs for every event.
        self._search = BytesAhoCorasick(literals, matchkind=MatchKind.LeftmostFirst)
        announced = [*self._known, *(shape.literal.decode() for shape in _SHAPES)]
        # The prefixes of secrets that a text may end with, by their last character.
        self._beginnings = _group_beginnings(announced)
        self._long_beginnings = [each[:_LONG] for each in announced if len(each) > _LONG]

    def is_suspicious(self, encoded: bytes) -> bool:
        """Whether there may be a secret. None is missed; a false positive costs only time."""
        if not self._search.find_matches_as_indexes(encoded):
            return False
        # The search misses a literal that begins inside another: check all of them.
        return any(known in encoded for known in self._encoded) or any(
            shape.literal in encoded and shape.loose.search(encoded) for shape in _SHAPES
        )

    def find_open_end(self, text: str) -> int:
        """Where an incomplete text has the beginning of a possible secret; else its length."""
        if not self._can_be_open(text):
            return len(text)
        starts = [_find_beginning(text, known) for known in self._known]
        starts += [_find_shape_beginning(text, shape) for shape in _SHAPES]
        return min(starts, default=len(text))

    def _can_be_open(self, text: str) -> bool:
        """A quick check before the full one: this runs for every delta."""
        return (
            text.endswith(self._beginnings.get(text[-1:], ()))
            or any(long in text for long in self._long_beginnings)
            or bool(self._search.find_matches_as_indexes(text.encode(errors="replace")))
        )

    def clean(self, value: Any) -> Any:
        """The value with every secret in its texts replaced, at any depth."""
        match value:
            case str():
                return self._clean_text(value)
            case bytes():
                text = value.decode(errors="surrogateescape")
                return self._clean_text(text).encode(errors="surrogateescape")
            case _:
                return self._clean_parts(value)

    def _clean_parts(self, value: Any) -> Any:
        match value:
            case Struct():
                names = value.__struct_fields__
                return type(value)(**{name: self.clean(getattr(value, name)) for name in names})
            case dict():
                return {self.clean(key): self.clean(inner) for key, inner in value.items()}
            case list() | tuple():
                return type(value)(self.clean(inner) for inner in value)
            case _:
                return value

    def _clean_text(self, text: str) -> str:
        for known in self._known:
            text = text.replace(known, REDACTED)
        for shape in _SHAPES:
            text = shape.strict.sub(REDACTED, text)
        return text


def _group_beginnings(announced: list[str]) -> dict[str, tuple[str, ...]]:
    by_last: dict[str, set[str]] = {}
    for each in announced:
        for length in range(1, min(len(each), _LONG) + 1):
            by_last.setdefault(each[length - 1], set()).add(each[:length])
    return {last: tuple(found) for last, found in by_last.items()}


def _find_beginning(text: str, known: str) -> int:
    """Where the end of `text` is a prefix of `known`; else its length."""
    start = text.find(known[0], max(0, len(text) - len(known) + 1))
    while start >= 0 and not known.startswith(text[start:]):
        start = text.find(known[0], start + 1)
    return start if start >= 0 else len(text)


def _find_shape_beginning(text: str, shape: _Shape) -> int:
    """Where an incomplete token of this shape, or its literal, begins."""
    literal = shape.literal.decode()
    start = text.rfind(literal)
    if start >= 0 and _TOKEN.fullmatch(text, start):
        return start
    return _find_beginning(text, literal)


# The characters of tokens and keys.
_TOKEN = re.compile(r"[A-Za-z0-9_\-+/=\s]*")


def _is_secret(value: str) -> bool:
    # A value that is not valid Unicode (a variable may have any bytes) cannot be in JSON either.
    is_text = not any("\ud800" <= char <= "\udfff" for char in value)
    return is_text and len(value) >= SHORTEST_SECRET and not _PLAIN_WORD.fullmatch(value)


def _list_spellings(value: str) -> set[str]:
    """The value itself, and its forms in JSON that is printed as text."""
    return {value, msgspec.json.encode(value).decode()[1:-1], json.dumps(value)[1:-1]}
