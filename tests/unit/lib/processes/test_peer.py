"""The process at the other end of a real socket, also after it has ended."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from steadyrun.lib.processes.peer import find_this_process, open_peer
from steadyrun.lib.processes.tree import read_start

# It connects, and ends when stdin is closed.
CALLER = """
import socket, sys
end = socket.socket(socket.AF_UNIX)
end.connect(sys.argv[1])
input()
"""


@contextmanager
def connected(place: Path) -> Iterator[tuple["subprocess.Popen[bytes]", socket.socket]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "s"))
        listener.listen()
        words = [sys.executable, "-c", CALLER, str(place / "s")]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as caller:
            accepted, _ = listener.accept()
            with accepted:
                yield caller, accepted


def test_peer_is_the_process_that_connected_until_it_ends(tmp_path: Path) -> None:
    with connected(tmp_path) as (caller, accepted), open_peer(accepted) as peer:
        assert (peer.pid, peer.uid) == (caller.pid, os.getuid())
        assert peer.is_running()
        caller.kill()
        caller.wait()
        assert not peer.is_running()


def test_peer_that_ended_before_it_was_identified_is_not_running(tmp_path: Path) -> None:
    with connected(tmp_path) as (caller, accepted):
        caller.kill()
        caller.wait()
        with open_peer(accepted) as peer:
            assert peer.pid == caller.pid
            assert not peer.is_running()


def test_without_a_pidfd_the_time_of_the_start_identifies_the_peer(tmp_path: Path) -> None:
    with connected(tmp_path) as (caller, accepted), open_peer(accepted) as peer:
        plain = replace(peer, pidfd=None, started=read_start(caller.pid))
        other = replace(peer, pidfd=None, started=(plain.started or 0) - 1)
        assert plain.is_running()
        # Another process has got its id.
        assert not other.is_running()
        caller.kill()
        caller.wait()
        assert not plain.is_running()


def test_this_process_is_running() -> None:
    this = find_this_process()

    assert (this.pid, this.uid) == (os.getpid(), os.geteuid())
    assert this.is_running()
