"""A follower that does not read costs the daemon a bounded amount of memory, and misses no stored
event."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home
from tests.support.commands import ROOT

LIVE_MEGABYTES = 500
STORED_MEGABYTES = 200
# Twice `daemon.line_bytes`.
LIMIT_MEGABYTES = 128
CHILD = str(ROOT / "tests" / "children" / "long_line_cli.py")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.path.mkdir()
        command = [sys.executable, "-I", "-S", CHILD, "texts", str(STORED_MEGABYTES), __file__]
        (found.path / "config.toml").write_text(
            "[providers.shell.options]\ntimeout_seconds = 0\n"
            f'[providers.printer]\nkind = "scripted"\ncommand = {json.dumps(command)}\n'
        )
        yield found


def read_peak_megabytes(daemon: "subprocess.Popen[str]") -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in status if line.startswith("VmHWM:")]
    return int(peak) >> 10


def read_cursors(output: Path) -> list[int]:
    """The cursors of the stored events that the follower has printed."""
    with output.open() as lines:
        found = [json.loads(line)["cursor"] for line in lines if line.endswith("\n")]
    return [cursor for cursor in found if cursor is not None]


@pytest.mark.parametrize("provider", ["shell", "printer"])
def test_stopped_follower_neither_fills_the_memory_nor_misses_an_event(
    home: CliHome, provider: str
) -> None:
    daemon = home.up()
    home.add_agent("pat", provider=provider)
    home.add_agent("ada")
    home.send("ada", {"text": "first"})
    output = home.place / "followed"
    follower = home.start("tail", "-f", "--jsonl", "--all", "--after", "0", into=output)
    eventually(lambda: read_cursors(output), "the first events")
    os.kill(follower.pid, signal.SIGSTOP)

    text = f"{sys.executable} -I -S {CHILD} shell {LIVE_MEGABYTES} {__file__}"
    done = home.run("send", "pat", text, "--json")
    item = json.loads(done.stdout)["id"]
    eventually(lambda: home.item(item).is_settled, "the end of the output")
    other = home.send("ada", {"text": "last"})
    eventually(lambda: home.item(other).is_settled, "the other agent")

    assert home.item(item).status == "completed"
    assert read_peak_megabytes(daemon) < LIMIT_MEGABYTES
    newest = home.events()[-1].cursor
    os.kill(follower.pid, signal.SIGCONT)
    eventually(lambda: newest in read_cursors(output), "the last event")
    assert read_cursors(output) == list(range(1, newest + 1))
    assert read_peak_megabytes(daemon) < LIMIT_MEGABYTES
