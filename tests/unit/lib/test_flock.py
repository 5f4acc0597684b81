"""A lock on a file is seen by other descriptors and released with its own."""

import os
import threading
from pathlib import Path

from steadyrun.lib.flock import is_locked, lock, open_lock, try_lock, unlock, wait_until_unlocked


def test_missing_file_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
    wait_until_unlocked(tmp_path / "lock")
    assert not (tmp_path / "lock").exists()


def test_only_one_descriptor_gets_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    first, second = open_lock(file), open_lock(file)
    assert not is_locked(file)
    lock(first)
    assert is_locked(file)
    assert not try_lock(second)
    unlock(first)
    assert try_lock(second)
    os.close(first)
    assert is_locked(file)
    os.close(second)
    assert not is_locked(file)


def test_lock_file_is_private(tmp_path: Path) -> None:
    os.close(open_lock(tmp_path / "lock"))
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_wait_ends_when_the_lock_is_released(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    held = open_lock(file)
    lock(held)
    waiter = threading.Thread(target=wait_until_unlocked, args=(file,))
    waiter.start()
    assert waiter.is_alive()
    os.close(held)
    waiter.join(timeout=10)
    assert not waiter.is_alive()
