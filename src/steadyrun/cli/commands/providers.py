"""Who can do the work here? `providers` lists them; `doctor` asks the same."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import anyio
from msgspec import Struct

from steadyrun.app import providers
from steadyrun.cli.output import format as render
from steadyrun.config import Config, load
from steadyrun.dialect import Ability, Program
from steadyrun.drivers import programs
from steadyrun.drivers.programs import ProgramReport
from steadyrun.errors import ConfigInvalid, InvalidUsage
from steadyrun.lib.task_group import task_group

BUILT_IN = "built in"


class ProviderInfo(Struct, frozen=True):
    """A provider. `path` is its program; None if it was not found or is part of steadyrun.

    `is_tested` is None where the version or the tested range is not known; `login` is what says
    that somebody is logged in, `login_by` what could, and `login_with` how to log in. `problem` is
    what else is in the way, and `repair` helps there. `kind` names its Dialect.
    """

    name: str
    program: str
    path: str | None
    is_there: bool
    is_configured: bool
    abilities: tuple[str, ...]
    version: str | None = None
    tested: tuple[str, str] | None = None
    is_tested: bool | None = None
    login: str | None = None
    login_by: tuple[str, ...] = ()
    login_with: str = ""
    install: str = ""
    problem: str = ""
    repair: str = ""
    kind: str = ""


def list_providers(args: Namespace) -> int:
    found = find_providers(load())
    if args.json:
        print(render.to_json({"providers": found}))
        return 0
    for each in found:
        for number, line in enumerate(_format_lines(each)):
            print(f"{'' if number else each.name:<12} {render.sanitize(line)}")
    return 0


def find_providers(config: Config) -> list[ProviderInfo]:
    """All there are, by name. Their programs are asked at the same time."""
    found: dict[str, ProviderInfo] = {}
    names = providers.list_providers(config)

    async def add(name: str) -> None:
        found[name] = await _find_provider(config, name)

    async def add_all() -> None:
        async with task_group() as tasks:
            for name in names:
                tasks.start_soon(add, name)

    anyio.run(add_all)
    return [found[name] for name in sorted(found)]


def format_version(found: ProviderInfo) -> str:
    """The version, and whether it was tried; nothing if there is none."""
    if found.version is None or found.tested is None:
        return found.version or ""
    oldest, newest = found.tested
    span = oldest if oldest == newest else f"{oldest} to {newest}"
    return f"{found.version} ({'tested' if found.is_tested else f'not tested: that is {span}'})"


def _format_lines(found: ProviderInfo) -> Iterator[str]:
    is_missing = not found.is_there and not found.problem
    yield f"{found.program}: not found" if is_missing else found.path or found.program
    facts = {
        "kind": found.kind if found.kind != found.name else "",
        "version": format_version(found),
        "login": (found.login or "none found") if found.is_there and found.login_by else "",
        "problem": found.problem,
        "install": "" if found.is_there else found.install,
        "can": ", ".join(found.abilities),
    }
    yield from (f"{name}: {fact}" for name, fact in facts.items() if fact)


async def _find_provider(config: Config, name: str) -> ProviderInfo:
    kind, command = config.provider_kind(name), config.find_provider(name).command or ()
    try:
        program = providers.load_program(config, name)
    except ConfigInvalid as error:
        return _report_broken(name, kind, error)
    flaw, abilities, env = _read_settings(config, name)
    look = await _inspect_program(program, command, env)
    known = program or Program(BUILT_IN)
    return ProviderInfo(
        name,
        command[0] if command else known.name,
        look.path,
        is_there=look.is_there,
        is_configured=bool(command) or kind != name,
        abilities=tuple(sorted(abilities)),
        version=look.version,
        tested=known.tested,
        is_tested=look.is_tested,
        login=look.login,
        login_by=_list_logins(known),
        login_with=known.login or known.name,
        install=known.install,
        problem=flaw.message if flaw else look.problem,
        repair=(flaw.hint or "Correct it in config.toml.") if flaw else "",
        kind=kind,
    )


def _list_logins(program: Program) -> tuple[str, ...]:
    if program.login_file is None:
        return program.login_env
    return (*program.login_env, f"~/{program.login_folder[1]}/{program.login_file}")


def _report_broken(name: str, kind: str, error: ConfigInvalid) -> ProviderInfo:
    """A provider of another package that cannot be imported."""
    return ProviderInfo(
        name,
        kind,
        None,
        is_there=False,
        is_configured=True,
        abilities=(),
        problem=error.message,
        repair=error.hint,
        kind=kind,
    )


def _read_settings(
    config: Config, name: str
) -> tuple[InvalidUsage | None, frozenset[Ability], dict[str, str]]:
    """What it can do and the variables it would get; an error where a launch would end with it."""
    inherited = {key: config.environ[key] for key in ("PATH", "HOME") if key in config.environ}
    try:
        abilities = providers.make_dialect(config, name).abilities
        given = {key: secret.reveal() for key, secret in config.provider_env(name).items()}
    except InvalidUsage as error:
        return error, frozenset(), inherited
    return None, abilities, {**inherited, **given}


async def _inspect_program(
    program: Program | None, command: tuple[str, ...], env: dict[str, str]
) -> ProgramReport:
    if program is None and not command:
        return ProgramReport(is_there=True)
    # A program that only runs ours is not asked.
    known = program or Program(command[0], version_args=())
    return await programs.look(known, command, env, str(Path.cwd()))
