"""Keepers, outer processes and CLIs that are stopped with SIGSTOP prevent neither an end nor a
takeover, and do not affect other agents."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from steadyrun.drivers import keeper_client
from steadyrun.drivers.keeper_client import KeeperLimits, KeeperSpec
from steadyrun.errors import KeeperFailed
from steadyrun.model.event import TextFinal
from tests.chaos.scenario import find_pids
from tests.children.keeper_driver import eventually, is_locked
from tests.support.cli_home import TIMEOUT_SECONDS, CliHome, cli_home, end_daemon, steps_around
from tests.support.commands import ROOT
from tests.support.require import require

TARGETS = ("keeper", "outer", "keeper outer", "cli")
TRACER = ROOT / "tests/children/tracer.py"
OTHER = "zoe"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        yield found


class WorkingAgents:
    """Agents in the middle of a turn, one for each target, and one without a fault."""

    def __init__(self, home: CliHome, targets: tuple[str, ...] = TARGETS) -> None:
        self.home, self.gate = home, home.place / "gate"
        self.targets = {f"agent{number}": target for number, target in enumerate(targets)}
        self.items: dict[str, str] = {}
        self.pids: dict[str, dict[str, int]] = {}

    def start(self) -> None:
        for name in (*self.targets, OTHER):
            known = set(self.home.folders()) if self.items else set[str]()
            self.home.add_agent(name)
            self.items[name] = self.home.send(name, *steps_around(self.gate))
            eventually(lambda: self.count("one") == len(self.items), f"the turn of {name}")
            [process] = set(self.home.folders()) - known
            self.pids[name] = find_pids(process)
            assert self.pids[name]

    def count(self, text: str) -> int:
        return [each.event for each in self.home.events()].count(TextFinal(text))

    def list_targets(self) -> list[int]:
        return [
            self.pids[name][role]
            for name, target in self.targets.items()
            for role in target.split()
        ]

    def signal(self, number: int) -> None:
        for pid in self.list_targets():
            os.kill(pid, number)

    def status(self, name: str) -> str:
        return self.home.item(self.items[name]).status

    def wait_until_completed(self) -> None:
        eventually(lambda: {self.status(name) for name in self.items} == {"completed"}, "all items")

    def cancel_all(self) -> None:
        """Cancel what runs in the targets, all at the same time; each command sees the end."""
        commands = [self.home.start("cancel", self.items[name], "--json") for name in self.targets]
        for command in commands:
            out, _ = command.communicate(timeout=TIMEOUT_SECONDS)
            assert command.returncode == 0
            assert json.loads(out)["status"] == "cancelled"

    def complete_other(self) -> None:
        """The agent without a fault continues its turn."""
        self.gate.touch()
        eventually(lambda: self.status(OTHER) == "completed", "the agent without a fault")


def assert_nothing_left(home: CliHome, agents: WorkingAgents, *names: str) -> None:
    roles = [(name, role) for name in names for role in ("outer", "keeper", "cli")]
    eventually(
        lambda: not [each for each in roles if _is_running(agents.pids[each[0]][each[1]])],
        "the end of all processes",
    )
    for folder in (home.path / "processes").iterdir():
        if find_pids(folder.name) == {}:
            assert not is_locked(folder)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}


def test_down_ends_agents_with_stopped_processes(home: CliHome) -> None:
    daemon = home.up()
    agents = WorkingAgents(home)
    agents.start()
    agents.signal(signal.SIGSTOP)

    done = home.run("down", "--drain", "0s")

    assert done.returncode == 0, done.stderr
    assert daemon.wait(TIMEOUT_SECONDS) == 0
    assert {agents.status(name) for name in agents.items} == {"queued"}
    assert_nothing_left(home, agents, *agents.items)


def test_cancel_ends_runs_with_stopped_processes_and_no_other_run(home: CliHome) -> None:
    home.up()
    agents = WorkingAgents(home)
    agents.start()
    agents.signal(signal.SIGSTOP)

    agents.cancel_all()

    agents.complete_other()
    home.run("down", "--drain", "0s")
    assert_nothing_left(home, agents, *agents.items)


def test_agent_with_stopped_processes_can_be_removed(home: CliHome) -> None:
    home.up()
    agents = WorkingAgents(home)
    agents.start()
    agents.gate.touch()
    agents.wait_until_completed()
    agents.signal(signal.SIGSTOP)

    commands = [home.start("agent", "rm", name) for name in agents.targets]

    assert [command.wait(TIMEOUT_SECONDS) for command in commands] == [0] * len(commands)
    assert_nothing_left(home, agents, *agents.targets)
    assert _is_running(agents.pids[OTHER]["cli"])


def test_stopped_keepers_are_continued_when_they_are_adopted(home: CliHome) -> None:
    daemon = home.up()
    agents = WorkingAgents(home, TARGETS[:3])
    agents.start()
    end_daemon(daemon, signal.SIGKILL)
    agents.signal(signal.SIGSTOP)

    home.up()
    agents.gate.touch()

    agents.wait_until_completed()
    assert agents.count("two") == len(agents.items)
    assert len(home.runs()) == len(agents.items)


def test_keeper_that_was_killed_is_cleaned_up_after_a_stopped_outer_process(home: CliHome) -> None:
    home.up()
    agents = WorkingAgents(home, ("outer",))
    agents.start()
    agents.signal(signal.SIGSTOP)
    os.kill(agents.pids["agent0"]["keeper"], signal.SIGKILL)

    agents.gate.touch()

    eventually(lambda: agents.status("agent0") == "completed", "the second attempt")
    assert home.item(agents.items["agent0"]).attempt == 2
    assert_nothing_left(home, agents, "agent0")


@contextmanager
def traced(pids: list[int]) -> Iterator[None]:
    """These processes are stopped, and SIGCONT does not continue them."""
    command = [sys.executable, "-I", "-S", str(TRACER), *map(str, pids)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout
        word = tracer.stdout.readline().strip()
        require("ptrace", word == "stopped", word)
        try:
            yield
        finally:
            tracer.kill()


@pytest.mark.parametrize("command", ["cancel", "down"])
def test_keeper_that_cannot_be_continued_is_killed_with_everything(
    home: CliHome, command: str
) -> None:
    home.up()
    agents = WorkingAgents(home, ("keeper", "keeper outer"))
    agents.start()
    with traced(agents.list_targets()):
        if command == "cancel":
            agents.cancel_all()
            agents.complete_other()
        else:
            assert home.run("down", "--drain", "0s").returncode == 0
        assert_nothing_left(home, agents, *agents.targets)

    killed = [json.loads(line) for line in home.read_log() if '"process.killed"' in line]
    assert sorted(each["agent"] for each in killed) == sorted(agents.targets)
    expected = "cancelled" if command == "cancel" else "queued"
    assert {agents.status(name) for name in agents.targets} == {expected}


async def test_keeper_that_hangs_in_its_start_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import fcntl, json, os, signal, sys\n"
        "os.chdir(json.load(sys.stdin)['directory'])\n"
        "fcntl.flock(os.open('lock', os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)\n"
        "os.fork() or os.setsid()\n"
        "open('started', 'w')\n"
        "signal.pause()\n"
    )
    monkeypatch.setattr(keeper_client, "START_SECONDS", 2.0)
    monkeypatch.setattr(keeper_client, "build_command", lambda *_: [sys.executable, "-c", program])
    spec = KeeperSpec(
        process="prc_hanging",
        directory=str(tmp_path),
        argv=("true",),
        cwd="/",
        env={},
        stdin="null",
        rungs=(),
        limits=KeeperLimits(),
    )

    with pytest.raises(KeeperFailed):
        await keeper_client.start(spec)

    assert (tmp_path / "started").exists()
    assert not is_locked(tmp_path)
