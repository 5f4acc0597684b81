"""Keeps secrets out of the store: they are wrapped in memory, and removed before a write.

A `Scrubber` finds two kinds: the values that this process was given, and the patterns of common
tokens that an agent may print from any file.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from ahocorasick_rs import BytesAhoCorasick, MatchKind
from msgspec import Struct

from steadyrun.model.token_shapes import (
    REDACTED,
    SHAPES,
    TokenShape,
    find_tokens,
    remove_tokens,
)

# A shorter value, or a short plain word, would match ordinary text; it is not a secret.
SHORTEST_SECRET = 6
# Prefixes of secrets are listed up to this length; longer ones are found by it.
_LONG = 64
_PLAIN_WORD = re.compile(r"[a-z_.]{1,24}")
# How many literals are in one search; see `_build_searches`.
_SEARCHED_TOGETHER = 14
# With more literals than this, the whole text is checked at once.
_MANY = 32
# The letters before a token that decide whether it is one: a colour code, an escape.
_MOST_STEPS = 64
# How much of an end is searched for a secret that is not complete; no token is longer.
_END_CHARS = 64 * 1024
# The rest of a token at the beginning of a text.
_TORN_WORD = re.compile(r"\A\S{1,65536}")


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


class Scrubber:
    """Finds secrets in encoded events quickly, and removes them from values completely."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        values = {secret.reveal() for secret in secrets}
        spellings = {s for value in values if _is_secret(value) for s in _list_spellings(value)}
        # Longest first, so that a secret that contains another is removed as a whole.
        self._known = sorted(spellings, key=len, reverse=True)
        self._encoded = [spelling.encode() for spelling in self._known]
        literals = sorted({*self._encoded, *(literal for literal, _ in _BY_LITERAL)})
        self._searches = _build_searches(literals)
        announced = [*self._known, *(shape.literal for shape in SHAPES)]
        # The prefixes of secrets that a text may end with, by their last character.
        self._beginnings = _group_beginnings(announced)
        self._long_beginnings = [each[:_LONG] for each in announced if len(each) > _LONG]
        self._longest = max(map(len, self._known), default=0)

    def is_suspicious(self, encoded: bytes) -> bool:
        """Whether there may be a secret. None is missed; a false positive costs only time."""
        found = self._find_literals(encoded)
        if not found:
            return False
        if len(found) > _MANY:
            return self._is_secret_in(encoded)
        return any(self._has_secret_at(encoded, start, end) for _, start, end in found)

    def _has_secret_at(self, encoded: bytes, start: int, end: int) -> bool:
        """Whether a secret begins between two places. The search has found a literal there; it
        misses a literal that begins inside another."""
        if any(encoded.find(known, start, end + len(known)) >= 0 for known in self._encoded):
            return True
        for literal, shape in _BY_LITERAL:
            at = encoded.find(literal, start, end + len(literal))
            if at >= 0 and shape.loose.match(encoded, at):
                return True
        return False

    def _is_secret_in(self, encoded: bytes) -> bool:
        return any(known in encoded for known in self._encoded) or any(
            literal in encoded and shape.loose.search(encoded) for literal, shape in _BY_LITERAL
        )

    def _find_literals(self, encoded: bytes) -> list[tuple[int, int, int]]:
        """The places of literals and known values."""
        return [
            found for search in self._searches for found in search.find_matches_as_indexes(encoded)
        ]

    def _find_open_end(self, text: str, *, is_cut: bool) -> int:
        """Where an incomplete text has the beginning of a possible secret; else its length."""
        if not self._can_be_open(text):
            return len(text)
        starts = [_find_beginning(text, known) for known in self._known]
        starts += [_find_token_beginning(text, shape) for shape in SHAPES]
        if not is_cut:
            starts += [_find_beginning(text, shape.literal) for shape in SHAPES]
        return min(starts, default=len(text))

    def find_safe_end(self, text: str, *, is_cut: bool = False) -> int:
        """How much of an incomplete text is left without the beginning of a possible secret. The
        end is never inside a secret: one may begin where another ends.

        `is_cut`: the rest of the text is lost. The first letters of a literal are no secret then.
        """
        base = max(0, len(text) - max(_END_CHARS, 2 * self._longest))
        last = text[base:]
        end = self._find_open_end(last, is_cut=is_cut)
        if end < len(last):
            end = self._leave_secrets(last, end)
            whole, least = self._clean_text(last), max(0, end - _MOST_STEPS)
            while (
                end > least and self._clean_text(last[:end]) + self._clean_text(last[end:]) != whole
            ):
                end -= 1
        return base + end

    def _leave_secrets(self, text: str, end: int) -> int:
        """The end, or the beginning of the secrets that contain it."""
        known = [
            found.span() for each in self._known for found in re.finditer(re.escape(each), text)
        ]
        for start, stop in sorted([*known, *find_tokens(text)], reverse=True):
            if start < end < stop:
                end = start
        return end

    def clean_beginning(self, text: str) -> str:
        """The beginning of a longer text, without secrets and without the part of one that the cut
        has left at its end."""
        return self._clean_text(text[: self.find_safe_end(text, is_cut=True)])

    def clean_end(self, text: str) -> str:
        """The end of a longer text, without secrets and without the part of one that the cut has
        left at its beginning. A word that the cut may have torn is left out."""
        is_whole = text.startswith(tuple(self._known))
        rests = (0 if is_whole else _find_rest(text, known) for known in self._known)
        start = max(rests, default=0)
        return _TORN_WORD.sub("", self._clean_text(text[start:]), count=1)

    def _can_be_open(self, text: str) -> bool:
        """A quick check before the full one: this runs for every delta."""
        return (
            text.endswith(self._beginnings.get(text[-1:], ()))
            or any(long in text for long in self._long_beginnings)
            or bool(self._find_literals(text.encode(errors="replace")))
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
        return remove_tokens(text)


def _build_searches(literals: list[bytes]) -> list[BytesAhoCorasick]:
    """Build searches of a few literals each. A search of about a dozen literals uses vector
    instructions: several of them together are faster than one of all literals, and they run for
    every event."""
    count = -(-len(literals) // _SEARCHED_TOGETHER)
    return [
        BytesAhoCorasick(literals[first::count], matchkind=MatchKind.LeftmostFirst)
        for first in range(count)
    ]


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


def _find_rest(text: str, known: str) -> int:
    """The length of the beginning of `text` that is the end of `known`, but not all of it."""
    for start in range(1, len(known)):
        if text.startswith(known[start:]):
            return len(known) - start
    return 0


def _find_token_beginning(text: str, shape: TokenShape) -> int:
    """Where an incomplete token of this shape begins; else the length of the text."""
    start = text.find(shape.literal, len(text.rstrip(shape.characters)))
    return start if start >= 0 else len(text)


def _is_secret(value: str) -> bool:
    # A value that is not valid Unicode (a variable may have any bytes) cannot be in JSON either.
    is_text = not any("\ud800" <= char <= "\udfff" for char in value)
    return is_text and len(value) >= SHORTEST_SECRET and not _PLAIN_WORD.fullmatch(value)


def _list_spellings(value: str) -> set[str]:
    """The value itself, and its forms in JSON that is printed as text and in messages of errors."""
    as_json = msgspec.json.encode(value).decode()
    return {value, *(form[1:-1] for form in (as_json, json.dumps(value), repr(value)))}


_BY_LITERAL = [(shape.literal.encode(), shape) for shape in SHAPES]
