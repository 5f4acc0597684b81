"""Checks that the pages are true: links lead to files, commands exist, examples run."""

import re
import shlex
from pathlib import Path

import anyio
import pytest

from steadyrun import __version__
from steadyrun.cli.main import COMMANDS
from tests.support.commands import ROOT, first_run, python, steadyrun

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [body for name, body in FENCE.findall(text) if name == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    targets = [t for t in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in t]

    missing = [target for target in targets if not (page.parent / target).exists()]

    assert missing == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs/decisions"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))

    written = {path.name for path in folder.glob("0*.md")}

    assert written == listed
    assert len(written) >= 8


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")

    missing = [c.words for c in COMMANDS if f"`steadyrun {c.words}" not in page]

    assert missing == []


def test_every_documented_command_exists() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    known = {command.words for command in COMMANDS}

    named = set(re.findall(r"^\| `steadyrun ([a-z]+(?: [a-z]+)?)", page, re.MULTILINE))

    assert named == known


def test_readme_names_both_commands_and_its_examples_run(tmp_path: Path) -> None:
    start, examples = blocks("README.md", "sh")
    home = tmp_path / "home"
    first_run(home)

    typed = [shlex.split(line, comments=True) for line in examples.splitlines()]
    done = [steadyrun(home, *words[1:]) for words in typed]

    assert [line.split("#")[0].split() for line in start.splitlines()] == [
        ["make", "up"],
        ["make", "test"],
    ]
    assert all(words[0] == ".venv/bin/steadyrun" for words in typed)
    assert [each.returncode for each in done] == [0] * 5


def test_readme_shows_the_real_output_of_its_examples(tmp_path: Path) -> None:
    [sample] = blocks("README.md", "python")
    shown_by_python, shown_by_cli = blocks("README.md", "text")
    [_, examples] = blocks("README.md", "sh")
    program = tmp_path / "example.py"
    program.write_text(sample, encoding="utf-8")

    from_python = python(tmp_path / "home", program)
    from_cli = steadyrun(tmp_path / "home", *shlex.split(examples.splitlines()[0])[1:])

    assert from_python.stdout == shown_by_python
    printed = sorted((from_cli.stdout + from_cli.stderr).splitlines())
    assert without_ids(printed) == without_ids(sorted(shown_by_cli.splitlines()))


def test_commands_page_shows_the_real_output_of_its_run(tmp_path: Path) -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"```\n\$ steadyrun run [^\n]*\n(.*?)```", page, re.DOTALL)
    [prompt] = [each for each in blocks("docs/commands.md", "text") if each.startswith("script:")]

    done = steadyrun(tmp_path / "home", "run", "--provider", "scripted", prompt)

    printed = sorted((done.stdout + done.stderr).splitlines())
    expected = sorted(shown.replace("run_…", "run_x").splitlines())
    assert without_ids(printed) == without_ids(expected)


def without_ids(lines: list[str]) -> list[str]:
    """Leave out what differs from run to run: ids and durations."""
    return [re.sub(r"run_\w+|\s*[\d.]+m?s\b", "", line) for line in lines]


TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_every_guarantee_names_a_test_that_exists() -> None:
    page = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    named = TEST_NAME.findall(page)

    missing = [f"{file}::{name}" for file, name in named if not has_test(ROOT / file, name)]

    assert len(named) >= 30
    assert len(named) == page.count("`tests/")
    assert missing == []


def has_test(file: Path, name: str) -> bool:
    """Whether the file has the test; without a name, whether the file exists."""
    if not file.exists() or not name:
        return file.exists()
    return re.search(rf"^(async )?def {name}\(", file.read_text(encoding="utf-8"), re.M) is not None


def test_ci_runs_the_make_targets_for_dependencies_check_and_test() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")

    called = re.findall(r"^make (\S+)$", script, re.MULTILINE)

    assert called == ["ci-deps", "check", "test"]


def test_stores_page_example_runs(tmp_path: Path) -> None:
    [example] = blocks("docs/stores.md", "python")
    home = tmp_path / "home"
    first_run(home)
    names: dict[str, object] = {}

    exec(compile(example, "docs/stores.md", "exec"), names)
    main = names["main"]

    assert callable(main)
    assert anyio.run(main, home) == 6


def test_library_page_example_runs(tmp_path: Path) -> None:
    [example] = blocks("docs/library.md", "python")
    program = tmp_path / "example.py"
    program.write_text(example, encoding="utf-8")

    done = python(tmp_path / "home", program)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("completed ")


def test_changelog_follows_its_format_and_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    versions = re.findall(r"^## \[(.+?)\](?: - \d{4}-\d{2}-\d{2})?$", text, re.MULTILINE)
    headings = set(re.findall(r"^### (.+)$", text, re.MULTILINE))

    assert versions[:2] == ["Unreleased", __version__]
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_agents_page_is_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 40


def test_every_dependency_has_a_reason() -> None:
    page = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    asked = [
        re.split(r"[<>=]", line)[0]
        for name in ("dev", "bench", "lock")
        for line in (ROOT / f"requirements/{name}.in").read_text(encoding="utf-8").splitlines()
        if line and line[0] not in "#-"
    ]

    assert [name for name in asked if name not in page] == []


@pytest.mark.parametrize("lock", ["pip", "dev", "bench", "lock"])
def test_requirements_are_hashed_and_name_no_index(lock: str) -> None:
    text = (ROOT / f"requirements/{lock}.txt").read_text(encoding="utf-8")

    pins = re.findall(r"^\S+==\S+ \\$", text, re.MULTILINE)

    assert pins
    assert text.count("--hash=sha256:") >= len(pins)
    assert not re.search(r"https?://|file://|--index|--find-links", text)
