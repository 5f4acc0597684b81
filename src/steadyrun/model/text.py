"""Encodes, cuts and suggests texts."""

import difflib
from collections.abc import Iterable
from typing import NamedTuple

from steadyrun.errors import InvalidUsage


class Problem(NamedTuple):
    """What is wrong with a name or a value, and how to correct it."""

    problem: str
    hint: str = ""


def encode_utf8(text: str) -> bytes:
    """Encode a text; raise `InvalidUsage` if it is not valid Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        found = f"expected valid Unicode, found an incomplete character at {error.start}"
        raise InvalidUsage(found, hint="Decode it with errors='replace' first.") from error


def cut(text: str, most_bytes: int) -> str:
    """The beginning of a text that fits; an ellipsis marks what was left out."""
    raw = text.encode(errors="replace")
    if len(raw) <= most_bytes:
        return text
    return raw[: most_bytes - len("…".encode())].decode(errors="ignore") + "…"


def suggest(word: str, valid: Iterable[str]) -> str:
    """Suggest the nearest valid word, or list all of them."""
    valid = sorted(valid)
    near = difflib.get_close_matches(word[:100], valid, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Valid here: {', '.join(valid)}."
