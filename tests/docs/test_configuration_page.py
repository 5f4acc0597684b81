"""Checks that the page about configuration lists every setting and that its examples load."""

import re
from pathlib import Path
from typing import get_args

import pytest

from steadyrun.config import UNTRUSTED_SETTINGS, list_kinds, list_patterns, load
from steadyrun.model.policy import Mode
from steadyrun.providers.registry import BUILT_IN

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
ROWS = re.findall(r"^\| `([^`]+)` \|.*\|.*\|.*\|$", PAGE, re.MULTILINE)


def test_page_has_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_loads(example: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(example)

    config = load(tmp_path, tmp_path, {})

    assert config.settings.providers


def test_table_lists_exactly_the_settings() -> None:
    assert sorted(ROWS) == sorted(list_patterns())


@pytest.mark.parametrize("name", [*list_kinds(), *UNTRUSTED_SETTINGS])
def test_page_names_every_provider_and_every_untrusted_setting(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("mode", get_args(Mode))
def test_page_names_every_mode(mode: str) -> None:
    assert f'`"{mode}"`' in PAGE


def test_defaults_on_the_page_are_the_real_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path, tmp_path, {}).settings

    assert f'| `store` | string | `"{settings.store}"` |' in PAGE
    assert f'| `"{settings.daemon.listen}"` |' in PAGE


def test_page_lists_the_built_in_kinds_of_providers() -> None:
    kinds = ", ".join(f"`{kind}`" for kind in sorted(BUILT_IN))

    assert f"These kinds of providers are built in: {kinds}." in PAGE
