"""Writes the tables of docs/events.md from the types of events."""

import inspect
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct

from steadyrun.model.event import EVENT_TYPES, LIVE_ONLY

PAGE = Path(__file__).parents[1] / "docs" / "events.md"
START = "<!-- made by scripts/events.py: -->\n"
END = "<!-- end of what was made -->\n"

_WORDS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    bytes: "base64",
    datetime: "time",
    Any: "anything",
    types.NoneType: "null",
}
# Fields up to this length are repeated for each event.
_LONG = 80


def main() -> int:
    """Write the page."""
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def renewed(page: str) -> str:
    """The page with current tables; the rest is unchanged."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return f"{before}{START}{tables()}{END}{after}"


def tables() -> str:
    """All events, then the structs that their fields contain."""
    events = _table(
        ("type", "stored", "`data`", "meaning"),
        (
            (tag_of(kind), stored_or_live(kind), _fields_or_twin(kind), meaning(kind))
            for kind in EVENT_TYPES
        ),
    )
    parts = _table(
        ("part", "fields", "meaning"),
        ((f"`{part.__name__}`", _fields(part), meaning(part)) for part in _parts()),
    )
    return f"\n{events}\n{parts}\n"


def tag_of(kind: type[Struct]) -> str:
    """The name of an event."""
    return f"`{kind.__struct_config__.tag}`"


def stored_or_live(kind: type) -> str:
    """Whether the event is stored, or only published while it happens."""
    return "live only" if kind in LIVE_ONLY else "yes"


def meaning(kind: type) -> str:
    """The first paragraph of the docstring of a type."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def words_for(kind: Any) -> str:
    """A type as the JSON shows it. An unexpected type is an error."""
    match get_origin(kind):
        case types.UnionType | typing.Union:
            return " or ".join(words_for(each) for each in get_args(kind))
        case origin if origin is Literal:
            return " or ".join(f'`"{each}"`' for each in get_args(kind))
        case origin if origin is tuple:
            return f"list of {words_for(get_args(kind)[0])}"
        case _:
            return f"`{kind.__name__}`" if _is_part(kind) else _WORDS[kind]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _fields(kind: type[Struct]) -> str:
    found = msgspec.structs.fields(kind)
    return ", ".join(f"`{field.encode_name}` {words_for(field.type)}" for field in found)


def _fields_or_twin(kind: type[Struct]) -> str:
    """Long lists of fields that events share are shown once."""
    fields = _fields(kind)
    first = next(each for each in EVENT_TYPES if _fields(each) == fields)
    return fields if first is kind or len(fields) < _LONG else f"as {tag_of(first)}"


def _parts() -> Iterator[type[Struct]]:
    """The structs that events contain, in order of appearance."""
    met = dict[Any, None]()
    for kind in EVENT_TYPES:
        for field in msgspec.structs.fields(kind):
            met |= dict.fromkeys(filter(_is_part, (field.type, *get_args(field.type))))
    return iter(met)


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


if __name__ == "__main__":
    sys.exit(main())
