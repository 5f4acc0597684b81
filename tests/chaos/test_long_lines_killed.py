"""A line of 150 MB is read to its end by daemons with little memory that are killed over it."""

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.chaos.settings import SEED
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home
from tests.support.commands import ROOT

MEGABYTES = 150
# A daemon that needs more cannot go on.
LIMIT_BYTES = 300 << 20
KILLS = 4
CHILD = str(ROOT / "tests" / "children" / "long_line_cli.py")


@pytest.mark.parametrize("provider", ["shell", "printer"])
def test_long_line_is_read_once_by_daemons_that_are_killed(tmp_path: Path, provider: str) -> None:
    dice = random.Random(f"{SEED} {provider}")
    with cli_home(tmp_path) as home:
        gate = home.place / "gate"
        _configure(home, gate)
        home.add_agent("ada")
        home.add_agent("pat", provider=provider)
        daemon = _start(home)
        done = home.run(
            "send", "pat", f"{sys.executable} -I -S {CHILD} shell {MEGABYTES} {gate}", "--json"
        )
        item = str(json.loads(done.stdout)["id"])
        eventually(lambda: _measure_journal(home) >= MEGABYTES // 2 << 20, "half of the line")
        gate.touch()
        for _ in range(KILLS):
            # No condition can be awaited: the moment itself is the fault.
            threading.Event().wait(dice.uniform(0.0, 0.4))
            daemon.kill()
            daemon.wait()
            daemon = _start(home)
        other = home.send("ada", {"text": "served"})

        eventually(lambda: home.item(item).is_settled, "the end of the line")
        eventually(lambda: home.item(other).is_settled, "the other agent")
        statuses = [home.item(each).status for each in (item, other)]
        assert statuses == ["completed", "completed"], f"seed {SEED}"
        assert daemon.poll() is None
        assert _measure_journal(home) > MEGABYTES << 20
        numbers = [event.seq for event in home.events() if event.agent == "pat"]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len({event.id for event in home.events()}) == len(home.events())


def _configure(home: CliHome, gate: Path) -> None:
    home.path.mkdir()
    command = [sys.executable, "-I", "-S", CHILD, "scripted", str(MEGABYTES), str(gate)]
    (home.path / "config.toml").write_text(
        "[providers.shell.options]\ntimeout_seconds = 0\n"
        f'[providers.printer]\nkind = "scripted"\ncommand = {json.dumps(command)}\n'
    )


def _start(home: CliHome) -> "subprocess.Popen[str]":
    daemon = home.up()
    limit = ["prlimit", f"--pid={daemon.pid}", f"--data={LIMIT_BYTES}"]
    subprocess.run(limit, check=True, timeout=10)
    return daemon


def _measure_journal(home: CliHome) -> int:
    return sum(file.stat().st_size for file in (home.path / "processes").glob("*/journal"))
