"""Finds the state of providers, store and daemon for the commands `providers` and `doctor`."""

from pathlib import Path

import anyio
from msgspec import Struct

from steadyrun.app import providers
from steadyrun.config import Config
from steadyrun.dialect import Ability, Program
from steadyrun.drivers import programs
from steadyrun.drivers.programs import ProgramReport
from steadyrun.errors import ConfigInvalid, InvalidUsage
from steadyrun.lib.flock import is_locked
from steadyrun.lib.task_group import task_group
from steadyrun.stores.sqlite import DATABASE, SqliteStore

BUILT_IN = "built in"
# The running daemon has a lock on this file, which has its process id.
DAEMON_LOCK = Path("daemon", "lock")


class ProviderInfo(Struct, frozen=True):
    """A provider. `path` is its program: None if it was not found or is part of steadyrun.

    `is_tested` is None if the version or the tested range is not known. `login` names the
    credentials that were found, `login_by` all that are possible, `login_with` the command to log
    in. `problem` is anything else that is wrong, and `repair` how to fix it. `kind` names the
    Dialect.
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

    @property
    def is_outdated(self) -> bool:
        """Whether the version is older than the oldest tested one."""
        if self.version is None or self.tested is None:
            return False
        return programs.is_older(self.version, self.tested[0])


class StoreReport(Struct, frozen=True):
    """The database. `damage` is the first problem that was found in it, or empty."""

    path: Path
    exists: bool
    size_bytes: int = 0
    damage: str = ""


class DaemonReport(Struct, frozen=True):
    """Whether a daemon runs on the home. `pid` is None if it is not known."""

    is_running: bool
    pid: int | None = None


def find_providers(config: Config) -> list[ProviderInfo]:
    """Find all providers, by name. Their programs are started at the same time."""
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


async def check_store(home: Path) -> StoreReport:
    """Check the whole database for damage. A missing database is not created."""
    path = home / DATABASE
    if not path.exists():
        return StoreReport(path, exists=False)
    store = await SqliteStore.open(home)
    try:
        damage = await store.check()
    finally:
        await store.close()
    return StoreReport(path, True, path.stat().st_size, damage[0] if damage else "")


def find_daemon(home: Path) -> DaemonReport:
    """Find out from its lock whether a daemon runs. Raise `OSError` if the lock is not readable."""
    path = home / DAEMON_LOCK
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            is_running, word = is_locked(path), next(iter(file.read(64).split()), "")
    except FileNotFoundError:
        return DaemonReport(is_running=False)
    return DaemonReport(is_running, int(word) if is_running and word.isdecimal() else None)


async def _find_provider(config: Config, name: str) -> ProviderInfo:
    kind, command = config.find_kind(name), config.find_provider(name).command or ()
    try:
        program = providers.load_program(config, name)
    except ConfigInvalid as error:
        return _report_broken(name, kind, error)
    flaw, abilities, env = _read_settings(config, name)
    report = await _inspect_program(program, command, env)
    known = program or Program(BUILT_IN)
    return ProviderInfo(
        name,
        command[0] if command else known.name,
        report.path,
        is_there=report.is_there,
        is_configured=bool(command) or kind != name,
        abilities=tuple(sorted(abilities)),
        version=report.version,
        tested=known.tested,
        is_tested=report.is_tested,
        login=report.login,
        login_by=_list_logins(known),
        login_with=known.login or known.name,
        install=known.install,
        problem=flaw.message if flaw else report.problem,
        repair=(flaw.hint or "Correct it in config.toml.") if flaw else "",
        kind=kind,
    )


def _report_broken(name: str, kind: str, error: ConfigInvalid) -> ProviderInfo:
    """Report a provider of another package that cannot be imported."""
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


def _list_logins(program: Program) -> tuple[str, ...]:
    if program.login_file is None:
        return program.login_env
    return (*program.login_env, f"~/{program.login_folder[1]}/{program.login_file}")


def _read_settings(
    config: Config, name: str
) -> tuple[InvalidUsage | None, frozenset[Ability], dict[str, str]]:
    """Return the abilities and the environment of a provider, or the error of a launch."""
    inherited = {key: config.environ[key] for key in ("PATH", "HOME") if key in config.environ}
    try:
        abilities = providers.make_dialect(config, name).abilities
        configured = {key: secret.reveal() for key, secret in config.expand_env(name).items()}
    except InvalidUsage as error:
        return error, frozenset(), inherited
    return None, abilities, {**inherited, **configured}


async def _inspect_program(
    program: Program | None, command: tuple[str, ...], env: dict[str, str]
) -> ProgramReport:
    if program is None and not command:
        return ProgramReport(is_there=True)
    # A configured command that only starts our own program has no version to ask for.
    known = program or Program(command[0], version_args=())
    return await programs.inspect_program(known, command, env, str(Path.cwd()))
