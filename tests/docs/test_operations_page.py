"""Checks the page about operations: its unit, its facts, its errors and its backup."""

import ast
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from steadyrun import errors
from steadyrun.cli.systemd import (
    ADVISED_SETTINGS,
    REQUIRED_SETTINGS,
    SystemdUnit,
    find_units,
    read_service,
)
from steadyrun.runtime.log import LOG_EVENTS
from tests.support.commands import COMMAND, ROOT, environment, first_run, steadyrun

PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_doctor_accepts_the_unit_on_the_page(tmp_path: Path) -> None:
    unit = tmp_path / ".config/systemd/user/steadyrun.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(block("ini"))

    program = tmp_path / ".local/bin/steadyrun"
    program.parent.mkdir(parents=True)
    program.touch()

    assert list(find_units({"HOME": str(tmp_path)}, tmp_path)) == [SystemdUnit(unit)]
    service = read_service([unit.read_text()])
    assert service["ExecStop"].endswith("steadyrun down --keep")
    assert (service["TimeoutStopSec"], service["Restart"]) == ("90", "on-failure")


def test_page_explains_each_line_that_doctor_requires() -> None:
    settings = {**REQUIRED_SETTINGS, **ADVISED_SETTINGS}
    assert [key for key, value in settings.items() if f"| `{key}={value}` |" not in PAGE] == []


def test_page_lists_exactly_the_facts() -> None:
    listed = re.findall(r"^\| `([a-z._]+)` \| (info|warning|error) \| (.+) \|$", PAGE, re.MULTILINE)

    assert listed == [(kind.name, kind.level, kind.meaning) for kind in LOG_EVENTS]


def test_every_fact_is_logged_in_the_code() -> None:
    calls = [
        node
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "log_event"
    ]
    logged = {node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)}

    assert logged == {kind.name for kind in LOG_EVENTS}


def test_page_has_a_remedy_for_every_error_of_the_store() -> None:
    kinds = errors.StoreFailed.__subclasses__()
    # The message of this error names its cause: the file belongs to another program.
    codes = {kind.code for kind in kinds} - {errors.StoreForeign.code}

    assert len(codes) >= 5
    assert [code for code in sorted(codes) if f"`{code}`" not in PAGE] == []


def test_backup_made_as_on_the_page_can_be_restored(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    run = first_run(home)
    (home / "roles").mkdir()
    (home / "roles" / "coder.md").write_text("You write code.")
    path = f"{COMMAND.parent}:{environment(home)['PATH']}"

    with closing(sqlite3.connect(home / "steadyrun.db")) as user:
        user.execute("SELECT count(*) FROM runs").fetchall()
        done = subprocess.run(
            ["sh", "-eu", "-c", block("sh")],
            env={**environment(home), "PATH": path},
            timeout=60,
            check=False,
        )
    [copy] = home.glob("steadyrun-*.backup")

    assert (done.returncode, copy.stat().st_mode & 0o777) == (0, 0o600)
    assert steadyrun(other, "restore", str(copy)).returncode == 0
    assert (other.stat().st_mode & 0o777, (other / "roles/coder.md").exists()) == (0o700, True)
    assert (other / "steadyrun.db").stat().st_mode & 0o777 == 0o600
    assert run in steadyrun(other, "runs").stdout
    assert steadyrun(other, "doctor").returncode == 0
