"""Writes the table of abilities in docs/providers.md from the Dialects of the providers."""

import sys
from collections.abc import Iterator
from pathlib import Path

from steadyrun.dialect import ABILITIES, Dialect, Program
from steadyrun.providers.registry import BUILT_IN, load_dialect, make_dialect

PAGE = Path(__file__).parents[1] / "docs" / "providers.md"
START = "<!-- made by scripts/abilities.py: -->\n"
END = "<!-- end of what was made -->\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def renewed(page: str) -> str:
    """The page with the current table; the rest is unchanged."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return f"{before}{START}{table()}{END}{after}"


def table() -> str:
    """A column for each form of each provider, a row for each ability."""
    shapes = dict(_shapes())
    rows = [
        ["", *shapes],
        ["---"] * (len(shapes) + 1),
        *(
            [
                f"`{name}`: {words}",
                *("yes" if name in each.abilities else "" for each in shapes.values()),
            ]
            for name, words in ABILITIES.items()
        ),
        ["tested with", *(_tested(each.program) for each in shapes.values())],
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _shapes() -> Iterator[tuple[str, Dialect]]:
    """A provider that can also be started for a single turn has a second column."""
    for name in sorted(BUILT_IN):
        yield name, make_dialect(name, {})
        if "one_shot" in load_dialect(name).options_type.__struct_fields__:
            yield f"{name}, `one_shot`", make_dialect(name, {"one_shot": True})


def _tested(program: Program | None) -> str:
    if program is None:
        return "built in"
    return " to ".join(dict.fromkeys(program.tested or ()))


if __name__ == "__main__":
    sys.exit(main())
