"""What `doctor` says of the daemon, and of the systemd units that start one."""

import fcntl
import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from steadyrun.cli.commands.doctor import doctor
from steadyrun.cli.systemd import REQUIRED_SETTINGS, SystemdUnit, find_units, read_service

NAME = "steadyrun.service"
GOOD = """\
[Unit]
Description=steadyrun
[Service]
Type=notify
ExecStart=%h/.local/bin/steadyrun up
WatchdogSec=30s
KillMode=process
OOMPolicy=continue
[Install]
KillMode=mixed
"""
BAD = GOOD.replace("KillMode=process\nOOMPolicy=continue\n", "")


class Machine:
    """A home of its own, and `doctor` in it."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.root, self._capsys = place / "home", place / "root", capsys
        self.home.mkdir(mode=0o700)
        self.units = self.home / ".config/systemd/user"
        self.lock = self.home / "daemon/lock"
        self.program = write(self.home / ".local/bin/steadyrun", "")

    def found(self, check: str) -> tuple[int, list[dict[str, str]]]:
        code = doctor(Namespace(json=True, deep=False))
        checks = json.loads(self._capsys.readouterr().out)["checks"]
        return code, [each for each in checks if each["check"] == check]

    def find(self) -> list[SystemdUnit]:
        return list(find_units({"HOME": str(self.home)}, self.root))

    @contextmanager
    def daemon(self, said: str) -> Iterator[None]:
        self.lock.parent.mkdir(exist_ok=True)
        self.lock.write_text(said)
        with self.lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Machine:
    made = Machine(tmp_path, capsys)
    for name in ("HOME", "STEADYRUN_HOME"):
        monkeypatch.setenv(name, str(made.home))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return made


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_daemon_is_detected_by_its_lock_and_not_by_its_file(machine: Machine) -> None:
    none = {
        "check": "daemon",
        "state": "ok",
        "detail": "not running; `steadyrun up` starts it",
        "repair": "",
    }
    assert machine.found("daemon") == (0, [none])
    assert not machine.lock.exists()

    with machine.daemon("123\n"):
        _, [finding] = machine.found("daemon")
        assert (finding["state"], finding["detail"]) == ("ok", "running (pid 123)")

    assert machine.lock.exists()
    assert machine.found("daemon") == (0, [none])


@pytest.mark.parametrize("said", ["", "\0\0", "not a number", "\x1b[2J"])
def test_lock_without_a_pid_counts_as_a_daemon(machine: Machine, said: str) -> None:
    with machine.daemon(said):
        _, [finding] = machine.found("daemon")

    assert (finding["state"], finding["detail"]) == ("ok", "running")


def test_unreadable_lock_is_a_warning(machine: Machine) -> None:
    machine.lock.mkdir(parents=True)

    code, [finding] = machine.found("daemon")

    assert (code, finding["state"]) == (0, "warn")
    assert finding["detail"].endswith("daemon/lock: Is a directory")


def test_doctor_reports_nothing_without_a_unit(machine: Machine) -> None:
    write(machine.units / "other.service", BAD)
    write(machine.units / "steadyrun.timer", BAD)

    assert machine.found("systemd") == (0, [])


def test_unit_that_leaves_agents_running_is_ok(machine: Machine) -> None:
    path = write(machine.units / NAME, GOOD)

    code, [finding] = machine.found("systemd")

    assert (code, finding["state"]) == (0, "ok")
    assert finding["detail"] == f"{path} (KillMode=process, OOMPolicy=continue)"


def test_unit_that_would_kill_agents_is_a_failure_with_its_repair(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(machine.home / "settings"))
    write(machine.units / NAME, GOOD)
    path = write(machine.home / "settings/systemd/user" / NAME, f"{BAD}[Service]\nKillMode=mixed")

    code, [finding] = machine.found("systemd")

    assert (code, finding["state"]) == (1, "fail")
    assert finding["detail"].startswith(f"{path} has KillMode=mixed, OOMPolicy=(not set): ")
    assert finding["repair"].startswith("Set KillMode=process and OOMPolicy=continue in its ")


@pytest.mark.parametrize(
    ("was", "becomes", "found", "wanted"),
    [
        ("Type=notify\n", "", "Type=(not set)", "Type=notify"),
        ("Type=notify\n", "Type=exec\n", "Type=exec", "Type=notify"),
        ("WatchdogSec=30s\n", "", "WatchdogSec=(not set)", "WatchdogSec=60"),
        ("WatchdogSec=30s\n", "WatchdogSec=0\n", "WatchdogSec=0", "WatchdogSec=60"),
        (
            "Type=notify\n",
            "Type=notify\nNotifyAccess=none\n",
            "NotifyAccess=none",
            "NotifyAccess=main",
        ),
    ],
)
def test_unit_without_a_watchdog_is_a_warning_with_its_repair(
    machine: Machine, was: str, becomes: str, found: str, wanted: str
) -> None:
    path = write(machine.units / NAME, GOOD.replace(was, becomes))

    code, [finding] = machine.found("systemd")

    assert (code, finding["state"]) == (0, "warn")
    assert finding["detail"] == f"{path} has {found}: systemd does not notice a stuck daemon"
    assert finding["repair"].startswith(f"Set {wanted} in its ")


def test_units_of_user_and_machine_are_found(machine: Machine) -> None:
    of_user = write(machine.units / NAME, GOOD)
    of_machine = write(machine.root / "etc/systemd/system/steadyrun@.service", BAD)
    write(machine.root / "usr/lib/systemd/system/steadyrun@.service", GOOD)

    none = dict.fromkeys(REQUIRED_SETTINGS)

    assert machine.find() == [SystemdUnit(of_user), SystemdUnit(of_machine, none)]


def test_drop_in_overrides_its_unit_and_the_nearer_drop_in_the_other(machine: Machine) -> None:
    path = write(machine.root / "usr/lib/systemd/system" / NAME, GOOD)
    far = machine.root / "usr/lib/systemd/system" / f"{NAME}.d"
    near = machine.root / "etc/systemd/system" / f"{NAME}.d"
    write(far / "10-kill.conf", "[Service]\nKillMode=none\n")
    assert machine.find() == [SystemdUnit(path, {"KillMode": "none"})]

    write(near / "10-kill.conf", "[Service]\nOOMPolicy=\n")
    assert machine.find() == [SystemdUnit(path, {"OOMPolicy": None})]

    write(far / "20-more.conf", "[Service]\nOOMPolicy=continue\n")
    write(far / "30-more.txt", "[Service]\nOOMPolicy=stop\n")
    assert machine.find() == [SystemdUnit(path)]


@pytest.mark.parametrize(
    "start",
    [
        "/usr/bin/steadyrun down --keep",
        "/usr/bin/steadyrun send ada 'wake up'",
        "/usr/bin/steadyrun update",
        "/opt/steadyrun/bin/backup up",
    ],
)
def test_unit_that_starts_no_daemon_is_ignored(machine: Machine, start: str) -> None:
    write(machine.units / "steadyrun-other.service", f"[Service]\nExecStart={start}\n")
    (machine.units / "steadyrun-masked.service").symlink_to("/dev/null")

    assert machine.find() == []


@pytest.mark.parametrize(
    ("start", "absent"),
    [
        ("-/opt/venv/bin/python -m steadyrun up", "/opt/venv/bin/python"),
        ('"/a b/steadyrun" up --drain 5s', "/a b/steadyrun"),
        ("steadyrun --x up", ""),
        ("%t/steadyrun up", ""),
    ],
)
def test_unit_is_found_for_every_form_of_the_up_command(
    machine: Machine, start: str, absent: str
) -> None:
    path = write(machine.units / NAME, GOOD.replace("%h/.local/bin/steadyrun up", start))

    assert machine.find() == [SystemdUnit(path, absent=absent)]


def test_unreadable_unit_is_a_warning(machine: Machine) -> None:
    machine.units.mkdir(parents=True)
    (machine.units / NAME).symlink_to(machine.home / "gone")

    code, [finding] = machine.found("systemd")

    assert (code, finding["state"]) == (0, "warn")
    assert finding["detail"] == f"{machine.units / NAME}: No such file or directory"


def test_settings_are_read_as_systemd_reads_them() -> None:
    first = "KillMode=lost\n[Service]\n# A=1\n ; B=1\nA = 2 \nLong=one \\\n  two\nnonsense\nC=\n"

    assert read_service([first, "[Service]\nA=3\n[Install]\nA=4\n"]) == {
        "A": "3",
        "Long": "one    two",
        "C": "",
    }


def test_unit_with_invalid_bytes_is_read(machine: Machine) -> None:
    path = write(machine.units / NAME, "")
    path.write_bytes(b"[Unit]\nDescription=\xff\n" + GOOD.encode())

    assert machine.find() == [SystemdUnit(path)]


def test_unit_whose_program_does_not_exist_is_a_failure(machine: Machine) -> None:
    write(machine.units / NAME, GOOD)
    assert machine.found("systemd")[1][0]["state"] == "ok"
    machine.program.unlink()

    code, [finding] = machine.found("systemd")

    assert (code, finding["state"]) == (1, "fail")
    assert f"starts {machine.program}, which does not exist" in finding["detail"]
