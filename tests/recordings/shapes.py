"""Changes the frames of a CLI without changing their meaning."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from re import Pattern
from typing import Any

from msgspec.structs import replace

from steadyrun.drivers.replay import RecordedLine

Json = dict[str, Any]
Path = tuple[str | int, ...]
GONE = object()
# What may stand where something else was expected.
GARBAGE: list[Any] = [
    None,
    True,
    -1,
    1.5,
    10**30,
    "",
    "x",
    [],
    [[]],
    [{}],
    {},
    {"x": {"type": "y"}},
]
# Names of the same shape.
_OTHERS = str.maketrans("0123456789abcdef", "fedcba9876543210")


@dataclass(frozen=True)
class Shape:
    """The frames of one CLI."""

    # The names that a CLI makes up: they might be any others.
    names: Pattern[str]
    # Lines of no kind that there is.
    noise: tuple[Json | str, ...]
    # Words that would mean something if words counted.
    prose: tuple[str, ...]
    # What a line calls itself: its type, the type of what is in it, and its marks.
    kind_of: Callable[[RecordedLine], str]
    # The same kind of frame, with this in the place of all that it says.
    garbled: Callable[[Json, Any], Json]
    # Nothing but its kind.
    emptied: Callable[[Json], Json]
    # The same frame in these words.
    reworded: Callable[[Json, Callable[[str], str]], Json]
    # The same frame, with this in the place of counters and details, of which no turn depends.
    beside: Callable[[Json, Any], Json]
    # Where in a frame more may be said.
    inner: tuple[Path, ...]
    # The fields that make a frame what it is.
    kinds: tuple[str, ...]

    def renamed(self, value: Any) -> Any:
        """Everything as it was under other names: sessions, messages, tools, requests."""
        return in_strings(
            value, lambda text: self.names.sub(lambda found: found[0].translate(_OTHERS), text)
        )

    def with_more(self, message: Json) -> Json:
        """The same frame with unknown fields."""
        more = {"no_such_field": {"type": "result", "is_error": True}, "noSuchField": [None]}
        for path in ((), *self.inner):
            found = get(message, path)
            if isinstance(found, dict):
                message = put(message, path, found | more)
        return message

    def paths(self, value: Any, path: Path = ()) -> Iterator[Path]:
        """Where something stands in a frame; what makes it what it is stays."""
        parts: list[tuple[str | int, Any]] = []
        if isinstance(value, dict):
            parts = [(key, part) for key, part in value.items() if path or key not in self.kinds]
        elif isinstance(value, list):
            parts = list(enumerate(value))
        if path or not parts:
            yield path
        for key, part in parts:
            yield from self.paths(part, (*path, key))


def get(value: Any, path: Path) -> Any:
    """What stands there, or None."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) and isinstance(key, str) else None
    return value


def put(message: Json, path: Path, new: Any) -> Json:
    """The same frame with this in that place, or with nothing there."""
    found: Json = _put(message, path, new)
    return found


def _put(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return {} if new is GONE else new
    key, *rest = path
    copy = value.copy()
    if new is GONE and not rest:
        del copy[key]
    else:
        copy[key] = _put(value[key], tuple(rest), new)
    return copy


def in_strings(value: Any, change: Callable[[str], str]) -> Any:
    """The same with a change to every text in it."""
    match value:
        case str():
            return change(value)
        case list():
            return [in_strings(each, change) for each in value]
        case dict():
            return {key: in_strings(each, change) for key, each in value.items()}
        case _:
            return value


def changed(
    lines: Iterable[RecordedLine], change: Callable[..., Json], *more: Any
) -> list[RecordedLine]:
    """All that was printed, with a change to each frame."""
    return [
        replace(line, msg=change(line.msg, *more))
        if line.dir == "out" and isinstance(line.msg, dict)
        else line
        for line in lines
    ]
