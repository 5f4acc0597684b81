"""A line of any length is read with bounded memory, live and after an adoption."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyrun.model import event as ev
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home
from tests.support.commands import ROOT

MEGABYTES = 150
LINE_MEGABYTES = 64
# A daemon that needs more cannot go on.
LIMIT_BYTES = 300 << 20
CHILD = str(ROOT / "tests" / "children" / "long_line_cli.py")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.path.mkdir()
        command = json.dumps(
            [sys.executable, "-I", "-S", CHILD, "scripted", str(MEGABYTES), gate(found)]
        )
        (found.path / "config.toml").write_text(
            "[providers.shell.options]\ntimeout_seconds = 0\n"
            f'[providers.printer]\nkind = "scripted"\ncommand = {command}\n'
        )
        found.add_agent("ada")
        yield found


def gate(home: CliHome) -> str:
    return str(home.place / "gate")


def start_printing(home: CliHome, provider: str) -> str:
    """Let an agent print a line; half of it is printed and read. Return the item."""
    home.add_agent("pat", provider=provider)
    text = f"{sys.executable} -I -S {CHILD} shell {MEGABYTES} {gate(home)}"
    done = home.run("send", "pat", text, "--json")
    assert done.returncode == 0, done.stderr
    eventually(lambda: measure_journal(home) >= MEGABYTES // 2 << 20, "half of the line")
    return str(json.loads(done.stdout)["id"])


def measure_journal(home: CliHome) -> int:
    return sum(file.stat().st_size for file in (home.path / "processes").glob("*/journal"))


def limit_memory(daemon: "subprocess.Popen[str]") -> None:
    limit = ["prlimit", f"--pid={daemon.pid}", f"--data={LIMIT_BYTES}"]
    subprocess.run(limit, check=True, timeout=10)


def read_peak_megabytes(daemon: "subprocess.Popen[str]") -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in status if line.startswith("VmHWM:")]
    return int(peak) >> 10


@pytest.mark.parametrize("is_adopted", [False, True], ids=["live", "adopted"])
@pytest.mark.parametrize("provider", ["shell", "printer"])
def test_line_above_the_limit_takes_less_than_twice_the_limit(
    home: CliHome, provider: str, is_adopted: bool
) -> None:
    daemon = home.up()
    item = start_printing(home, provider)
    if is_adopted:
        daemon.kill()
        daemon.wait()
        daemon = home.up()
    limit_memory(daemon)
    Path(gate(home)).touch()

    eventually(lambda: home.item(item).is_settled, "the end of the line")
    other = home.send("ada", {"text": "served"})
    eventually(lambda: home.item(other).is_settled, "the other agent")

    notes = [each.event.text for each in home.events() if isinstance(each.event, ev.Note)]
    assert home.item(item).status == "completed"
    assert home.item(other).status == "completed"
    assert daemon.poll() is None
    assert read_peak_megabytes(daemon) < 2 * LINE_MEGABYTES
    assert any("the journal has all of it" in note for note in notes)
    assert measure_journal(home) > MEGABYTES << 20


def test_text_of_a_cut_line_states_what_is_missing(home: CliHome) -> None:
    Path(gate(home)).touch()
    home.up()
    item = start_printing(home, "printer")
    eventually(lambda: home.item(item).is_settled, "the end of the line")

    [text] = [each.event.text for each in home.events() if isinstance(each.event, ev.TextFinal)]
    [note] = [each.event.text for each in home.events() if isinstance(each.event, ev.Note)]
    missing = (MEGABYTES - 1) << 20
    assert text == "x" * (1 << 20) + f" [{missing} bytes cut by steadyrun]"
    assert f"a line of {(MEGABYTES << 20) + 25} bytes at offset " in note
    assert home.item(item).reply == "printed"


def test_replay_of_a_long_line_has_the_stored_events(home: CliHome) -> None:
    Path(gate(home)).touch()
    home.up()
    item = start_printing(home, "shell")
    eventually(lambda: home.item(item).is_settled, "the end of the line")

    replayed = home.run("replay", str(home.item(item).run), "--jsonl")

    assert replayed.returncode == 0, replayed.stderr
    events = [json.loads(line) for line in replayed.stdout.splitlines()]
    [text] = [each["data"]["text"] for each in events if each["type"] == "text.final"]
    assert text == "x" * (1 << 20)
    assert [each["data"]["text"] for each in events if each["type"] == "note"] == [
        each.event.text for each in home.events() if isinstance(each.event, ev.Note)
    ]
