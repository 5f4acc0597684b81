"""`doctor` finds what is wrong with a home: its store, its modes, its space and its lock."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import TIMEOUT_SECONDS, CliHome, cli_home, wait_for_text
from tests.support.commands import COMMAND, environment, first_run
from tests.support.require import require


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.add_agent("ada")
        yield found


def check(home: CliHome, *words: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit code of doctor, and its findings by the name of the check."""
    done = home.run("doctor", "--json", *words)
    findings: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(done.stdout)["checks"]:
        findings.setdefault(each["check"], []).append(each)
    return done.returncode, findings


def test_home_in_order_has_no_findings_about_modes_space_and_processes(home: CliHome) -> None:
    home.up()
    home.send("ada", {"text": "done"})
    wait_for_text(home, "done")

    code, findings = check(home, "--deep")

    assert code == 0
    assert {"modes", "space", "process"} & findings.keys() == set()
    assert [each["state"] for each in findings["home"] + findings["store"]] == ["ok", "ok"]
    assert "all rows were read" in findings["store"][0]["detail"]


# -- the store


def test_empty_store_beside_its_log_is_found_and_kept(home: CliHome) -> None:
    database, log = home.path / "steadyrun.db", home.path / "steadyrun.db-wal"
    log.write_bytes(database.read_bytes())
    database.write_bytes(b"")

    code, findings = check(home)

    [store] = findings["store"]
    assert (code, store["state"]) == (1, "fail")
    assert "is empty, but its log has" in store["detail"]
    done = home.run("send", "ada", "hello")
    assert (done.returncode, "is empty" in done.stderr) == (1, True)
    assert (database.stat().st_size, log.stat().st_size > 0) == (0, True)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("UPDATE runs SET body = CAST('{}' AS BLOB)", "runs run_"),
        ("UPDATE event_batches SET body = x'c1'", "event_batches 1"),
        ("UPDATE event_batches SET last_seq = last_seq + 1", "event_batches 1"),
        ("UPDATE items SET payload = CAST('[' AS BLOB)", "items itm_"),
        ("UPDATE items SET text = CAST(x'ff' AS TEXT)", "items: "),
        ("UPDATE agents SET body = CAST('null' AS BLOB)", "agents agt_"),
        ("INSERT INTO sessions VALUES ('agt_1', 'claude', 'one', x'')", "sessions agt_1"),
        ("INSERT INTO gates VALUES ('claude', '', CAST('7' AS BLOB))", "gates claude"),
        ("INSERT INTO approvals VALUES ('apr_1', 'a', 'r', 'tool', 'open', 0, x'')", "approvals"),
        ("UPDATE processes SET opened_at = 9223372036854775807", "processes prc_"),
    ],
)
def test_deep_check_names_a_row_that_cannot_be_decoded(
    home: CliHome, damage: str, named: str
) -> None:
    first_run(home.path)
    assert home.run("send", "ada", "hello").returncode == 0
    with closing(sqlite3.connect(home.path / "steadyrun.db")) as connection:
        assert connection.execute(damage).rowcount > 0
        connection.commit()

    assert check(home)[1]["store"][0]["state"] == "ok"
    code, findings = check(home, "--deep")

    assert (code, findings["store"][0]["state"]) == (1, "fail")
    assert named in findings["store"][0]["detail"]
    assert "steadyrun restore" in findings["store"][0]["repair"]


def test_many_problems_are_counted(home: CliHome) -> None:
    for n in range(8):
        assert home.run("send", "ada", f"text {n}").returncode == 0
    with closing(sqlite3.connect(home.path / "steadyrun.db")) as connection:
        connection.execute("UPDATE items SET payload = CAST('[' AS BLOB)")
        connection.commit()

    findings = check(home, "--deep")[1]["store"]

    assert [each["state"] for each in findings] == ["fail"] * 6
    assert "3 more problems" in findings[-1]["detail"]


# -- modes and space


@pytest.mark.parametrize(
    "name", ["steadyrun.db", "holders", "attachments", "processes", "daemon", "daemon/lock"]
)
def test_loose_modes_are_found(home: CliHome, name: str) -> None:
    file = home.place / "notes"
    file.write_text("some notes")
    assert home.run("send", "ada", "look", "--file", str(file)).returncode == 0
    home.up()
    eventually((home.path / "processes").exists, "a process")
    (home.path / name).chmod(0o755)

    code, findings = check(home)

    [modes] = findings["modes"]
    assert (code, modes["state"]) == (0, "warn")
    assert name in modes["detail"].split()
    assert modes["repair"] == f"chmod -R go-rwx {home.path}"


@pytest.mark.parametrize(("mode", "is_found"), [(0o644, False), (0o664, True), (0o646, True)])
def test_settings_that_other_users_may_change_are_found(
    home: CliHome, mode: int, is_found: bool
) -> None:
    config = home.path / "config.toml"
    config.write_text("")
    config.chmod(mode)

    assert ("modes" in check(home)[1]) is is_found


def test_full_disk_is_found(tmp_path: Path) -> None:
    require("unshare", shutil.which("unshare") is not None, "no tmpfs can be mounted")
    place = tmp_path / "small"
    place.mkdir()
    script = 'mount -t tmpfs -o size=20m none "$0" && exec "$1" doctor --json'

    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, str(place), str(COMMAND)],
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    [space] = [each for each in json.loads(done.stdout)["checks"] if each["check"] == "space"]
    assert (space["state"], "bytes are free" in space["detail"]) == ("fail", True)


# -- the lock of the daemon


def test_daemon_restores_its_lock_file(home: CliHome) -> None:
    daemon, lock = home.up(), home.path / "daemon/lock"

    lock.unlink()

    eventually(lambda: lock.exists() and lock.read_text() == f"{daemon.pid}\n", "the new lock")
    assert home.run("up").returncode == 5
    assert "daemon.relocked" in "\n".join(home.read_log())
    home.send("ada", {"text": "still at work"})
    wait_for_text(home, "still at work")


@pytest.mark.parametrize("deleted", ["lock", "daemon"])
def test_second_daemon_is_refused_while_the_lock_of_the_first_is_deleted(
    home: CliHome, deleted: str
) -> None:
    first, folder = home.up(), home.path / "daemon"
    # Stopped in the middle of a write, it would block the store for all.
    eventually(lambda: home.read(lambda store: store.get("alive_at")), "the last write of a start")
    assert home.run("status").returncode == 0
    os.kill(first.pid, signal.SIGSTOP)
    try:
        if deleted == "lock":
            (folder / "lock").unlink()
        else:
            shutil.rmtree(folder)
        second = home.run("up")
        found = check(home)[1]["daemon"][0]
    finally:
        os.kill(first.pid, signal.SIGCONT)

    assert (second.returncode, "serves" in second.stderr) == (5, True), second.stderr
    assert deleted == "daemon" or (found["state"], "not locked" in found["detail"]) == (
        "fail",
        True,
    )
    lock = folder / "lock"
    eventually(lambda: lock.exists() and lock.read_text() == f"{first.pid}\n", "the lock")
    assert first.poll() is None
