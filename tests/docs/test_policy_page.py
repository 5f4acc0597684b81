"""Checks that the page about policy shows what each provider enforces."""

from typing import get_args

from scripts.policy import END, PAGE, START, policies, renewed, tables
from steadyrun.model.policy import DENIED, TIERS, TOOLS, Mode
from steadyrun.providers.registry import BUILT_IN


def test_tables_match_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")

    is_current = renewed(page) == page

    assert is_current, "run: .venv/bin/python scripts/policy.py"


def test_tables_are_on_the_page_once() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert (page.count(START), page.count(END)) == (1, 1)
    assert page.index(START) < page.index(END)


def test_every_provider_has_a_row_for_every_tier_and_every_tool() -> None:
    _, _, *rows = tables().split("\n\n")[1].splitlines()
    found = [tuple(cell.strip() for cell in row.split("|")[1:3]) for row in rows]

    assert found == [(name, words) for name in sorted(BUILT_IN) for words in policies()]
    assert len(policies()) == 1 + len(TIERS) + len(TOOLS)


def test_refusals_and_deviations_have_a_reason() -> None:
    _, _, *rows = tables().split("\n\n")[1].splitlines()

    for row in rows:
        *cells, why = (cell.strip() for cell in row.split("|")[3:-1])
        assert len(cells) == len(get_args(Mode))
        assert why or set(cells) == {"enforced"}


def test_page_names_every_tool_that_is_denied_to_all() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert [name for name in DENIED if f"`{name}`" not in page] == []
