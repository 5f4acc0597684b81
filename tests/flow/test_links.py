"""Links in the place of files of the home: nothing is written through them."""

import json
import os
from pathlib import Path

import pytest

from steadyrun.lib.safe_paths import make_directory, open_own
from tests.children.keeper_driver import spec, start
from tests.support.cli_home import cli_home
from tests.support.commands import steadyrun

FILES = {
    "daemon/lock": "up",
    "daemon/log": "up --detach",
    "seal": "up",
    "steadyrun.db": "agents",
    "steadyrun.turnstile": "agents",
}
DIRECTORIES = {
    "daemon": "up",
    "holders": "run --provider shell true",
    "processes": "run --provider shell true",
    "attachments": "send ada hello --file {place}/sent.txt",
}
REFUSED = "is a symbolic link, which is not followed"


@pytest.mark.parametrize(("name", "words"), FILES.items(), ids=FILES)
@pytest.mark.parametrize("is_there", [True, False], ids=["target", "dangling"])
def test_file_of_the_home_that_is_a_link_is_refused(
    tmp_path: Path, name: str, words: str, is_there: bool
) -> None:
    home, target = tmp_path / "home", tmp_path / "target"
    link = home / name
    link.parent.mkdir(parents=True, mode=0o700)
    link.symlink_to(target)
    if is_there:
        target.write_text("precious")

    done = steadyrun(home, *words.split())

    assert done.returncode != 0
    assert f"{link}: {REFUSED}" in done.stderr
    assert target.exists() == is_there
    assert not is_there or target.read_text() == "precious"


@pytest.mark.parametrize(("name", "words"), DIRECTORIES.items(), ids=DIRECTORIES)
@pytest.mark.parametrize("is_there", [True, False], ids=["target", "dangling"])
def test_directory_of_the_home_that_is_a_link_is_refused(
    tmp_path: Path, name: str, words: str, is_there: bool
) -> None:
    target = tmp_path / "target"
    (tmp_path / "sent.txt").write_text("content")
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        (home.path / name).symlink_to(target)
        if is_there:
            target.mkdir()
        done = home.run(*words.format(place=tmp_path).split())

        assert done.returncode != 0
        assert REFUSED in done.stdout + done.stderr
        assert target.exists() == is_there
        assert not is_there or list(target.iterdir()) == []
        (home.path / name).unlink()


@pytest.mark.parametrize("name", ["lock", "journal", "stderr", "exit.new"])
def test_keeper_does_not_write_through_links_in_its_directory(tmp_path: Path, name: str) -> None:
    place, target = tmp_path / "place", tmp_path / "target"
    place.mkdir()
    target.write_text("precious")
    (place / name).symlink_to(target)

    answer = start(spec(place, ["echo", "hello"]))

    assert answer["error"]["code"] == "failed"
    assert target.read_text() == "precious"


def test_keeper_does_not_use_a_directory_that_is_a_link(tmp_path: Path) -> None:
    place, target = tmp_path / "place", tmp_path / "target"
    target.mkdir()
    place.symlink_to(target)

    answer = start(spec(place, ["echo", "hello"]))

    assert answer["error"]["code"] == "failed"
    assert list(target.iterdir()) == []


def test_home_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        (tmp_path / "elsewhere").mkdir()
        home.path.symlink_to(tmp_path / "elsewhere")
        home.add_agent("ada")
        home.up()
        sent = home.run("send", "ada", "hello", "--wait", "--json")

        assert json.loads(sent.stdout)["status"] == "completed"
        assert (tmp_path / "elsewhere" / "steadyrun.db").is_file()


def test_output_that_the_user_names_may_be_in_a_directory_that_is_a_link(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        (tmp_path / "real").mkdir()
        (tmp_path / "out").symlink_to(tmp_path / "real")
        run = json.loads(home.run("run", "--provider", "shell", "--json", "true").stdout)["run"]
        done = home.run("export", run, "-o", str(tmp_path / "out" / "run.tar.gz"))

        assert done.returncode == 0, done.stderr
        assert (tmp_path / "real" / "run.tar.gz").is_file()


def test_pipe_in_the_place_of_a_file_is_refused_and_does_not_block(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "daemon").mkdir(parents=True, mode=0o700)
    for name in ("lock", "log"):
        os.mkfifo(home / "daemon" / name)

    foreground, background = steadyrun(home, "up"), steadyrun(home, "up", "--detach")

    assert foreground.returncode != 0
    assert background.returncode != 0
    assert "daemon/lock: expected a regular file" in foreground.stderr


def test_own_files_and_directories_are_private(tmp_path: Path) -> None:
    make_directory(tmp_path / "new" / "inner")
    os.close(open_own(tmp_path / "new" / "file", os.O_WRONLY))
    modes = [(tmp_path / "new" / name).stat().st_mode & 0o777 for name in ("", "inner", "file")]

    assert modes == [0o700, 0o700, 0o600]
