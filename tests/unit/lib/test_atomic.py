"""Files and links are replaced whole, and a failed attempt leaves nothing behind."""

from pathlib import Path

import pytest

from steadyrun.lib.atomic import make_private_directory, write_file, write_link


@pytest.mark.parametrize("is_durable", [True, False])
def test_file_is_created_and_replaced(tmp_path: Path, is_durable: bool) -> None:
    file = tmp_path / "file"
    write_file(file, b"one", is_durable=is_durable)
    write_file(file, b"two", is_durable=is_durable)
    assert file.read_bytes() == b"two"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_every_created_level_of_a_directory_is_private(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "one/two/three")
    make_private_directory(tmp_path / "one/two/three")
    created = [tmp_path / each for each in ("one", "one/two", "one/two/three")]
    assert [each.stat().st_mode & 0o777 for each in created] == [0o700] * 3


def test_failed_write_keeps_the_old_file_and_no_draft(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(folder, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_reader_with_the_old_file_open_still_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_file(file, b"old")
    with file.open("rb") as stream:
        write_file(file, b"new")
        assert stream.read() == b"old"


def test_link_is_created_and_replaced(tmp_path: Path) -> None:
    link = tmp_path / "link"
    write_link(link, Path("one"))
    write_link(link, Path("two"))
    assert link.readlink() == Path("two")
    assert [each.name for each in tmp_path.iterdir()] == ["link"]
