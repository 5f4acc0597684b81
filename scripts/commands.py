"""Writes src/steadyrun/cli/command_table.py and the list of operations in
docs/commands.md anew, from the registry.

The table has plain tuples only: `--help` shall not wait for the operations to be imported.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import inspect

from steadyrun.operations.registry import OPERATIONS, Operation

TABLE = Path(__file__).parents[1] / "src" / "steadyrun" / "cli" / "command_table.py"
PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
START = "<!-- made by scripts/commands.py: -->\n"
END = "<!-- end of what was made -->\n"
_HEAD = '''"""What can be typed for each operation? Made by scripts/commands.py from the registry.

A row: words, summary, operation, arguments. An argument: field, kind, how it is typed (empty: by
its place), metavar, help, what it may be, and whether it is needed.
"""

# fmt: off
# ruff: noqa: E501
TYPE_CHECKING = False
if TYPE_CHECKING:
    from steadyrun.cli.arguments import Row

TABLE: "tuple[Row, ...]" = '''
_KINDS: dict[type, str] = {
    inspect.StrType: "text",
    inspect.BoolType: "flag",
    inspect.IntType: "count",
    inspect.FloatType: "duration",
    inspect.LiteralType: "choice",
    inspect.VarTupleType: "words",
}


def main() -> int:
    """Write both files."""
    TABLE.write_text(table(), encoding="utf-8")
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def renewed(page: str) -> str:
    """The page with the list as it should be; all else as it was."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    head = "| operation | what it does | who may | needs a daemon | takes a key |\n"
    lines = "".join(map(_line, OPERATIONS))
    return f"{before}{START}{head}|---|---|---|---|---|\n{lines}{END}{after}"


def _line(operation: Operation) -> str:
    daemon = "yes" if operation.place == "daemon" else ""
    key = "yes" if operation.idempotency != "none" else ""
    cells = (f"`{operation.name}`", operation.summary, operation.scope, daemon, key)
    return f"| {' | '.join(cells)} |\n"


def table() -> str:
    """The file as it should be."""
    rows = [row for operation in OPERATIONS for row in _rows(operation)]
    return f"{_HEAD}(\n{''.join(map(_row, rows))})\n"


def _row(row: tuple[Any, ...]) -> str:
    *facts, arguments = row
    lines = "".join(f"        {_written(argument)},\n" for argument in arguments)
    head = ", ".join(map(_written, facts))
    return f"    ({head}, (\n{lines}    )),\n" if lines else f"    ({head}, ()),\n"


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(map(_written, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _rows(operation: Operation) -> Iterator[tuple[Any, ...]]:
    described = inspect.type_info(operation.given)
    assert isinstance(described, inspect.StructType)
    arguments = tuple(row for field in described.fields for row in _arguments(field))
    for words in operation.words:
        yield words, operation.summary, operation.name, arguments


def _arguments(field: inspect.Field) -> Iterator[tuple[Any, ...]]:
    described = field.type
    assert isinstance(described, inspect.Metadata), f"{field.name} has no description"
    extra, schema = described.extra or {}, described.extra_json_schema or {}
    if extra.get("is_unsaid"):
        return
    bare = _bare(described.type)
    kind = extra.get("kind") or _KINDS[type(bare)]
    values = tuple(map(str, bare.values)) if isinstance(bare, inspect.LiteralType) else ()
    names = _names(field, extra)
    if constants := extra.get("constants"):
        kind, names, values = "constants", tuple(constants), tuple(constants.values())
    metavar = extra.get("metavar") or "|".join(values) or field.name.upper()
    summary = schema["description"]
    if kind == "choice" and "metavar" in extra:
        summary = f"{summary}: {', '.join(values)}"
    yield field.name, kind, names, metavar, summary, values, field.required


def _names(field: inspect.Field, extra: dict[str, Any]) -> tuple[str, ...]:
    if "flag" in extra:
        return (extra["flag"],)
    is_word = field.required or extra.get("is_word")
    return () if is_word else (f"--{field.name.replace('_', '-')}",)


def _bare(kind: inspect.Type) -> inspect.Type:
    """The type of what is given: that it may be left out is known."""
    if isinstance(kind, inspect.UnionType):
        [kind] = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    return kind


if __name__ == "__main__":
    sys.exit(main())
