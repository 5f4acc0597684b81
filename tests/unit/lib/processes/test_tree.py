"""The ancestors of real processes, and what is known of processes that have ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from steadyrun.lib.processes.tree import (
    find_in_lineage,
    is_stopped,
    list_lineage,
    read_start,
    read_variable,
    read_words,
)
from tests.children.keeper_driver import eventually

# A process with a child that prints its id; both end when stdin is closed.
PARENT = """
import subprocess, sys
script = "import os; print(os.getpid(), flush=True); input()"
subprocess.Popen([sys.executable, "-c", script]).wait()
"""
# A process with a child that prints its id and stays.
ORPHAN = """
import os, time
if os.fork():
    input()
print(os.getpid(), flush=True)
time.sleep(60)
"""


@contextmanager
def parent_and_child() -> Iterator[tuple[int, int]]:
    words = [sys.executable, "-c", PARENT, "a word ) with (brackets"]
    env = {"PATH": "/usr/bin:/bin", "STEADYRUN_X": "1", "X": "2"}
    with subprocess.Popen(
        words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout
        yield parent.pid, int(parent.stdout.readline())


def test_lineage_goes_from_a_process_to_the_first_one() -> None:
    with parent_and_child() as (parent, child):
        found = list_lineage(child)

    assert found[:3] == [child, parent, os.getpid()]
    assert list_lineage(child) == []


def test_first_result_is_that_of_the_nearest_ancestor() -> None:
    with parent_and_child() as (parent, child):
        known = {parent: "parent", os.getpid(): "this"}

        assert find_in_lineage(child, known.get) == "parent"
        assert find_in_lineage(parent, lambda pid: None) is None


def test_lineage_that_changes_is_read_again_until_it_stays_the_same() -> None:
    """The parent ends while the ancestors are read: the child has another parent then."""
    seen: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as parent:  # fmt: skip
        assert parent.stdin
        assert parent.stdout
        child = int(parent.stdout.readline())

        def look(pid: int) -> None:
            seen.append(pid)
            if seen == [child]:
                parent.kill()
                parent.wait()

        found = find_in_lineage(child, look)
        os.kill(child, 9)

    assert found is None
    assert seen.count(child) == 2
    assert parent.pid not in seen[seen.index(child, 1) :]


def test_lineage_that_never_stays_the_same_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(1000))
    monkeypatch.setattr("steadyrun.lib.processes.tree.list_lineage", lambda _: [next(numbers)])

    with pytest.raises(TimeoutError):
        find_in_lineage(1, lambda _: None)


def test_facts_of_a_process_are_read_and_those_of_an_ended_one_are_missing() -> None:
    with parent_and_child() as (parent, child):
        assert read_words(parent)[-1] == b"a word ) with (brackets"
        assert read_variable(parent, "X") == "2"
        assert read_variable(parent, "STEADYRUN_") is None
        assert not is_stopped(parent)
        os.kill(parent, signal.SIGSTOP)
        eventually(lambda: is_stopped(parent), "that it is stopped")
        os.kill(parent, signal.SIGCONT)
        started = read_start(parent)
        assert started is not None
        assert started <= (read_start(child) or 0)

    assert (read_words(parent), read_variable(parent, "X")) == ([], None)
    assert (read_start(parent), is_stopped(parent)) == (None, False)
