"""What is found out about a program, with small real programs."""

import os
from pathlib import Path

import anyio
import pytest

from steadyrun.dialect import Program
from steadyrun.drivers import keeper, programs
from steadyrun.drivers.programs import ProgramReport, find_program, inspect_program, require_program
from steadyrun.errors import LaunchFailed

PROGRAM = Program(
    "claude",
    tested=("2.1.100", "2.2.0"),
    install="npm install claude",
    login_env=("API_KEY", "TOKEN"),
    login_file="login",
    login_folder=("CLAUDE_HOME", ".claude"),
)
SYSTEM = "/usr/bin:/bin"


def write(folder: Path, body: str, *, name: str = "claude", mode: int = 0o755) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(mode)
    return file


def seen(folder: Path, program: Program = PROGRAM, **env: str) -> ProgramReport:
    path = f"{folder}:{SYSTEM}"
    return anyio.run(inspect_program, program, (), {"PATH": path, **env}, str(folder))


def is_gone(pid: str) -> bool:
    """True for a zombie as well: its new parent may reap it late."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    return tmp_path / "bin"


@pytest.mark.parametrize(
    ("said", "version", "is_tested"),
    [
        ("2.1.197 (Claude Code)", "2.1.197", True),
        ("claude-cli v2.1.100", "2.1.100", True),
        ("codex-cli 2.2.0-beta.1", "2.2.0", True),
        ("2.2.1", "2.2.1", False),
        ("2.10.0", "2.10.0", False),
        ("2.1.99", "2.1.99", False),
        ("node 18\nversion=2.2", "2.2", True),
    ],
)
def test_version_is_the_number_that_the_program_prints(
    bin_folder: Path, said: str, version: str, is_tested: bool
) -> None:
    file = write(bin_folder, f"printf '%s\\n' '{said}'")

    found = seen(bin_folder)

    assert found == ProgramReport(
        is_there=True, path=str(file), version=version, is_tested=is_tested
    )


def test_program_without_tested_versions_is_neither_tested_nor_untested(bin_folder: Path) -> None:
    write(bin_folder, "echo 3.2.1")

    assert seen(bin_folder, Program("claude")).is_tested is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo 2.1.197; exit 1", "its version command ended with code 1"),
        ("kill -9 $$", "its version command ended with signal 9"),
        ("echo hello", "its version command printed 'hello'"),
        ("printf '\\033[2J\\377\\0'", "its version command printed '\\x1b[2J\ufffd\\x00'"),
        ("head -c 100000 /dev/zero", "its version command printed '\\x00\\x00\\x00\\x00…'"),
        (":", "its version command printed ''"),
    ],
)
def test_program_without_a_readable_version_is_reported_as_present(
    bin_folder: Path, body: str, problem: str
) -> None:
    file = write(bin_folder, body)

    assert seen(bin_folder) == ProgramReport(is_there=True, path=str(file), problem=problem)


def test_file_that_is_not_a_program_is_reported(bin_folder: Path) -> None:
    bin_folder.mkdir()
    (bin_folder / "claude").write_bytes(b"\x7fELF nonsense")
    (bin_folder / "claude").chmod(0o755)

    assert seen(bin_folder).problem.startswith("it could not be started: ")


def test_hanging_program_is_killed_with_its_children(
    bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "ANSWER_SECONDS", 0.5)
    pids = tmp_path / "pids"
    child = f"echo $$ >>{pids}; exec sleep 600"
    write(bin_folder, f"trap '' TERM; setsid sh -c '{child}' & {child}")

    found = seen(bin_folder)

    assert found.problem == "it did not answer within 0.5 seconds"
    for pid in pids.read_text().split():
        assert is_gone(pid)


def test_program_with_endless_output_is_killed(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "ANSWER_SECONDS", 0.5)
    write(bin_folder, "exec yes 2.1.197")

    assert seen(bin_folder).problem == "it did not answer within 0.5 seconds"


def test_children_left_by_the_program_are_killed(bin_folder: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    left = f"setsid sh -c 'echo $$ >{pid}; exec sleep 600' &"
    write(bin_folder, f"{left} until test -s {pid}; do :; done; echo 2.1.197")

    found = seen(bin_folder)

    assert found.version == "2.1.197"
    assert is_gone(pid.read_text().strip())


def test_program_runs_in_an_empty_environment_and_a_temporary_home(
    bin_folder: Path, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    write(bin_folder, f"env >{given}; pwd >>{given}; touch $HOME/state; echo 2.1.197")

    seen(bin_folder, HOME=str(tmp_path), API_KEY="secret")

    *lines, cwd = given.read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines)
    assert set(env) - {"PWD", "OLDPWD", "SHLVL", "_"} == {
        "HOME", "TMPDIR", "LANG", "PATH", keeper.MARK,
    }  # fmt: skip
    assert env["HOME"] == env["TMPDIR"] == cwd
    assert not Path(cwd).exists()


def test_configured_command_keeps_its_arguments(tmp_path: Path) -> None:
    file = write(tmp_path, 'echo "$1 $2" | tr -d x', name="wrapper")
    command = (str(file), "x9.9")

    found = anyio.run(inspect_program, PROGRAM, command, {"PATH": SYSTEM}, str(tmp_path))

    assert (found.path, found.version) == (str(file), "9.9")


# -- where it is


def test_program_is_found_like_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "one" / "claude").mkdir(parents=True)
    write(tmp_path / "two", ":", mode=0o644)
    file = write(tmp_path / "three", ":")
    path = ":".join(str(tmp_path / place) for place in ("none", "one", "two", "three"))

    assert find_program("claude", path=path, cwd="/").path == str(file)
    assert find_program("claude", path="three", cwd=str(tmp_path)).path == str(file)
    assert find_program("three/claude", path=None, cwd=str(tmp_path)).path == str(file)
    assert find_program(str(file), path=None, cwd="/").path == str(file)
    assert find_program("claude", path=str(tmp_path / "one"), cwd="/").code == "not_found"
    assert find_program("claude", path="", cwd="/").code == "not_found"


@pytest.mark.parametrize(
    ("mode", "code", "problem", "hint"),
    [
        (None, "not_found", "cannot start claude: it was not found on PATH",
         "Install it (npm install claude), or set providers.NAME.command"),
        (0o644, "not_executable", "claude: the file is not executable", "Make the file executable"),
    ],
)  # fmt: skip
def test_launch_without_the_program_hints_how_to_install_it(
    bin_folder: Path, mode: int | None, code: str, problem: str, hint: str
) -> None:
    if mode is not None:
        write(bin_folder, ":", mode=mode)

    with pytest.raises(LaunchFailed) as caught:
        require_program(PROGRAM, (), {"PATH": str(bin_folder)}, "/")

    assert caught.value.reason == code
    assert problem in caught.value.message
    assert hint in caught.value.hint
    assert seen(bin_folder).is_there is False


def test_launch_with_an_existing_program_is_accepted(bin_folder: Path) -> None:
    write(bin_folder, ":", name="other")

    require_program(PROGRAM, ("other", "-x"), {"PATH": str(bin_folder)}, "/")


# -- who is logged in


def test_login_is_found_by_a_variable_or_a_file(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert programs.find_login(PROGRAM, home) is None
    assert programs.find_login(PROGRAM, {"API_KEY": "", **home}) is None
    assert programs.find_login(PROGRAM, {"TOKEN": "x", **home}) == "TOKEN"

    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "login").touch()
    assert programs.find_login(PROGRAM, home) == "~/.claude/login"
    assert programs.find_login(PROGRAM, {"API_KEY": "x", **home}) == "API_KEY"
    assert programs.find_login(PROGRAM, {}) is None


def test_login_is_searched_in_the_folder_of_the_program(tmp_path: Path) -> None:
    env = {"HOME": "/nowhere", "CLAUDE_HOME": str(tmp_path)}
    assert programs.find_login(PROGRAM, env) is None

    (tmp_path / "login").touch()
    assert programs.find_login(PROGRAM, env) == "$CLAUDE_HOME/login"
    assert programs.find_login(PROGRAM, {"HOME": str(tmp_path)}) is None


def test_login_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    # A process that opens the pipe waits until another process writes into it.
    os.mkfifo(tmp_path / ".claude" / "login", mode=0)

    assert programs.find_login(PROGRAM, {"HOME": str(tmp_path)}) == "~/.claude/login"


def test_unreadable_home_has_no_login() -> None:
    assert programs.find_login(PROGRAM, {"HOME": "/dev/null"}) is None
    assert programs.find_login(PROGRAM, {"HOME": "\0"}) is None
