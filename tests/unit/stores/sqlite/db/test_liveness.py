"""Tests that a holder counts as alive exactly as long as its process lives."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from steadyrun.model.ids import HolderId
from steadyrun.stores.sqlite.db.liveness import Liveness

CHILD = Path(__file__).parents[4] / "children" / "live_holder.py"
HOLDER = HolderId("hld_1")
PATIENCE_SECONDS = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "holders"


def test_holder_is_alive_until_it_is_released(folder: Path) -> None:
    ours, theirs = Liveness(folder), Liveness(folder)
    assert not theirs.is_alive(HOLDER)

    ours.acquire(HOLDER)
    assert ours.is_alive(HOLDER)
    assert theirs.is_alive(HOLDER)

    ours.release(HOLDER)
    assert not theirs.is_alive(HOLDER)
    assert list(folder.iterdir()) == []


def test_repeated_release_is_accepted(folder: Path) -> None:
    presence = Liveness(folder)
    presence.acquire(HOLDER)

    presence.release(HOLDER)
    presence.release(HOLDER)
    presence.release(HolderId("hld_unknown"))
    presence.release_all()

    assert not presence.is_alive(HOLDER)


def test_liveness_check_does_not_disturb_the_holder(folder: Path) -> None:
    ours, theirs = Liveness(folder), Liveness(folder)
    ours.acquire(HOLDER)

    seen = [theirs.is_alive(HOLDER) for _ in range(100)]

    assert seen == [True] * 100


def test_stopped_process_is_alive_and_killed_process_is_not(folder: Path) -> None:
    presence = Liveness(folder)
    with _present(folder) as (child, _):
        assert presence.is_alive(HOLDER)

        os.kill(child.pid, signal.SIGSTOP)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert presence.is_alive(HOLDER)

        child.kill()
        child.wait(PATIENCE_SECONDS)
        assert not presence.is_alive(HOLDER)


def test_children_of_a_killed_holder_do_not_keep_it_alive(folder: Path) -> None:
    presence = Liveness(folder)
    with _present(folder) as (child, heir):
        child.kill()
        child.wait(PATIENCE_SECONDS)

        assert Path(f"/proc/{heir}/comm").read_text() == "cat\n"
        assert not presence.is_alive(HOLDER)


def test_file_of_a_dead_holder_can_be_deleted(folder: Path) -> None:
    presence = Liveness(folder)
    with _present(folder) as (child, _):
        child.kill()
        child.wait(PATIENCE_SECONDS)

    presence.forget(HOLDER)
    presence.forget(HOLDER)

    assert list(folder.iterdir()) == []
    assert not presence.is_alive(HOLDER)


@contextmanager
def _present(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that is a holder, and the id of the process it has started."""
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as child:
        assert child.stdout is not None
        try:
            assert select.select([child.stdout], [], [], PATIENCE_SECONDS)[0]
            yield child, int(child.stdout.readline())
        finally:
            child.kill()
