"""Homes with a long path: everything works up to the limit, and beyond it the error is named."""

import json
from pathlib import Path

import pytest

from steadyrun.config.locations import LONGEST_HOME_BYTES
from tests.support.cli_home import CliHome, cli_home
from tests.support.commands import steadyrun

COMMANDS = (
    "agents", "up", "up --detach", "send ada hello", "run --provider shell true", "trust", "doctor",
    "config path", "down",
)  # fmt: skip


def make_long(place: Path, length: int) -> Path:
    """A path of so many bytes, most of them in two-byte characters."""
    path = place
    while (room := length - len(bytes(path)) - 1) > 100:
        path /= "é" * 49
    return path / ("x" * room)


def test_home_with_the_longest_path_runs_agents(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.path = make_long(tmp_path, LONGEST_HOME_BYTES)
        home.path.mkdir(parents=True)
        home.add_agent("ada")
        home.up()
        sent = json.loads(home.run("send", "ada", "hello", "--wait", "--json").stdout)
        listed = home.run("tail", "ada")
        direct = home.run("run", "--provider", "shell", "echo hello")
        stopped = home.run("down")

        assert len(bytes(home.path)) == 491
        assert (sent["status"], direct.returncode, stopped.returncode) == ("completed", 0, 0)
        assert (listed.returncode, direct.stdout) == (0, "hello\n")


@pytest.mark.parametrize("length", [492, 495, 600, 3000])
@pytest.mark.parametrize("words", COMMANDS)
def test_home_with_a_longer_path_is_refused_by_name(
    tmp_path: Path, words: str, length: int
) -> None:
    home = make_long(tmp_path, length)

    done = steadyrun(home, *words.split(), cwd=tmp_path)

    assert done.returncode == 2
    assert f"the path of the home has {length} bytes, at most 491 are possible" in done.stderr
    assert "STEADYRUN_HOME" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_home_with_a_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    done = steadyrun(tmp_path / ("x" * 256), "agents", "--json", cwd=tmp_path)

    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, "home_path_too_long")
    assert "256 bytes, at most 255" in error["message"]


def test_link_to_a_home_counts_with_the_path_of_its_target(tmp_path: Path) -> None:
    home = CliHome(tmp_path)
    target = make_long(tmp_path, 492)
    target.mkdir(parents=True)
    home.path.symlink_to(target)

    done = home.run("agents")

    assert done.returncode == 2
    assert "492 bytes" in done.stderr
