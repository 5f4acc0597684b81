"""A socket in a directory with a long path can be bound and reached."""

import os
import socket
from pathlib import Path

import pytest

from steadyrun.lib.unix_socket import shorten_path


def test_socket_with_a_long_path_is_bound_and_reached(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as caller:
        with shorten_path(directory) as path:
            server.bind(path)
        server.listen()
        with shorten_path(directory) as path:
            caller.connect(path)
    assert (directory / "socket").is_socket()


def test_descriptor_is_closed_after_the_block(tmp_path: Path) -> None:
    with shorten_path(tmp_path) as path:
        descriptor = int(path.split("/")[4])
        os.fstat(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), shorten_path(tmp_path / "none"):
        pass
