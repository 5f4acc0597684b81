"""What becomes of a turn that was sent, for each `on_lost` and each end of its daemon."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import (
    TIMEOUT_SECONDS,
    CliHome,
    cli_home,
    end_daemon,
    steps_around,
    wait_for_text,
)
from tests.support.daemon_harness import read_turns


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        yield found


def kill(home: CliHome, daemon: "Popen[str]") -> None:
    end_daemon(daemon, signal.SIGKILL)


def take_down(home: CliHome, daemon: "Popen[str]") -> None:
    assert home.run("down", "--drain", "0s").returncode == 0
    daemon.wait(TIMEOUT_SECONDS)


def terminate(home: CliHome, daemon: "Popen[str]") -> None:
    """The drain would wait for the run: a second signal ends it."""
    os.kill(daemon.pid, signal.SIGTERM)
    eventually(lambda: "daemon.draining" in "\n".join(home.read_log()), "the drain")
    end_daemon(daemon, signal.SIGTERM)


def take_down_and_keep(home: CliHome, daemon: "Popen[str]") -> None:
    assert home.run("down", "--keep").returncode == 0
    daemon.wait(TIMEOUT_SECONDS)


def reboot(home: CliHome, daemon: "Popen[str]") -> None:
    """Everything ends at once."""
    keepers = [int(pid) for pid in find_keepers(home)]
    daemon.kill()
    for pid in [*keepers, *home.list_live_pids()]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    daemon.wait(TIMEOUT_SECONDS)
    eventually(lambda: not home.list_live_pids(), "the end of all")


def find_keepers(home: CliHome) -> list[str]:
    """The processes that work in the directory of a process of this home."""
    folder = str(home.path / "processes")
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str((place / "cwd").readlink()).startswith(folder):
                found.append(place.name)
    return found


WAYS: dict[str, Callable[[CliHome, "Popen[str]"], None]] = {
    "kill -9": kill,
    "down": take_down,
    "SIGTERM": terminate,
    "down --keep": take_down_and_keep,
    "reboot": reboot,
}
CONTINUES = {"kill -9", "down --keep"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("on_lost", ["resume", "retry", "fail"])
def test_turn_that_was_sent_ends_as_the_table_says(home: CliHome, on_lost: str, way: str) -> None:
    gate = home.place / "gate"
    home.add_agent("ada", **{"on-lost": on_lost})
    daemon = home.up()
    item = home.send("ada", *steps_around(gate))
    wait_for_text(home, "one")

    WAYS[way](home, daemon)
    gate.touch()
    home.up()
    eventually(lambda: home.item(item).is_settled, "the end of the item")

    found, turns = home.item(item), [text for _, text in read_turns(home.place)]
    assert ["cut off" in text for text in turns][1:] == {
        "resume": [True], "retry": [False], "fail": [],
    }[on_lost if way not in CONTINUES else "fail"]  # fmt: skip
    is_failed = on_lost == "fail" and way not in CONTINUES
    assert found.status == ("failed" if is_failed else "completed")
    reasons = [run.stop_reason for run in reversed(home.runs())]
    if way in {"down", "SIGTERM"}:
        assert reasons[0] == "shutdown"
    if is_failed:
        assert found.error
        expected = "keeper_lost" if way == "reboot" else "shutdown"
        assert (reasons, found.error.code) == ([expected], expected)


def test_turn_that_was_not_sent_is_queued_by_a_shutdown_also_with_fail(home: CliHome) -> None:
    home.add_agent("ada", **{"on-lost": "fail"})
    daemon = home.up()
    first = home.send("ada", *steps_around(home.place / "gate"))
    wait_for_text(home, "one")
    second = home.run("send", "ada", 'script:[{"text": "two"}]', "--queue", "--json")
    assert second.returncode == 0
    take_down(home, daemon)
    home.up()
    eventually(lambda: not home.run("inbox", "--json").stdout.count('"queued"'), "an empty queue")
    eventually(lambda: "two" in home.texts(), "the second item")
    assert home.item(first).status == "failed"
