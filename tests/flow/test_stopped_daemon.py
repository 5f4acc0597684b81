"""What commands say and do while the daemon is stopped (SIGSTOP)."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from steadyrun.lib.flock import is_locked
from steadyrun.lib.processes.tree import is_stopped
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home
from tests.support.commands import COMMAND, environment


@contextmanager
def stopped(home: CliHome, daemon: "subprocess.Popen[str]") -> Iterator[None]:
    """Stop the daemon while it is not writing: otherwise the store is busy for everyone."""
    eventually(lambda: stop_between_writes(home, daemon), "a moment without a write")
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def stop_between_writes(home: CliHome, daemon: "subprocess.Popen[str]") -> bool:
    os.kill(daemon.pid, signal.SIGSTOP)
    eventually(lambda: is_stopped(daemon.pid), "that it is stopped")
    if not is_locked(home.path / "steadyrun.turnstile") and can_write(home.path / "steadyrun.db"):
        return True
    os.kill(daemon.pid, signal.SIGCONT)
    return False


def can_write(database: Path) -> bool:
    with closing(sqlite3.connect(database, timeout=0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


@contextmanager
def home_with_daemon(place: Path) -> Iterator[tuple[CliHome, "subprocess.Popen[str]"]]:
    with cli_home(place) as home:
        # Each message is a run of its own.
        home.add_agent("ada", followup="queue")
        daemon = home.up()
        # An answer shows that it has started completely, so it is stopped while it waits.
        assert home.run("status").returncode == 0
        yield home, daemon


def check_warning(text: str, daemon: "subprocess.Popen[str]") -> None:
    assert f"the daemon {daemon.pid} of " in text
    assert "does not answer: it is stopped" in text
    assert f"Continue it: kill -CONT {daemon.pid}" in text
    assert "no daemon" not in text


def run_together(
    home: CliHome, *commands: Sequence[str]
) -> "list[subprocess.CompletedProcess[str]]":
    """Run commands at the same time: each of them waits for the daemon."""
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda words: home.run(*words), commands))


def test_messages_to_a_stopped_daemon_are_stored_once_and_run_when_it_continues(
    tmp_path: Path,
) -> None:
    with home_with_daemon(tmp_path) as (home, daemon):
        with stopped(home, daemon):
            words = [["send", "ada", f"say {n}", "--json"] for n in range(3)]
            keyed = ["send", "ada", "keyed", "--key", "k", "--json"]
            sent = run_together(home, *words, keyed)
            again = home.run(*keyed)
            queued = json.loads(home.run("inbox", "ada", "--json").stdout)["items"]
        items = {json.loads(each.stdout)["id"] for each in [*sent, again]}
        eventually(lambda: all(home.item(each).is_settled for each in items), "all runs")

        for each in [*sent, again]:
            assert each.returncode == 0
            check_warning(each.stderr, daemon)
        assert {each["id"] for each in queued} == items
        assert len(items) == 4
        assert {home.item(each).status for each in items} == {"completed"}
        assert len(home.runs()) == 4
        assert home.run("send", "ada", "later").stderr == ""


def test_command_that_needs_the_daemon_says_that_it_does_not_answer(tmp_path: Path) -> None:
    lines = ("status", "down", "up --detach", "send ada hello --wait")
    commands = [line.split() for line in lines]
    with home_with_daemon(tmp_path) as (home, daemon):
        with stopped(home, daemon):
            found = run_together(home, *commands, *([*words, "--json"] for words in commands))
        status = home.run("status")

        for line, done, as_json in zip(lines, found, found[len(lines) :], strict=False):
            assert (done.returncode, as_json.returncode) == (69, 69), line
            check_warning(done.stderr, daemon)
            assert json.loads(as_json.stdout)["error"]["code"] == "daemon_not_answering", line
        # Nothing was asked of it: it still runs, and has no item.
        assert status.returncode == 0
        assert daemon.poll() is None
        assert json.loads(home.run("inbox", "--all", "--json").stdout)["items"] == []


def test_tail_says_once_that_the_daemon_does_not_answer_and_reads_the_store(
    tmp_path: Path,
) -> None:
    with home_with_daemon(tmp_path) as (home, daemon):
        notes = tmp_path / "notes"
        with (
            stopped(home, daemon),
            notes.open("w") as file,
            subprocess.Popen(
                [COMMAND, "tail", "ada", "-f"],
                env=environment(home.path),
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            ) as tail,
        ):
            eventually(lambda: "kill -CONT" in notes.read_text(), "the warning")
            item = home.send("ada", {"text": "hello there"})
            os.kill(daemon.pid, signal.SIGCONT)
            eventually(lambda: home.item(item).is_settled, "the run")
            assert tail.stdout
            lines = iter(tail.stdout.readline, "")
            assert any("hello there" in line for line in lines)
            tail.kill()

        check_warning(notes.read_text(), daemon)
        assert notes.read_text().count("does not answer") == 1


def test_daemon_whose_queue_of_callers_is_full_is_reported_as_not_answering(
    tmp_path: Path,
) -> None:
    with home_with_daemon(tmp_path) as (home, daemon), stopped(home, daemon), ExitStack() as ends:
        fill_queue(home, ends)
        status = home.run("status")
        sent = home.run("send", "ada", "hello")

        assert (status.returncode, sent.returncode) == (69, 0)
        for each in (status, sent):
            check_warning(each.stderr, daemon)
            assert "its queue of callers is full" in each.stderr


def fill_queue(home: CliHome, ends: ExitStack) -> None:
    """Connect until no more connections can wait."""
    folder = os.open(home.path / "daemon", os.O_PATH)
    ends.callback(os.close, folder)
    while True:
        end = ends.enter_context(socket.socket(socket.AF_UNIX))
        end.setblocking(False)
        try:
            end.connect(f"/proc/self/fd/{folder}/socket")
        except BlockingIOError:
            return
