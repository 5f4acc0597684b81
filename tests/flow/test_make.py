"""The commands the README names, on machines that lack something, and a plain installation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, environment, steadyrun

TARGETS = ("setup", "up", "test", "check", "bench", "ci-deps")


def make(path: str, *words: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """Run make with only `path` to find programs on."""
    return subprocess.run(
        [shutil.which("make") or "make", *words],
        cwd=cwd,
        env={"PATH": path, "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with the usual programs except python3 and git; a test adds what it wants."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "awk", "echo", "test", "rm", "env", "touch"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The parts of the tree that setting up begins with, without an environment."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements", "scripts"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tree / name)
    return tree


def test_make_without_a_target_lists_the_commands() -> None:
    done = make(os.defpath)

    assert done.returncode == 0
    assert all(f"make {target} " in done.stdout for target in TARGETS)


@pytest.mark.parametrize("target", ["up", "test"])
def test_make_without_python_and_git_names_the_packages(
    tools: Path, checkout: Path, target: str
) -> None:
    done = make(str(tools), target, cwd=checkout)

    assert done.returncode == 2
    assert "apt-get install -y python3 python3-venv git" in done.stderr
    assert not (checkout / ".venv").exists()


def test_make_without_git_names_only_git(tools: Path, checkout: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)

    done = make(str(tools), "setup", cwd=checkout)

    assert done.returncode == 2
    assert "apt-get install -y git\n" in done.stderr


def test_python_without_venv_names_the_package_to_install(tools: Path, checkout: Path) -> None:
    python = tools / "python3"
    # As on Debian without python3-venv: the module ensurepip is not there.
    python.write_text(
        f'#!/bin/sh\ncase $2 in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    (tools / "git").symlink_to(shutil.which("git") or "git")

    done = make(str(tools), "setup", cwd=checkout)

    assert done.returncode == 2
    assert "apt-get install -y python3-venv" in done.stderr


def test_second_make_setup_does_nothing() -> None:
    if not (ROOT / ".venv/.ready").exists():
        pytest.skip("the tests run in another environment than make's")
    before = (ROOT / ".venv/.ready").stat().st_mtime_ns

    done = make(os.defpath, "--dry-run", "setup")

    assert "pip install" not in done.stdout
    assert (ROOT / ".venv/.ready").stat().st_mtime_ns == before


FAILING_TESTS = """
def test_addition_fails():
    assert 1 + 1 == 3


def test_missing_fixture(absent):
    pass
"""


def test_names_of_failed_tests_are_repeated_at_the_end(tmp_path: Path) -> None:
    for folder in ("scripts", "tests"):
        (tmp_path / folder).mkdir()
    script = shutil.copy(ROOT / "scripts/run_tests.py", tmp_path / "scripts")
    (tmp_path / "tests/test_one.py").write_text(FAILING_TESTS)

    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )

    failed, error, sums = done.stdout.splitlines()[-3:]
    assert failed.startswith("FAILED tests/test_one.py::test_addition_fails")
    assert error.startswith("ERROR tests/test_one.py::test_missing_fixture")
    assert sums.startswith("all: 1 failed, 1 errors in ")
    assert done.returncode == 1


def test_demo_creates_nothing_that_other_users_can_read(tmp_path: Path) -> None:
    home = tmp_path / "parent/home"
    demo = subprocess.Popen(
        [sys.executable, ROOT / "scripts/demo.py"],
        env=environment(home),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        umask=0o022,
    )
    try:
        assert demo.stdout
        assert any(line.startswith("* up") for line in demo.stdout)
        sent = steadyrun(home, "send", "demo", "hello", "--wait")
        assert sent.returncode == 0
        found = [home.parent, home, *home.rglob("*")]
        modes = {each: each.lstat().st_mode for each in found if not each.is_symlink()}
        others = {each: mode for each, mode in modes.items() if mode & 0o077}
        assert home / "processes" in modes
        assert others == {}
    finally:
        demo.terminate()
        demo.communicate(timeout=60)


def test_a_plain_installation_gives_a_working_command(tmp_path: Path) -> None:
    """`pip install .` into an empty environment, from a copy so that nothing of ours is at hand."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(
        ".venv", ".git", "__pycache__", ".cache", ".*_cache", ".hypothesis", "tests"
    )
    shutil.copytree(ROOT, source, ignore=ignored)
    empty = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", empty], check=True)
    home = tmp_path / "home"

    install: list[str | Path] = [empty / "bin/python", "-m", "pip", "install", "--quiet", source]
    subprocess.run(install, check=True, cwd=tmp_path, capture_output=True, timeout=300)
    clean = environment(home)
    version = subprocess.run(
        [empty / "bin/steadyrun", "--version"], env=clean, capture_output=True, check=True
    )
    listed = subprocess.run(
        [empty / "bin/steadyrun", "runs"], env=clean, capture_output=True, check=True, cwd=tmp_path
    )

    assert version.stdout == b"steadyrun 0.1.0\n"
    assert listed.stdout == b"No runs yet.\n"
    assert (home / "steadyrun.db").stat().st_mode & 0o777 == 0o600
