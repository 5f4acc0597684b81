"""A home is backed up and restored while agents work and messages are sent."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from steadyrun.model.item import Item
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home

NAMES = ("ada", "bea", "cem")
ROUNDS = 2
# How many messages are settled between two steps.
SETTLED = 4


def test_restore_under_load_keeps_the_backup_and_invents_nothing(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        for name in NAMES:
            home.add_agent(name)
        home.up()
        with _sending(home) as texts:
            for number in range(ROUNDS):
                _restore_once(home, home.place / f"backup-{number}")
                home.up()
        last = home.send("ada", {"text": "after the restores"})

        eventually(lambda: all(item.is_settled for item in _items(home)), "the end of all items")
        items = _items(home)
        assert home.item(last).reply == "after the restores"
        assert {item.status for item in items} == {"completed"}
        sent = Counter(item.text for item in items if item.id != last)
        assert set(sent) <= set(texts)
        assert set(sent.values()) == {1}
        _check_numbers(home)
        assert home.run("down").returncode == 0
        assert home.list_live_pids() == []


def _restore_once(home: CliHome, backup: Path) -> None:
    """Back up and restore while messages are sent: what was settled before the backup stays."""
    _settle_some(home)
    settled = {item.id: item for item in _items(home) if item.is_settled}
    done = home.run("backup", str(backup))
    assert done.returncode == 0, done.stderr
    _settle_some(home)
    # While another command has the store open, the restore is refused.
    eventually(lambda: _is_restored(home, backup), "the restore")
    found = {item.id: item for item in _items(home)}
    assert {name: found[name] for name in settled} == settled


def _is_restored(home: CliHome, backup: Path) -> bool:
    done = home.run("restore", str(backup), "--stop")
    assert done.returncode in {0, 5}, done.stderr
    return done.returncode == 0


def _settle_some(home: CliHome) -> None:
    before = sum(item.is_settled for item in _items(home))
    eventually(
        lambda: sum(item.is_settled for item in _items(home)) >= before + SETTLED,
        "settled messages",
    )


def _items(home: CliHome) -> list[Item]:
    found: list[Item] = home.read(lambda store: store.items(include_settled=True, limit=10_000))
    return found


def _check_numbers(home: CliHome) -> None:
    events = home.events()
    assert len({event.id for event in events}) == len(events)
    for name in NAMES:
        numbers = [event.seq for event in events if event.agent == name]
        assert numbers == list(range(1, len(numbers) + 1))


@contextmanager
def _sending(home: CliHome) -> Iterator[list[str]]:
    """Send messages to all agents until the end of the block. A message may be refused or lost
    while the store is replaced; its text is noted before it is sent."""
    texts: list[str] = []
    over = threading.Event()

    def send() -> None:
        for number in count():
            if over.is_set():
                return
            steps = [{"text": f"m{number}-1"}, {"wait": 0.1}, {"text": f"m{number}"}]
            texts.append("script:" + json.dumps(steps))
            home.run("send", NAMES[number % len(NAMES)], texts[-1])

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield texts
    finally:
        over.set()
        thread.join()
