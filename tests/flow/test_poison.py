"""An item that ends daemons or takes all memory is set aside; every other agent is served."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from steadyrun.drivers import keeper
from steadyrun.drivers.journal.line_guard import FILE, MOST_CRASHES, ReadMark, count_crashes
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, end_daemon, steps_around, wait_for_text
from tests.support.commands import ROOT
from tests.support.daemon_harness import find_cli

MEGABYTES = 150
CHILD = str(ROOT / "tests" / "children" / "long_line_cli.py")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.path.mkdir()
        command = [sys.executable, "-I", "-S", CHILD, "scripted", str(MEGABYTES), str(gate(found))]
        (found.path / "config.toml").write_text(
            f'[providers.printer]\nkind = "scripted"\ncommand = {json.dumps(command)}\n'
        )
        found.add_agent("ada")
        yield found


def gate(home: CliHome) -> Path:
    return home.place / "gate"


def start_printing(home: CliHome) -> tuple[str, Path]:
    """Let an agent print half of a long line; the item, and the directory of its process."""
    home.add_agent("pat", provider="printer")
    done = home.run("send", "pat", "print", "--json")
    assert done.returncode == 0, done.stderr
    journals = home.path / "processes"
    half = MEGABYTES // 2 << 20
    [journal] = eventually(
        lambda: [file for file in journals.glob("*/journal") if file.stat().st_size >= half],
        "half of the line",
    )
    return str(json.loads(done.stdout)["id"]), journal.parent


def test_process_that_ends_two_daemons_is_set_aside(home: CliHome) -> None:
    daemon = home.up()
    item, directory = start_printing(home)
    end_daemon(daemon, signal.SIGKILL)
    # What two readers leave that are killed in the same line: the moment is too short to hit it.
    mark = ReadMark(offset=1, crashes=MOST_CRASHES - 1, is_read=True)
    (directory / FILE).write_bytes(msgspec.json.encode(mark))
    assert count_crashes(directory) == MOST_CRASHES

    daemon = home.up()
    eventually(lambda: home.item(item).is_settled, "the end of the item")
    other = home.send("ada", {"text": "served"})
    eventually(lambda: home.item(other).is_settled, "the other agent")

    found = home.item(item)
    assert found.error
    assert (found.status, found.error.code) == ("failed", "poisoned")
    assert "2 daemons ended while they read" in found.error.message
    assert "steadyrun retry" in found.error.hint
    assert home.item(other).status == "completed"
    eventually(lambda: not keeper.find_marked(directory.name), "the end of the process")
    assert (directory / "journal").stat().st_size >= MEGABYTES // 2 << 20
    check_reports(home, directory.name)
    assert daemon.poll() is None
    # A person may try it again.
    gate(home).touch()
    assert home.run("retry", item).returncode == 0


def check_reports(home: CliHome, process: str) -> None:
    """The log, `status` and `doctor` name the process."""
    assert [line for line in home.read_log() if "process.set_aside" in line and process in line]
    assert not [line for line in home.read_log() if '"fact":"bug"' in line]
    status = json.loads(home.run("status", "--json").stdout)
    assert [each["process"] for each in status["set_aside"]] == [process]
    assert f"set aside {process}: " in home.run("status").stdout
    checks = json.loads(home.run("doctor", "--json").stdout)["checks"]
    assert [each["state"] for each in checks if process in each["detail"]] == ["warn"]


def test_item_that_takes_all_memory_twice_is_set_aside(home: CliHome) -> None:
    """The exit file says that the kernel has killed the CLI."""
    daemon = home.up()
    item = home.send("ada", *steps_around(gate(home)))
    wait_for_text(home, "one")
    processes = []
    for number in (1, 2):
        eventually(lambda number=number: home.texts().count("one") == number, "the turn")  # type: ignore[misc]
        [process] = home.processes()
        processes.append(process.id)
        end_daemon(daemon, signal.SIGKILL)
        kill_for_memory(home, process.id)
        daemon = home.up()
    eventually(lambda: home.item(item).is_settled, "the end of the item")
    other = home.send("ada", {"text": "served"})
    eventually(lambda: home.item(other).is_settled, "the next item")

    found, runs = home.item(item), [run for run in home.runs() if run.item == item]
    assert found.error
    assert (found.status, found.error.code, found.error.retryable) == ("failed", "poisoned", True)
    assert [run.error.code for run in runs if run.error] == ["poisoned", "out_of_memory"]
    assert home.item(other).status == "completed"
    check_reports(home, processes[1])


def kill_for_memory(home: CliHome, process: str) -> None:
    os.kill(find_cli(process), signal.SIGKILL)
    file = home.path / "processes" / process / "exit"
    eventually(file.exists, "the exit file")
    facts = json.loads(file.read_bytes())
    assert (facts["signal"], facts["reason"], facts["oom"]) == (signal.SIGKILL, None, False)
    file.write_text(json.dumps({**facts, "oom": True}))


def test_keeper_counts_what_the_kernel_has_killed_for_memory() -> None:
    lines = Path("/proc/vmstat").read_text().splitlines()
    [counted] = [line.split()[1] for line in lines if line.startswith("oom_kill ")]

    assert keeper._count_oom_kills() >= int(counted)
