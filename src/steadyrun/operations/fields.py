"""Describes how a field of a request is typed on the command line.

A required field is a positional argument, any other field an option with its name. `kind` is needed
where the type does not define it: a `path` is made absolute by the command, `paths` can be
repeated, a `wait` is a duration that may be zero.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Meta

ArgKind = Literal["path", "paths", "wait"]


def arg(
    description: str,
    *,
    metavar: str | None = None,
    flag: str | None = None,
    kind: ArgKind | None = None,
    constants: Mapping[str, str] | None = None,
    is_word: bool = False,
) -> Meta:
    """Describe an argument. `constants` are flags that set one value each; their descriptions are
    `value: text; …`. With `is_word` an optional field is a positional argument."""
    found: dict[str, Any] = {
        "metavar": metavar,
        "flag": flag,
        "kind": kind,
        "constants": None if constants is None else dict(constants),
        "is_word": is_word,
    }
    extra = {name: value for name, value in found.items() if value}
    return Meta(description=description, extra=extra)


def hidden(description: str) -> Meta:
    """Describe a field that is not an argument of a command."""
    return Meta(description=description, extra={"is_hidden": True})
