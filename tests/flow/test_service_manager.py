"""A daemon that systemd has started reports that it is ready, that it works, and that it ends."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.children.keeper_driver import eventually
from tests.support.cli_home import (
    CliHome,
    cli_home,
    end_daemon,
    steps_around,
    wait_for_text,
)
from tests.support.commands import COMMAND, environment
from tests.support.require import require

WATCHDOG_SECONDS = 1.0
PATIENCE_SECONDS = 30.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        yield found


class NotifySocket:
    """The socket of a service manager."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver

    def receive(self, seconds: float = PATIENCE_SECONDS) -> list[str]:
        """The lines of the next report."""
        self._receiver.settimeout(seconds)
        return self._receiver.recv(4096).decode().split("\n")

    def receive_until(self, line: str) -> list[list[str]]:
        """All reports up to the first one with this line."""
        reports = [self.receive()]
        while line not in reports[-1]:
            reports.append(self.receive())
        return reports

    def empty(self) -> None:
        """Read what was sent until now."""
        self._receiver.settimeout(0)
        while True:
            try:
                self._receiver.recv(4096)
            except BlockingIOError:
                return


@contextmanager
def notify_socket(home: CliHome, *, is_abstract: bool) -> Iterator[NotifySocket]:
    """A service manager for the daemons that the home starts."""
    name = str(home.place / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}" if is_abstract else name)
        home.variables = {
            "NOTIFY_SOCKET": f"@{name}" if is_abstract else name,
            "WATCHDOG_USEC": f"{WATCHDOG_SECONDS * 1e6:.0f}",
        }
        yield NotifySocket(receiver)


def read_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("is_abstract", [False, True], ids=["file", "abstract"])
def test_daemon_reports_its_start_its_work_and_its_end(home: CliHome, is_abstract: bool) -> None:
    home.add_agent("ada")
    with notify_socket(home, is_abstract=is_abstract) as manager:
        daemon = home.start("up")
        before = manager.receive_until("READY=1")
        assert home.run("status").returncode == 0
        gate = home.place / "gate"
        home.send("ada", *steps_around(gate))

        working = manager.receive_until("STATUS=1 of 5 runs")
        gate.touch()
        assert end_daemon(daemon, signal.SIGTERM) == 0
        after = manager.receive_until("STOPPING=1")

    assert before[-1] == ["READY=1", "STATUS=0 of 5 runs"]
    assert [line.partition("=")[0] for lines in before[:-1] for line in lines] == [
        "EXTEND_TIMEOUT_USEC"
    ] * (len(before) - 1)
    assert all(lines[0] == "WATCHDOG=1" for lines in (*working, *after[:-1]))


def test_stopped_daemon_misses_its_watchdog(home: CliHome) -> None:
    with notify_socket(home, is_abstract=False) as manager:
        daemon = home.start("up")
        manager.receive_until("READY=1")
        for _ in range(4):
            assert manager.receive()[0] == "WATCHDOG=1"
        os.kill(daemon.pid, signal.SIGSTOP)
        eventually(lambda: read_state(daemon.pid) == "T", "the stop of the daemon")
        manager.empty()

        with pytest.raises(TimeoutError):
            manager.receive(2 * WATCHDOG_SECONDS)

        os.kill(daemon.pid, signal.SIGCONT)
        assert manager.receive()[0] == "WATCHDOG=1"


@pytest.mark.parametrize(
    "variables",
    [
        {"NOTIFY_SOCKET": "/nowhere/socket", "WATCHDOG_USEC": "1000000"},
        {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "1000000"},
        {"WATCHDOG_USEC": "a"},
    ],
)
def test_daemon_works_without_a_service_manager(home: CliHome, variables: dict[str, str]) -> None:
    home.add_agent("ada")
    home.variables = variables
    daemon = home.up()
    item = home.send("ada", {"text": "done"})

    eventually(lambda: home.item(item).status == "completed", "the item")
    assert end_daemon(daemon, signal.SIGTERM) == 0


def test_watchdog_of_another_process_is_not_served(home: CliHome) -> None:
    with notify_socket(home, is_abstract=False) as manager:
        home.variables["WATCHDOG_PID"] = "1"
        home.start("up")
        manager.receive_until("READY=1")

        report = manager.receive()

    assert report == ["STATUS=0 of 5 runs"]


@contextmanager
def user_unit(home: CliHome) -> Iterator[str]:
    """The daemon as a transient unit of this user's systemd."""
    name = f"steadyrun-test-{os.getpid()}.service"
    is_there = shutil.which("systemd-run") is not None and _systemctl("is-system-running") in {
        "running",
        "degraded",
    }
    require("systemd", is_there, "a systemd of this user")
    settings = {
        "Type": "notify",
        "WatchdogSec": "2",
        "WatchdogSignal": "SIGKILL",
        "Restart": "on-failure",
        "RestartSec": "0",
        "KillMode": "process",
        "OOMPolicy": "continue",
        "WorkingDirectory": str(home.place),
    }
    words = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
    words += [f"--setenv={key}={value}" for key, value in environment(home.path).items()]
    subprocess.run(
        ["systemd-run", "--user", f"--unit={name}", *words, str(COMMAND), "up"],
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    try:
        yield name
    finally:
        subprocess.run(["systemctl", "--user", "stop", name], check=True, timeout=120)


def _systemctl(*words: str) -> str:
    done = subprocess.run(
        ["systemctl", "--user", *words], capture_output=True, text=True, timeout=30, check=False
    )
    return done.stdout.strip()


def test_systemd_restarts_a_stuck_daemon_and_its_agent_continues(home: CliHome) -> None:
    home.add_agent("ada")
    gate = home.place / "gate"
    with user_unit(home) as unit:
        item = home.send("ada", *steps_around(gate))
        wait_for_text(home, "one")
        stuck = int(_systemctl("show", "--value", "-p", "MainPID", unit))
        os.kill(stuck, signal.SIGSTOP)
        eventually(
            lambda: _systemctl("show", "--value", "-p", "MainPID", unit) not in {str(stuck), "0"},
            "another daemon",
        )
        gate.touch()
        eventually(lambda: home.item(item).status == "completed", "the item")

    assert len(home.runs()) == 1
