"""Checks that the page about providers shows the abilities of each."""

from typing import get_args

from scripts.abilities import END, PAGE, START, renewed, table
from steadyrun.dialect import ABILITIES, Ability
from steadyrun.providers.registry import BUILT_IN, load_dialect


def test_table_matches_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")

    is_current = renewed(page) == page

    assert is_current, "run: .venv/bin/python scripts/abilities.py"


def test_table_is_on_the_page_once() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert (page.count(START), page.count(END)) == (1, 1)
    assert page.index(START) < page.index(END)


def test_writing_the_page_changes_only_the_table() -> None:
    page = f"before\n{START}| old |\n{END}after\n"

    assert renewed(page) == f"before\n{START}{table()}{END}after\n"


def test_every_ability_has_a_description_and_a_row() -> None:
    rows = [line.split(":")[0] for line in table().splitlines()[2:-1]]

    assert rows == [f"| `{name}`" for name in get_args(Ability)]
    assert all(ABILITIES.values())


def test_every_provider_has_a_column_for_each_of_its_forms() -> None:
    head = table().splitlines()[0]
    names = [cell.strip() for cell in head.strip("|").split("|")][1:]

    expected = {
        shape
        for name in BUILT_IN
        for shape in (name, f"{name}, `one_shot`")
        if shape == name or "one_shot" in load_dialect(name).options_type.__struct_fields__
    }

    assert set(names) == expected
    assert len(names) == len(expected)


def test_row_shows_which_providers_have_the_ability() -> None:
    head, _, *rows = table().splitlines()
    names = [cell.strip() for cell in head.strip("|").split("|")][1:]
    cells = {
        row.split("`")[1]: dict(
            zip(names, map(str.strip, row.strip("|").split("|")[1:]), strict=True)
        )
        for row in rows[:-1]
    }

    assert cells["steer"]["claude"] == cells["steer"]["scripted"] == "yes"
    assert cells["steer"]["claude, `one_shot`"] == cells["steer"]["shell"] == ""
    assert cells["resume"]["claude, `one_shot`"] == "yes"
