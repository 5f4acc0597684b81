"""A store that was restored from a backup has what the backup has, and invents nothing.

Agents work, a backup is made, the agents work on, everything is killed, and the backup is restored.
"""

import json
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from steadyrun.drivers import keeper
from steadyrun.model.item import Item
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, end_daemon, wait_for_text

NAMES = ("ada", "bob", "cy")


@pytest.fixture
def home(tmp_path: Path) -> Any:
    with cli_home(tmp_path) as found:
        yield found


def ask(home: CliHome, *words: str) -> Any:
    """The JSON document that a command prints."""
    done = home.run(*words, "--json")
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return json.loads(done.stdout)


def list_items(home: CliHome) -> dict[str, Item]:
    found = home.read(lambda store: store.items(include_settled=True, limit=10_000))
    return {item.id: item for item in found}


def say(home: CliHome, name: str, text: str) -> str:
    item = home.send(name, {"text": text})
    wait_for_text(home, text)
    eventually(lambda: home.item(item).status == "completed", f"the end of {text}")
    return item


def work(home: CliHome, label: str) -> list[str]:
    return [say(home, name, f"{name} {label}") for name in NAMES]


def copy_by_hand(home: CliHome, target: Path) -> None:
    with closing(sqlite3.connect(home.path / "steadyrun.db")) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))


def put_by_hand(home: CliHome, copy: Path) -> None:
    for file in home.path.glob("steadyrun.db*"):
        file.unlink()
    copy.rename(home.path / "steadyrun.db")


def find_aside(home: CliHome) -> list[str]:
    """The processes that doctor reports as set aside."""
    checks = json.loads(home.run("doctor", "--json").stdout)["checks"]
    return [each["detail"].split()[0] for each in checks if each["check"] == "process"]


def read_facts(home: CliHome, name: str) -> list[dict[str, Any]]:
    facts = [json.loads(line) for line in home.read_log() if line.startswith("{")]
    return [fact for fact in facts if fact["fact"] == name]


@pytest.mark.parametrize("way", ["by hand", "by command"])
def test_store_restored_after_a_crash_has_the_backup_and_no_other_items(
    home: CliHome, way: str
) -> None:
    for name in NAMES:
        home.add_agent(name)
    daemon = home.up()
    before = work(home, "before")
    gate = home.place / "gate"
    running = home.send("ada", {"text": "begun"}, {"until": str(gate)}, {"text": "done"})
    wait_for_text(home, "begun")
    copy, kept = home.place / "copy", list_items(home)
    if way == "by hand":
        copy_by_hand(home, copy)
    else:
        assert ask(home, "backup", str(copy))["file"] == str(copy)
    gate.touch()
    eventually(lambda: home.item(running).status == "completed", "the end of the open turn")
    after = [item for n in range(3) for item in work(home, f"after {n}")]
    home.add_agent("dan")
    say(home, "dan", "dan after")
    known = set(home.folders())
    end_daemon(daemon, signal.SIGKILL)
    assert home.list_live_pids(), "the CLIs live on"

    if way == "by hand":
        put_by_hand(home, copy)
    else:
        ask(home, "restore", str(copy), "--stop")
        assert home.list_live_pids() == []
    home.up()

    eventually(lambda: home.item(running).status == "completed", "the end of the open item")
    items = list_items(home)
    assert items.keys() == kept.keys()
    assert {item.kind for item in items.values()} == {"message"}
    assert [items[item].status for item in before] == ["completed"] * len(NAMES)
    assert not set(after) & items.keys()
    eventually(lambda: not set(home.list_live_pids()) & find_pids(known), "the end of old CLIs")
    assert set(find_aside(home)) == known
    assert {fact["process"] for fact in read_facts(home, "process.set_aside")} == known
    assert known <= set(home.folders()), "their files are kept"
    work(home, "anew")
    assert {item.kind for item in list_items(home).values()} == {"message"}


def find_pids(processes: set[str]) -> set[int]:
    return {pid for process in processes for pid in keeper.find_marked(process)}


def test_backup_made_under_load_has_every_message_that_was_accepted_before(home: CliHome) -> None:
    for name in NAMES:
        home.add_agent(name)
    daemon = home.up()
    accepted: list[str] = []
    is_over = threading.Event()

    def send_on() -> None:
        names = cycle(NAMES)
        while not is_over.is_set():
            accepted.append(home.send(next(names), {"text": "a"}, {"text": "b"}))

    with ThreadPoolExecutor(1) as pool:
        sender = pool.submit(send_on)
        eventually(lambda: len(accepted) >= 2 * len(NAMES), "work")
        before = list(accepted)
        ask(home, "backup", str(home.place / "copy"))
        eventually(lambda: len(accepted) >= len(before) + 2 * len(NAMES), "more work")
        end_daemon(daemon, signal.SIGKILL)
        is_over.set()
        sender.result()

    ask(home, "restore", str(home.place / "copy"), "--stop")
    home.up()

    items = list_items(home)
    assert set(before) <= items.keys() <= set(accepted)
    eventually(
        lambda: {item.status for item in list_items(home).values()} == {"completed"}, "all items"
    )
    assert {item.kind for item in list_items(home).values()} == {"message"}
    assert home.run("doctor", "--deep").returncode == 0
