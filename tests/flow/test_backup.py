"""`backup` writes one private file, and `restore` puts it in place completely or not at all."""

import hashlib
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, end_daemon, wait_for_text
from tests.support.commands import COMMAND, environment, first_run, steadyrun

KILLS = 8


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.add_agent("ada")
        yield found


@pytest.fixture
def copy(home: CliHome) -> Path:
    """A backup with one item and its file; the home has one more item."""
    file = home.place / "notes"
    file.write_text("some notes")
    assert home.run("send", "ada", "before", "--file", str(file)).returncode == 0
    copy = home.place / "copy"
    done = home.run("backup", str(copy))
    assert done.returncode == 0, done.stderr
    assert home.run("send", "ada", "after").returncode == 0
    return copy


def read_texts(home: CliHome) -> list[str]:
    listed = home.run("inbox", "--all", "--json")
    assert listed.returncode == 0, listed.stderr
    return sorted(each["text"] for each in json.loads(listed.stdout)["items"])


def list_names(copy: Path) -> list[str]:
    with tarfile.open(copy) as tar:
        return tar.getnames()


def refuse(home: CliHome, *words: str, code: int) -> str:
    """The words of a command that is refused."""
    done = home.run(*words)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stderr


def has_open(process: "subprocess.Popen[str]", file: Path) -> bool:
    links = Path(f"/proc/{process.pid}/fd").iterdir()
    return str(file) in [os.path.realpath(link) for link in links]


# -- backup


def test_backup_is_one_private_file_with_the_store_and_all_that_belongs_to_it(
    home: CliHome,
) -> None:
    (home.path / "config.toml").write_text("")
    (home.path / "roles").mkdir()
    (home.path / "roles" / "coder.md").write_text("You write code.")
    (home.path / "roles" / "notes.txt").write_text("no role")
    file = home.place / "notes"
    file.write_text("some notes")
    assert home.run("send", "ada", "look", "--file", str(file)).returncode == 0
    copy = home.place / "copy"

    done = json.loads(home.run("backup", str(copy), "--json").stdout)

    [attached] = [each.name for each in (home.path / "attachments").iterdir()]
    assert sorted(list_names(copy)) == [
        f"attachments/{attached}", "backup.json", "config.toml", "roles/coder.md", "steadyrun.db",
    ]  # fmt: skip
    assert copy.stat().st_mode & 0o777 == 0o600
    assert done == {
        "file": str(copy),
        "bytes": copy.stat().st_size,
        "attachments": 1,
        "settings": ["config.toml", "roles/coder.md"],
        "left_out": [],
    }
    assert [each.name for each in home.place.glob(".new-*")] == []


def test_existing_file_is_replaced_only_by_force(home: CliHome) -> None:
    copy = home.place / "copy"
    copy.write_text("mine")

    assert "exists already" in refuse(home, "backup", str(copy), code=5)
    assert copy.read_text() == "mine"

    assert home.run("backup", str(copy), "--force").returncode == 0
    assert "steadyrun.db" in list_names(copy)


@pytest.mark.parametrize("exists", [True, False])
def test_link_in_place_of_the_backup_is_not_followed(home: CliHome, exists: bool) -> None:
    target, copy = home.place / "target", home.place / "copy"
    if exists:
        target.write_text("mine")
    copy.symlink_to(target)

    refuse(home, "backup", str(copy), code=5)
    assert home.run("backup", str(copy), "--force").returncode == 0

    assert (target.exists(), copy.is_symlink()) == (exists, False)
    assert not exists or target.read_text() == "mine"


def test_links_and_damaged_copies_are_left_out_and_named(home: CliHome, copy: Path) -> None:
    (home.path / "trusted.json").symlink_to(home.place / "notes")
    [attached] = (home.path / "attachments").iterdir()
    attached.write_text("other notes")

    done = home.run("backup", str(home.place / "second"), "--json")

    assert json.loads(done.stdout)["left_out"] == ["trusted.json", f"attachments/{attached.name}"]
    assert list_names(home.place / "second") == ["backup.json", "steadyrun.db"]


def test_backup_of_a_damaged_store_is_refused_and_leaves_no_file(home: CliHome) -> None:
    for n in range(40):
        assert home.run("send", "ada", f"text {n} " * 200).returncode == 0
    database = home.path / "steadyrun.db"
    content = database.read_bytes()
    database.write_bytes(content[:16384] + os.urandom(len(content) - 16384))

    assert "damaged" in refuse(home, "backup", str(home.place / "copy"), code=1)

    assert not (home.place / "copy").exists()
    assert list(home.place.glob(".new-*")) == []


def test_home_without_a_store_has_no_backup(tmp_path: Path) -> None:
    done = steadyrun(tmp_path / "none", "backup", str(tmp_path / "copy"))

    assert (done.returncode, "does not exist" in done.stderr) == (1, True)
    assert [each.name for each in tmp_path.iterdir()] == []


def test_agent_can_neither_back_up_nor_restore(home: CliHome, copy: Path) -> None:
    env = {**environment(home.path), "STEADYRUN_PROCESS": "prc_1"}
    for words in (["backup", str(home.place / "second")], ["restore", str(copy)]):
        done = subprocess.run([COMMAND, *words], env=env, capture_output=True, check=False)
        assert (done.returncode, b"an agent cannot" in done.stderr) == (4, True)

    assert read_texts(home) == ["after", "before"]


# -- restore


def test_restore_puts_the_backup_in_place_and_keeps_the_old_store(
    home: CliHome, copy: Path
) -> None:
    done = json.loads(home.run("restore", str(copy), "--json").stdout)

    assert read_texts(home) == ["before"]
    kept = Path(done["replaced"])
    assert kept.parent == home.path
    assert {kept.stat().st_mode & 0o777, (home.path / "steadyrun.db").stat().st_mode & 0o777} == {
        0o600
    }
    with closing(sqlite3.connect(kept)) as connection:
        found = connection.execute("SELECT text FROM items ORDER BY seq").fetchall()
    assert found == [("before",), ("after",)]
    assert (done["kept"], done["set_aside"], done["file"]) == ([], [], str(copy))
    assert home.run("doctor").returncode == 0


def test_backup_is_restored_to_a_home_that_is_lost(home: CliHome, copy: Path) -> None:
    other = CliHome(home.place / "other")
    other.place.mkdir()

    done = other.run("restore", str(copy), "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["replaced"] is None
    assert read_texts(other) == ["before"]
    [attached] = (other.path / "attachments").iterdir()
    assert (attached.read_text(), attached.stat().st_mode & 0o777) == ("some notes", 0o600)
    assert other.path.stat().st_mode & 0o777 == 0o700


def test_files_of_the_home_are_kept_and_damaged_copies_replaced(home: CliHome) -> None:
    config = home.path / "config.toml"
    config.write_text("# at the backup\n")
    file = home.place / "notes"
    file.write_text("some notes")
    assert home.run("send", "ada", "look", "--file", str(file)).returncode == 0
    copy = home.place / "copy"
    assert home.run("backup", str(copy)).returncode == 0
    config.write_text("# changed\n")
    [attached] = (home.path / "attachments").iterdir()
    attached.write_text("other notes")

    done = json.loads(home.run("restore", str(copy), "--json").stdout)

    assert (done["kept"], config.read_text()) == (["config.toml"], "# changed\n")
    assert attached.read_text() == "some notes"


@pytest.mark.parametrize("old", ["empty", "noise", "missing"])
def test_damaged_store_is_replaced_and_kept(home: CliHome, copy: Path, old: str) -> None:
    database = home.path / "steadyrun.db"
    content = {"empty": b"", "noise": random.Random(1).randbytes(50_000), "missing": None}[old]
    if content is None:
        database.unlink()
    else:
        database.write_bytes(content)
    (home.path / "steadyrun.db-wal").write_bytes(b"log of the old store")

    done = json.loads(home.run("restore", str(copy), "--json").stdout)

    assert read_texts(home) == ["before"]
    assert (
        not (home.path / "steadyrun.db-wal").exists()
        or b"old" not in (home.path / "steadyrun.db-wal").read_bytes()
    )
    if content is not None:
        assert Path(done["replaced"]).read_bytes() == content
        assert Path(done["replaced"] + "-wal").read_bytes() == b"log of the old store"


def test_restore_is_refused_while_a_daemon_runs(home: CliHome, copy: Path) -> None:
    home.up()

    said = refuse(home, "restore", str(copy), code=5)

    assert "serves" in said
    assert "--stop" in said
    assert "after" in read_texts(home)


def test_restore_is_refused_while_a_process_of_an_agent_runs(home: CliHome, copy: Path) -> None:
    daemon = home.up()
    home.send("ada", {"text": "begun"}, {"until": str(home.place / "gate")})
    wait_for_text(home, "begun")
    end_daemon(daemon, signal.SIGKILL)

    said = refuse(home, "restore", str(copy), code=5)

    assert "1 processes of agents run" in said
    assert home.list_live_pids() != []


def test_restore_is_refused_while_a_program_has_the_store_open(home: CliHome, copy: Path) -> None:
    other = home.start("tail", "--all", "-f", into=home.place / "tail")
    eventually(lambda: has_open(other, home.path / "steadyrun.db"), "the store that is open")

    assert "another process has the store open" in refuse(home, "restore", str(copy), code=5)

    end_daemon(other, signal.SIGKILL)
    assert home.run("restore", str(copy)).returncode == 0


def test_restore_with_stop_ends_the_daemon_and_its_runs(home: CliHome, copy: Path) -> None:
    daemon = home.up()
    home.send("ada", {"text": "begun"}, {"until": str(home.place / "gate")})
    wait_for_text(home, "begun")

    done = home.run("restore", str(copy), "--stop")

    assert done.returncode == 0, done.stderr
    assert daemon.wait(60) == 0
    assert home.list_live_pids() == []
    assert read_texts(home) == ["before"]


# -- files that are no backups


def rewrite(copy: Path, change: Any) -> None:
    """Write the archive again with changed members."""
    with tarfile.open(copy) as tar:
        members = [(each, tar.extractfile(each)) for each in tar.getmembers()]
        content = [(info, stream.read() if stream else b"") for info, stream in members]
    with tarfile.open(copy, "w") as tar:
        for info, data in change(content):
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def add_member(name: str, kind: bytes = tarfile.REGTYPE) -> Any:
    def change(content: list[tuple[tarfile.TarInfo, bytes]]) -> Any:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        return [*content, (info, b"")]

    return change


def damage(name: str) -> Any:
    def change(content: list[tuple[tarfile.TarInfo, bytes]]) -> Any:
        flip = bytes.maketrans(b"e", b"f")
        return [
            (info, data.translate(flip) if info.name.startswith(name) else data)
            for info, data in content
        ]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (add_member("../escaped"), "has a member '../escaped'"),
        (add_member("/etc/escaped"), "has a member '/etc/escaped'"),
        (add_member("roles/coder.md", tarfile.SYMTYPE), "has a member 'roles/coder.md'"),
        (add_member("trusted.json", tarfile.LNKTYPE), "has a member 'trusted.json'"),
        (add_member("config.toml"), "its files are not those of its list"),
        (add_member("steadyrun.db"), "has a member 'steadyrun.db'"),
        (lambda content: content[1:], "it has no list of its files"),
        (lambda content: content[:1], "its files are not those of its list"),
        (damage("steadyrun.db"), "steadyrun.db has another hash"),
        (damage("attachments/"), "has another hash"),
        (damage("backup.json"), "is damaged"),
    ],
)
def test_changed_backup_is_refused_and_nothing_is_changed(
    home: CliHome, copy: Path, change: Any, said: str
) -> None:
    rewrite(copy, change)
    before = sorted(each.name for each in home.path.rglob("*"))

    assert said in refuse(home, "restore", str(copy), code=2)

    assert read_texts(home) == ["after", "before"]
    after = {each.name for each in home.path.rglob("*")} - {"daemon", "lock"}
    assert after <= {*before, "steadyrun.db-wal", "steadyrun.db-shm"}
    assert not (home.place / "escaped").exists()


@pytest.mark.parametrize("cut", [0, 1, 511, 513, 5000, -1025])
def test_cut_backup_is_refused(home: CliHome, copy: Path, cut: int) -> None:
    whole = copy.read_bytes()
    # The last 10240 bytes and more are padding: what counts is cut as well.
    copy.write_bytes(whole.rstrip(b"\0")[:cut] if cut < 0 else whole[:cut])

    refuse(home, "restore", str(copy), code=2)

    assert read_texts(home) == ["after", "before"]


def test_link_to_a_backup_is_refused(home: CliHome, copy: Path) -> None:
    link = home.place / "link"
    link.symlink_to(copy)

    assert "it is a link" in refuse(home, "restore", str(link), code=2)


def test_backup_of_a_later_version_is_refused(home: CliHome, copy: Path) -> None:
    with closing(sqlite3.connect(home.path / "steadyrun.db")) as connection:
        [version] = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("PRAGMA user_version = 99")
    content = (home.path / "steadyrun.db").read_bytes()
    with closing(sqlite3.connect(home.path / "steadyrun.db")) as connection:
        connection.execute(f"PRAGMA user_version = {version}")

    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> Any:
        for info, data in members:
            if info.name == "backup.json":
                listed = json.loads(data)
                listed["files"]["steadyrun.db"] = hashlib.sha256(content).hexdigest()
                yield info, json.dumps(listed).encode()
            else:
                yield info, content if info.name == "steadyrun.db" else data

    rewrite(copy, change)

    assert "version 99" in refuse(home, "restore", str(copy), code=2)
    assert read_texts(home) == ["after", "before"]


# -- killed in the middle


def test_restore_that_is_killed_leaves_the_old_store_or_the_new_one(
    home: CliHome, copy: Path
) -> None:
    second = home.place / "second"
    assert home.run("backup", str(second)).returncode == 0
    began = time.monotonic()
    assert home.run("restore", str(copy)).returncode == 0
    seconds, dice, found = time.monotonic() - began, random.Random(3), []
    for n in range(KILLS):
        # Both stores in turn: what is there before is known.
        file = (second, copy)[n % 2]
        restore = home.start("restore", str(file), into=home.place / "out")
        try:
            restore.wait(dice.uniform(0.3, 1.1) * seconds)
        except subprocess.TimeoutExpired:
            restore.kill()
        restore.wait(60)
        found.append(read_texts(home))
        assert home.run("doctor").returncode == 0
    assert all(each in (["before"], ["after", "before"]) for each in found), found
    assert home.run("restore", str(second)).returncode == 0
    assert read_texts(home) == ["after", "before"]
    assert list(home.path.glob(".restore-*")) == []


def test_backup_that_is_killed_leaves_no_file_of_its_name(home: CliHome) -> None:
    dice = random.Random(4)
    for n in range(KILLS):
        copy = home.place / f"copy {n}"
        backup = home.start("backup", str(copy), into=home.place / "out")
        try:
            backup.wait(dice.uniform(0.05, 0.6))
        except subprocess.TimeoutExpired:
            backup.kill()
        backup.wait(60)
        assert not copy.exists() or home.run("restore", str(copy)).returncode == 0


def test_run_of_a_backup_made_while_it_was_active_is_settled(home: CliHome) -> None:
    run = first_run(home.path)
    copy = home.place / "copy"
    assert home.run("backup", str(copy)).returncode == 0

    assert home.run("restore", str(copy)).returncode == 0

    assert run in home.run("runs").stdout
