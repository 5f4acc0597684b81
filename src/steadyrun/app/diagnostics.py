"""Finds the state of providers, store and daemon for the commands `providers` and `doctor`."""

import os
import stat
from pathlib import Path

import anyio
from msgspec import Struct

from steadyrun.api import client
from steadyrun.api.server import locate_lock
from steadyrun.app import providers
from steadyrun.config import Config
from steadyrun.dialect import Ability, Program
from steadyrun.drivers import programs
from steadyrun.drivers.aside_mark import list_set_aside
from steadyrun.drivers.keeper_client import KeeperLimits
from steadyrun.drivers.lineage import PROCESSES
from steadyrun.drivers.programs import ProgramReport
from steadyrun.errors import ConfigInvalid, DaemonUnreachable, InvalidUsage
from steadyrun.lib.flock import is_locked
from steadyrun.lib.task_group import task_group
from steadyrun.runtime.prompt.system import ROLES
from steadyrun.stores.sqlite import DATABASE, SqliteStore

BUILT_IN = "built in"
_PRIVATE_FOLDERS = ("daemon", "holders", "attachments", PROCESSES)


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


def locate_database(home: Path) -> Path:
    return home / DATABASE


async def find_damage(home: Path, *, is_deep: bool) -> list[str]:
    """Check the whole database, which must exist, and return the problems in it. A deep check also
    decodes every row."""
    store = await SqliteStore.open(home)
    try:
        return await store.check(is_deep=is_deep)
    finally:
        await store.close()


def find_daemon(home: Path) -> str | None:
    """Return the content of the lock of a running daemon, which is its process id; None if no
    daemon runs. Raise `OSError` if the lock is not readable."""
    path = locate_lock(home)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(64).strip() if is_locked(path) else None
    except FileNotFoundError:
        return None


def is_answering(home: Path) -> bool:
    """Whether a process listens on the socket of the daemon."""

    async def connect() -> bool:
        try:
            async with client.connect(home, greets=False):
                return True
        except DaemonUnreachable:
            return False

    return anyio.run(connect)


def find_shortage(home: Path) -> str | None:
    """What the file system of the home lacks: below this space keepers stop their CLIs."""
    found = os.statvfs(home)
    free, wanted = found.f_bavail * found.f_frsize, KeeperLimits().free_bytes
    if free < wanted:
        return f"{free} bytes are free, {wanted} are needed"
    if found.f_files and not found.f_favail:
        return "no inode is free: no file can be created"
    return None


def find_loose_modes(home: Path) -> list[Path]:
    """The files and directories of steadyrun in the home that other users may use, and settings
    that other users may change."""
    private = [*home.glob("steadyrun.*"), home / "seal"]
    for name in _PRIVATE_FOLDERS:
        private += [home / name, *_list_entries(home / name)]
    settings = [home / "config.toml", home / "trusted.json", home / ROLES, *home.glob("roles/*")]
    loose = [path for path in private if _read_mode(path) & 0o077]
    return loose + [path for path in settings if _read_mode(path) & 0o022]


def _list_entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _read_mode(path: Path) -> int:
    """The mode; that of a link, or of what was deleted a moment ago, allows nothing."""
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        return 0
    return 0 if stat.S_ISLNK(found) else stat.S_IMODE(found)


def find_set_aside(home: Path) -> list[tuple[str, str]]:
    """The processes that no holder reads any more, each with the reason."""
    return list_set_aside(home / PROCESSES)


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
