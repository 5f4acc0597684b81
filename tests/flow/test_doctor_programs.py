"""What `providers` and `doctor` say of programs: small real ones, on a PATH of their own."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from msgspec import Struct

from steadyrun.cli.commands.doctor import doctor
from steadyrun.cli.commands.providers import list_providers
from steadyrun.dialect import LaunchRequest, Program, Turn
from steadyrun.drivers.launcher import KeeperLauncher, ProviderSetup
from steadyrun.errors import LaunchFailed
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.model.ids import Ids
from steadyrun.model.process import Process
from steadyrun.providers import registry
from steadyrun.providers.template import Parrot
from tests.support.commands import steadyrun

INSTALL = "npm install -g claude"


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    effort: int = 1


class Known(Parrot):
    """A Dialect that needs a program."""

    name: ClassVar[str] = "claude"
    options_type: ClassVar[type[Struct]] = Options
    program: ClassVar[Program | None] = Program(
        "claude",
        tested=("2.0.0", "2.1.197"),
        install=INSTALL,
        login_env=("API_KEY", "TOKEN"),
        login="`claude login`",
        login_file="login",
        login_folder=("CLAUDE_HOME", ".claude"),
    )

    def __init__(self, options: Options | None = None) -> None:
        super().__init__()


class Machine:
    """A machine with one such provider, and the two commands on it."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.bin = place / "home", place / "bin"
        self.home.mkdir(mode=0o700)
        self.bin.mkdir()
        self._capsys = capsys

    def install(self, body: str, *, mode: int = 0o755) -> str:
        file = self.bin / "claude"
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(mode)
        return str(file)

    def configure(self, text: str) -> None:
        (self.home / "config.toml").write_text(f"[providers.claude]\n{text}\n")

    def log_in(self) -> None:
        (self.home / ".claude").mkdir()
        (self.home / ".claude" / "login").touch(mode=0)

    def listed(self) -> dict[str, Any]:
        assert list_providers(Namespace(json=True, deep=False)) == 0
        found = json.loads(self._capsys.readouterr().out)["providers"]
        [each] = [each for each in found if each["name"] == "claude"]
        return dict(each)

    def shown(self) -> list[str]:
        assert list_providers(Namespace(json=False)) == 0
        lines = self._capsys.readouterr().out.splitlines()
        start = next(n for n, line in enumerate(lines) if line.startswith("claude"))
        length = next(n for n, line in enumerate(lines[start:]) if "can:" in line)
        return [line[13:] for line in lines[start : start + length]]

    def checked(self) -> tuple[int, dict[str, str]]:
        code = doctor(Namespace(json=True, deep=False))
        checks = json.loads(self._capsys.readouterr().out)["checks"]
        [check] = [check for check in checks if check["check"] == "provider claude"]
        return code, check


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Machine:
    made = Machine(tmp_path, capsys)
    monkeypatch.setitem(registry.BUILT_IN, "claude", f"{__name__}:Known")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.setenv("STEADYRUN_HOME", str(made.home))
    monkeypatch.delenv("API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return made


def test_tested_program_with_a_login_is_ok(machine: Machine) -> None:
    path = machine.install("echo '2.1.100 (Claude Code)'")
    machine.log_in()

    assert machine.listed() == {
        "name": "claude",
        "program": "claude",
        "path": path,
        "is_there": True,
        "is_configured": False,
        "abilities": sorted(Parrot.abilities),
        "version": "2.1.100",
        "tested": ["2.0.0", "2.1.197"],
        "is_tested": True,
        "login": "~/.claude/login",
        "login_by": ["API_KEY", "TOKEN", "~/.claude/login"],
        "login_with": "`claude login`",
        "install": INSTALL,
        "problem": "",
        "repair": "",
        "kind": "claude",
    }
    assert machine.shown() == [path, "version: 2.1.100 (tested)", "login: ~/.claude/login"]
    assert machine.checked() == (
        0,
        {
            "check": "provider claude",
            "state": "ok",
            "detail": f"{path} 2.1.100 (tested), login: ~/.claude/login",
            "repair": "",
        },
    )


def test_missing_program_is_a_warning_with_its_install_command(machine: Machine) -> None:
    found = machine.listed()
    code, check = machine.checked()

    assert (found["path"], found["is_there"], found["version"]) == (None, False, None)
    assert machine.shown() == ["claude: not found", f"install: {INSTALL}"]
    assert (code, check["state"]) == (0, "warn")
    assert check["detail"] == "claude was not found on PATH"
    assert f"({INSTALL})" in check["repair"]
    assert "providers.claude.command" in check["repair"]


def test_missing_configured_program_is_a_failure(machine: Machine) -> None:
    machine.install("echo 2.1.100")
    machine.configure("command = ['/opt/none/claude']")

    code, check = machine.checked()

    assert (code, check["state"]) == (1, "fail")
    assert "/opt/none/claude was not found" in check["detail"]


def test_configured_command_replaces_the_default_program(
    machine: Machine,
) -> None:
    other = machine.install("echo 1.9.0")
    (machine.bin / "claude").rename(machine.bin / "other")
    machine.configure("command = ['other']")

    found = machine.listed()

    assert (found["program"], found["path"]) == ("other", other.replace("claude", "other"))
    assert (found["version"], found["is_tested"]) == ("1.9.0", False)


@pytest.mark.parametrize(
    ("version", "repair"),
    [("2.1.198", "If it fails, use 2.1.197."), ("1.9.9", f"Update it ({INSTALL}).")],
)
def test_untested_version_is_a_warning(machine: Machine, version: str, repair: str) -> None:
    path = machine.install(f"echo {version}")
    machine.log_in()

    code, check = machine.checked()

    assert (code, check["state"], check["repair"]) == (0, "warn", repair)
    assert check["detail"] == f"{path} {version} (not tested; tested: 2.0.0 to 2.1.197)"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo '\033[2J rm -rf'", "printed '\\x1b[2J rm -rf'"),
        ("echo 2.1.100; exit 1", "ended with code 1"),
    ],
)
def test_program_without_a_readable_version_is_a_warning(
    machine: Machine, body: str, problem: str
) -> None:
    path = machine.install(body)
    machine.log_in()

    code, check = machine.checked()

    assert (code, check["state"]) == (0, "warn")
    assert check["detail"] == f"{path}; its version command {problem}"
    assert machine.shown() == [
        path,
        "login: ~/.claude/login",
        f"problem: its version command {problem}",
    ]


def test_program_that_is_not_executable_is_a_warning(machine: Machine) -> None:
    path = machine.install("echo 2.1.100", mode=0o644)

    code, check = machine.checked()

    assert (code, check["state"]) == (0, "warn")
    assert check["detail"] == f"{path}: the file is not executable"
    assert check["repair"].startswith("Make it executable, or set providers.claude.command")
    assert machine.shown()[:2] == ["claude", f"problem: {path}: the file is not executable"]


def test_missing_login_is_a_warning_with_the_ways_to_log_in(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install("echo 2.1.100")
    # A provider gets nothing of the user's environment: what is not passed on is no login.
    monkeypatch.setenv("API_KEY", "secret")

    code, check = machine.checked()

    assert (code, check["state"]) == (0, "warn")
    assert check["detail"].endswith("; no login was found")
    assert check["repair"] == (
        "Log in with `claude login`, or set one of API_KEY, TOKEN in providers.claude.env."
    )

    machine.configure('env = { API_KEY = "${API_KEY}" }')
    assert machine.listed()["login"] == "API_KEY"
    assert machine.checked()[1]["state"] == "ok"


@pytest.mark.parametrize(
    ("setting", "problem", "repair"),
    [
        ("options = { effort = 'much' }", "providers.claude.options: Expected `int`", "effort"),
        ('env = { API_KEY = "${NONE}" }', "the environment variable NONE", "export NONE="),
    ],
)
def test_invalid_option_or_unset_variable_is_a_failure(
    machine: Machine, setting: str, problem: str, repair: str
) -> None:
    machine.install("echo 2.1.100")
    machine.configure(setting)

    code, check = machine.checked()

    assert (code, check["state"]) == (1, "fail")
    assert problem in check["detail"]
    assert repair in check["repair"]
    assert problem in machine.listed()["problem"]


def test_launch_of_a_missing_program_fails_with_its_install_command(tmp_path: Path) -> None:
    setup = ProviderSetup(dialect=Known, env=lambda: {"PATH": str(tmp_path)})
    clock = SystemClock()

    async def main() -> None:
        with FileWatches() as watches:
            drivers = KeeperLauncher(tmp_path, {"claude": setup}, clock=clock, watches=watches)
            ids = Ids(clock.now)
            process = ids.make_process()
            place = drivers.name_directory(process)
            row = Process(process, ids.make_agent(), "claude", "here", place, clock.now())
            await drivers.launch(row, LaunchRequest(Turn("run_1", "x"), str(tmp_path)))

    with pytest.raises(LaunchFailed) as caught:
        anyio.run(main)

    assert caught.value.message == "cannot start claude: it was not found on PATH"
    assert caught.value.hint.startswith(f"Install it ({INSTALL}), or set providers.claude.command")
    assert not (tmp_path / "processes").exists()


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_every_provider_with_a_program_has_an_install_command(tmp_path: Path, name: str) -> None:
    done = steadyrun(tmp_path / "home", "providers", "--json")

    [found] = [each for each in json.loads(done.stdout)["providers"] if each["name"] == name]
    assert found["install"]
    assert found["is_there"] == (found["path"] is not None)
