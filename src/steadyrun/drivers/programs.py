"""Finds the program of a provider, its version and its login.

A program that is run for its version is not trusted: it gets no variable of the user's environment,
an empty home and little time, and is ended with its descendants. Credentials are never read.
"""

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import Literal

import anyio
import anyio.to_thread
from anyio.abc import Process
from msgspec import Struct

from steadyrun.dialect import Program
from steadyrun.drivers import keeper
from steadyrun.errors import LaunchFailed
from steadyrun.lib.task_group import task_group
from steadyrun.model.quotation import quote

ANSWER_SECONDS = 10.0
LONGEST_ANSWER_BYTES = 4096
_REST_SECONDS = 0.5
_VERSION = re.compile(r"(?<![\w.])v?(\d{1,9}(?:\.\d{1,9})+)")
_PROBLEMS = {
    "not_found": "it was not found on PATH",
    "not_executable": "the file is not executable",
}


class ProgramLocation(Struct, frozen=True):
    """The result of the search for a program."""

    code: Literal["found", "not_found", "not_executable"]
    path: str | None = None


class Version(Struct, frozen=True):
    """The version that a program has printed; without a number, the problem."""

    number: str | None = None
    problem: str = ""


class ProgramReport(Struct, frozen=True):
    """What is known of a program on this machine. `is_tested` is None if its version or the tested
    versions are unknown; `login` names what shows that a user is logged in."""

    is_there: bool
    path: str | None = None
    version: str | None = None
    is_tested: bool | None = None
    login: str | None = None
    problem: str = ""


async def inspect_program(
    program: Program, command: Sequence[str], env: Mapping[str, str], cwd: str
) -> ProgramReport:
    """Find the program as a launch with this environment would, and run it for its version."""
    path = env.get("PATH")
    place = find_program(command[0] if command else program.name, path=path, cwd=cwd)
    if place.code != "found" or place.path is None:
        problem = "" if place.path is None else f"{place.path}: {_PROBLEMS[place.code]}"
        return ProgramReport(is_there=False, problem=problem)
    version = Version()
    if program.version_args:
        asked = (place.path, *command[1:], *program.version_args)
        version = await ask_version(asked, path=path)
    return ProgramReport(
        is_there=True,
        path=place.path,
        version=version.number,
        is_tested=_is_tested(version.number, program.tested),
        login=find_login(program, env),
        problem=version.problem,
    )


def find_program(name: str, *, path: str | None, cwd: str) -> ProgramLocation:
    """The program that would be started in `cwd` with this PATH."""
    places = [""] if "/" in name else (os.defpath if path is None else path).split(":")
    there = [file for place in places if (file := Path(cwd, place, name)).is_file()]
    for file in there:
        if os.access(file, os.X_OK):
            return ProgramLocation("found", str(file))
    return (
        ProgramLocation("not_executable", str(there[0])) if there else ProgramLocation("not_found")
    )


def require_program(
    program: Program, command: Sequence[str], env: Mapping[str, str], cwd: str
) -> None:
    """Raise `LaunchFailed` with a hint how to install it if the program is missing."""
    name = command[0] if command else program.name
    place = find_program(name, path=env.get("PATH"), cwd=cwd)
    if place.code != "found":
        raise LaunchFailed(
            place.path or name,
            code=place.code,
            problem=_PROBLEMS[place.code],
            install=program.install,
        )


async def ask_version(command: Sequence[str], *, path: str | None) -> Version:
    """Run the version command; the first number like a version in its output counts."""
    with tempfile.TemporaryDirectory(prefix="steadyrun-", ignore_cleanup_errors=True) as home:
        env = {"HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "PATH": path or os.defpath}
        try:
            return await _run_version_command(command, env, home)
        except OSError as error:
            return Version(problem=f"it could not be started: {error.strerror}")


def find_login(program: Program, env: Mapping[str, str]) -> str | None:
    """The variable or the file that shows that a user is logged in."""
    for variable in program.login_env:
        if env.get(variable):
            return variable
    name, usual = program.login_folder
    place = env.get(name)
    folder = Path(place) if place else Path(env.get("HOME", ""), usual)
    if (
        not program.login_file
        or not folder.is_absolute()
        or not _is_there(folder / program.login_file)
    ):
        return None
    return f"${name}/{program.login_file}" if place else f"~/{usual}/{program.login_file}"


def is_older(version: str, than: str) -> bool:
    return _split_version(version) < _split_version(than)


def _is_tested(version: str | None, tested: tuple[str, str] | None) -> bool | None:
    if version is None or tested is None:
        return None
    oldest, newest = tested
    return not is_older(version, oldest) and not is_older(newest, version)


async def _run_version_command(
    command: Sequence[str], env: Mapping[str, str], home: str
) -> Version:
    mark, output = f"version-{os.urandom(8).hex()}", bytearray()
    async with await anyio.open_process(
        command,
        stdin=DEVNULL,
        stderr=DEVNULL,
        env={**env, keeper.MARK: mark},
        cwd=home,
        start_new_session=True,
    ) as process:
        try:
            code = await _collect_output(process, output)
        finally:
            # Descendants may hold the output open: end them before waiting for its end.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(keeper.sweep, [mark])
    return _parse_version(code, output.decode(errors="replace"))


async def _collect_output(process: Process, output: bytearray) -> int | None:
    """Collect output until the program ends; None if it does not end in time."""
    finished = anyio.Event()
    async with task_group() as tasks:
        tasks.start_soon(_read_output, process, output, finished)
        with anyio.move_on_after(ANSWER_SECONDS):
            await process.wait()
            with anyio.move_on_after(_REST_SECONDS):
                await finished.wait()
        tasks.cancel_scope.cancel()
    if process.returncode is None:
        process.kill()
        return None
    return process.returncode


async def _read_output(process: Process, output: bytearray, finished: anyio.Event) -> None:
    """Read all output, and keep the beginning."""
    assert process.stdout is not None
    async for piece in process.stdout:
        output += piece[: LONGEST_ANSWER_BYTES - len(output)]
    finished.set()


def _parse_version(code: int | None, output: str) -> Version:
    found = _VERSION.search(output)
    if code is None:
        return Version(problem=f"it did not answer within {ANSWER_SECONDS:g} seconds")
    if code != 0:
        how = f"code {code}" if code > 0 else f"signal {-code}"
        return Version(problem=f"its version command ended with {how}")
    if found is None:
        return Version(problem=f"its version command printed {quote(output.strip())}")
    return Version(found[1])


def _split_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True
