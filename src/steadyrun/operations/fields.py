"""How is a field of an operation's input typed on a command line? Its annotation says so.

A field that must be given is a word of its own, any other an option of its name. `kind` is said
where the type does not tell: a `path` is made absolute where it is typed, `paths` may be repeated,
a `wait` is a duration that may be none.
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
    """`constants` are flags that stand for a value each, described as `value: what it does; …`;
    `is_word`: though it may be left out."""
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
    """A field that no command line has."""
    return Meta(description=description, extra={"is_hidden": True})
