"""The copy of a file that came with a message is whole, or it is not used."""

import subprocess
from pathlib import Path

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home


def send_file(home: CliHome, file: Path) -> "subprocess.CompletedProcess[str]":
    return home.run("send", "ada", "look", "--file", str(file), "--json")


def test_damaged_copy_of_a_file_is_replaced_when_the_file_is_sent_again(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        file = tmp_path / "notes"
        file.write_bytes(b"some notes")
        assert send_file(home, file).returncode == 0
        [copy] = (home.path / "attachments").iterdir()
        copy.write_bytes(b"some motes")

        assert send_file(home, file).returncode == 0

        assert copy.read_bytes() == b"some notes"


@pytest.mark.parametrize("damage", [b"", b"some motes"])
def test_item_with_a_damaged_copy_fails_with_the_reason(tmp_path: Path, damage: bytes) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        file = tmp_path / "notes"
        file.write_bytes(b"some notes")
        assert send_file(home, file).returncode == 0
        [copy] = (home.path / "attachments").iterdir()
        copy.write_bytes(damage)

        home.up()

        eventually(lambda: "failed" in home.run("inbox", "--all").stdout, "that the item fails")
        [item] = home.read(lambda store: store.items(include_settled=True))
        assert item.error.code == "file_unusable"
        assert item.error.message == "notes: its copy is damaged: its hash has changed"
