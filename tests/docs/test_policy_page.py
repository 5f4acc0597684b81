"""Does the page about policy say what each provider keeps to?"""

from typing import get_args

from scripts.policy import END, PAGE, START, policies, renewed, tables
from steadyrun.model.policy import DENIED, TIERS, TOOLS, Mode
from steadyrun.providers.registry import BUILT_IN


def test_the_tables_are_what_the_code_says() -> None:
    page = PAGE.read_text(encoding="utf-8")

    is_current = renewed(page) == page

    assert is_current, "run: .venv/bin/python scripts/policy.py"


def test_the_tables_have_one_place_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert (page.count(START), page.count(END)) == (1, 1)
    assert page.index(START) < page.index(END)


def test_every_provider_has_a_row_for_every_tier_and_every_tool() -> None:
    _, _, *rows = tables().split("\n\n")[1].splitlines()
    found = [tuple(cell.strip() for cell in row.split("|")[1:3]) for row in rows]

    assert found == [(name, words) for name in sorted(BUILT_IN) for words in policies()]
    assert len(policies()) == 1 + len(TIERS) + len(TOOLS)


def test_what_is_refused_or_kept_otherwise_says_why() -> None:
    _, _, *rows = tables().split("\n\n")[1].splitlines()

    for row in rows:
        cells = [cell.strip() for cell in row.split("|")[3:-1]]
        *kept, why = cells
        assert len(kept) == len(get_args(Mode))
        assert why or set(kept) == {"kept"}


def test_the_page_names_what_nobody_has() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert [name for name in DENIED if f"`{name}`" not in page] == []
