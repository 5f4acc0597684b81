"""Checks that the quickstart runs as written, and that the code named by other pages exists."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from steadyrun.drivers import keeper
from tests.support.commands import COMMAND, ROOT, environment

LIMIT_SECONDS = 120.0
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
STOP = re.compile(r"`(src/[\w/]+\.py)::(\w+)`")


def test_quickstart_runs_as_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    blocks = BLOCK.findall((ROOT / "docs/quickstart.md").read_text(encoding="utf-8"))
    env = environment(home)
    env["PATH"] = f"{Path(COMMAND).parent}:/usr/bin:/bin"
    # The run of 30 seconds takes 12 here: long enough to be killed in its middle.
    env["STEP_SECONDS"] = "4"
    try:
        done = subprocess.run(
            ["sh", "-eux", "-c", "\n".join(blocks)],
            env=env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    finally:
        left = subprocess.run(
            [COMMAND, "down", "--drain", "0s"], env=env, capture_output=True, check=False
        )
        processes = [each.name for each in (home / "processes").glob("*")]
        keeper.sweep(processes)

    assert done.returncode == 0, done.stderr
    assert len(blocks) >= 5
    assert done.stdout.count("A script answered; no model was asked.") >= 3
    assert re.search(r"running +ada", done.stdout), "the run continues without a daemon"
    assert count_events(done.stdout, "tool.completed", "Bash ok") == 3
    assert count_events(done.stdout, "text.final", "All three passed.") == 1
    assert left.returncode == 69, "the last command has ended the daemon"


def count_events(output: str, kind: str, text: str) -> int:
    """How many such events the first `tail` has printed; the inbox comes after it."""
    first, _, _ = output.partition("ITEM  ")
    return len(re.findall(rf"{re.escape(kind)} +{re.escape(text)}$", first, re.MULTILINE))


def test_every_stop_of_the_tour_exists() -> None:
    page = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    stops = re.findall(r"^(\d+)\. ", page, re.MULTILINE)
    named = STOP.findall(page)

    assert [int(stop) for stop in stops] == list(range(1, 11))
    assert len(named) == page.count("::")
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        found = {node.name for node in tree.body if isinstance(node, _NAMED)}
        assert name in found, f"{file}::{name}"


_NAMED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

MODULE = re.compile(r"`((?:src/steadyrun/)?[a-z_]+/[\w/]+\.py)`")


def test_every_module_of_the_architecture_page_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = [name for name in MODULE.findall(page) if not name.startswith(("tests/", "scripts/"))]

    missing = [name for name in named if not (ROOT / "src/steadyrun" / name).exists()]

    assert len(named) >= 20
    assert missing == []


def test_architecture_page_lists_the_layers_of_the_import_rules() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [layers] = [
        contract["layers"]
        for contract in rules["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and contract["containers"] == ["steadyrun"]
    ]
    wanted = [name.strip() for layer in layers for name in layer.split("|")]

    table = page.split("## Layers")[1].split("## ")[0]
    listed = [
        name
        for row in re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]

    assert listed == wanted


DEFINITION = re.compile(r"`(?:src/steadyrun/)?([a-z_]+/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_definition_named_by_a_page_exists(page: Path) -> None:
    named = [
        (file, name)
        for file, name in DEFINITION.findall(page.read_text(encoding="utf-8"))
        if not file.startswith("tests/")
    ]

    missing = [f"{file}::{name}" for file, name in named if name not in find_definitions(file)]

    assert missing == []


def find_definitions(file: str) -> set[str]:
    tree = ast.parse((ROOT / "src/steadyrun" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, _NAMED)}
