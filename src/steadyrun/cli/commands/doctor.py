"""The command `doctor`: checks this machine. Each check reports its result and a repair."""

import os
import stat
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
from msgspec import Struct

from steadyrun.api.server import locate_lock
from steadyrun.app.diagnostics import (
    BUILT_IN,
    ProviderInfo,
    find_daemon,
    find_damage,
    find_loose_modes,
    find_providers,
    find_set_aside,
    find_shortage,
    is_answering,
    locate_database,
)
from steadyrun.cli.commands.providers import format_version
from steadyrun.cli.output.format import sanitize, to_json
from steadyrun.cli.systemd import (
    ADVISED_SETTINGS,
    REQUIRED_SETTINGS,
    SystemdUnit,
    find_units,
)
from steadyrun.config import load, locate, to_printable
from steadyrun.config.locations import get_environ
from steadyrun.errors import SteadyrunError

OLDEST_PYTHON = (3, 11)
_MOST_SHOWN = 5


class Finding(Struct, frozen=True):
    """The result of one check."""

    check: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    repair: str = ""


def doctor(args: Namespace) -> int:
    findings = list(run_checks(locate().home, is_deep=args.deep))
    if args.json:
        print(to_json({"checks": findings}))
    else:
        for finding in findings:
            print(f"{finding.state:<5} {finding.check:<18} {sanitize(finding.detail)}")
            if finding.repair:
                print(f"{'':<24} -> {sanitize(finding.repair)}")
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def run_checks(home: Path, *, is_deep: bool = False) -> Iterator[Finding]:
    yield _check_python()
    yield _check_config()
    yield from _check_home(home)
    yield from _check_modes(home)
    yield from _check_space(home)
    yield from _check_store(home, is_deep=is_deep)
    yield _check_daemon(home)
    yield from _check_processes(home)
    # There is no finding if no unit starts a daemon.
    yield from map(_check_unit, find_units(get_environ()))
    yield from _check_providers()


def _check_python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "fail", version, "Use Python 3.11 or later.")
    return Finding("python", "ok", version)


def _check_config() -> Finding:
    try:
        config = load()
    except SteadyrunError as error:
        return Finding("config", "fail", error.message, error.hint)
    places = config.locations
    used = to_printable(places.user_file) if places.has_user_file else "defaults (no file)"
    return Finding("config", "ok", used)


def _check_providers() -> Iterator[Finding]:
    try:
        config = load()
    except SteadyrunError:
        # The check of the configuration has reported this error.
        return
    try:
        providers = find_providers(config)
    except SteadyrunError as error:
        # Two packages have a provider of the same name.
        yield Finding("providers", "fail", error.message, error.hint)
    else:
        yield from map(_check_provider, providers)


def _check_provider(provider: ProviderInfo) -> Finding:
    check = f"provider {provider.name}"
    if provider.repair or not provider.is_there:
        return _report_unusable(check, provider)
    program = " ".join(filter(None, (provider.path or BUILT_IN, format_version(provider))))
    doubts = list(_list_doubts(provider))
    if not doubts:
        login = f", login: {provider.login}" if provider.login else ""
        return Finding(check, "ok", f"{program}{login}")
    detail = "; ".join([program, *(doubt for doubt, _ in doubts if doubt)])
    return Finding(check, "warn", detail, " ".join(repair for _, repair in doubts))


def _report_unusable(check: str, provider: ProviderInfo) -> Finding:
    if provider.repair:
        return Finding(check, "fail", provider.problem, provider.repair)
    # A missing program is an error only if the user has configured it.
    state: Literal["warn", "fail"] = "fail" if provider.is_configured else "warn"
    setting = f"set providers.{provider.name}.command in config.toml to its path."
    if provider.problem:
        return Finding(check, state, provider.problem, f"Make it executable, or {setting}")
    how = f"Install it ({provider.install})" if provider.install else "Install it"
    detail = f"{provider.program} was not found on PATH"
    return Finding(check, state, detail, f"{how}, or {setting}")


def _list_doubts(provider: ProviderInfo) -> Iterator[tuple[str, str]]:
    """Yield what may be wrong with a program that was found, and how to fix it."""
    if provider.problem:
        yield provider.problem, f"Run it by hand to see the problem: {provider.path}"
    if provider.is_tested is False and provider.tested:
        update = f"Update it ({provider.install})."
        yield "", update if provider.is_outdated else f"If it fails, use {provider.tested[1]}."
    if provider.login_by and not provider.login:
        names = ", ".join(name for name in provider.login_by if not name.startswith("~"))
        way = f", or set one of {names} in providers.{provider.name}.env" if names else ""
        yield "no login was found", f"Log in with {provider.login_with}{way}."


def _check_home(home: Path) -> Iterator[Finding]:
    shown = to_printable(home)
    try:
        found = home.stat()
    except FileNotFoundError:
        yield Finding("home", "ok", f"{shown} does not exist yet; the first command creates it")
        return
    except OSError as error:
        yield Finding("home", "fail", f"{shown}: {error.strerror}", "Check STEADYRUN_HOME.")
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Finding("home", "fail", f"{shown} is not a directory", "Check STEADYRUN_HOME.")
    elif not os.access(home, os.W_OK | os.X_OK):
        yield Finding("home", "fail", f"{shown} is not writable", f"chmod u+rwx {shown}")
    elif found.st_mode & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        detail = f"{shown} has mode {mode}: other users of this machine can read it"
        yield Finding("home", "warn", detail, f"chmod 700 {shown}")
    else:
        yield Finding("home", "ok", f"{shown} (mode 0700)")


def _check_modes(home: Path) -> Iterator[Finding]:
    """There is no finding if all modes are as they should be."""
    loose = find_loose_modes(home)
    if loose:
        names = ", ".join(to_printable(path.relative_to(home)) for path in loose[:_MOST_SHOWN])
        more = f" and {len(loose) - _MOST_SHOWN} more" if len(loose) > _MOST_SHOWN else ""
        detail = f"other users of this machine may use {names}{more}"
        yield Finding("modes", "warn", detail, f"chmod -R go-rwx {to_printable(home)}")


def _check_space(home: Path) -> Iterator[Finding]:
    """There is no finding if there is enough space."""
    try:
        shortage = find_shortage(home)
    except FileNotFoundError:
        return
    except OSError as error:
        shortage = str(error.strerror)
    if shortage:
        detail = f"{to_printable(home)}: {shortage}"
        yield Finding("space", "fail", detail, "Free some space there: no CLI can work.")


def _check_store(home: Path, *, is_deep: bool) -> Iterator[Finding]:
    path = locate_database(home)
    shown = to_printable(path)
    try:
        if not path.exists():
            yield Finding("store", "ok", f"{shown} does not exist yet")
            return
        damage = anyio.run(partial(find_damage, home, is_deep=is_deep))
        size = path.stat().st_size
    except (SteadyrunError, OSError) as error:
        hint = error.hint if isinstance(error, SteadyrunError) else ""
        yield Finding("store", "fail", str(error).partition("\n")[0], hint)
        return
    for problem in damage[:_MOST_SHOWN]:
        yield Finding("store", "fail", f"{shown}: {problem}", "Restore it: steadyrun restore FILE")
    if len(damage) > _MOST_SHOWN:
        yield Finding("store", "fail", f"{shown}: {len(damage) - _MOST_SHOWN} more problems")
    if not damage:
        how = "all rows were read" if is_deep else "no damage found"
        yield Finding("store", "ok", f"{shown} ({size} bytes, {how})")


def _check_daemon(home: Path) -> Finding:
    try:
        pid = find_daemon(home)
    except OSError as error:
        shown = to_printable(locate_lock(home))
        return Finding("daemon", "warn", f"{shown}: {error.strerror}", f"chmod u+rw {shown}")
    if pid is None and is_answering(home):
        shown = to_printable(locate_lock(home))
        detail = f"a daemon answers, but {shown} is missing or not locked"
        repair = "A daemon restores it within seconds; otherwise: steadyrun down, steadyrun up"
        return Finding("daemon", "fail", detail, repair)
    if pid is None:
        return Finding("daemon", "ok", "not running; `steadyrun up` starts it")
    return Finding("daemon", "ok", f"running (pid {pid})" if pid.isdecimal() else "running")


def _check_processes(home: Path) -> Iterator[Finding]:
    """There is a finding for each process that is set aside."""
    for process, reason in find_set_aside(home):
        shown = to_printable(home / "processes" / process)
        repair = f"Its files are kept in {shown} for daemon.keep_days; `steadyrun inbox --all`"
        detail = f"{process} is set aside: {reason}"
        yield Finding("process", "warn", detail, f"{repair} shows what to send again.")


def _check_unit(unit: SystemdUnit) -> Finding:
    shown = to_printable(unit.path)
    if unit.problem:
        return Finding("systemd", "warn", f"{shown}: {unit.problem}", "Make it readable.")
    if unit.absent:
        detail = f"{shown} starts {unit.absent}, which does not exist"
        return Finding("systemd", "fail", detail, "Install steadyrun there, or change ExecStart.")
    if not unit.wrong and unit.missing:
        return _report_unwatched(shown, unit)
    if not unit.wrong:
        settings = ", ".join(f"{key}={value}" for key, value in REQUIRED_SETTINGS.items())
        return Finding("systemd", "ok", f"{shown} ({settings})")
    detail = (
        f"{shown} has {_format_settings(unit.wrong)}: systemd would stop agents with the daemon or"
        " with each other"
    )
    return Finding("systemd", "fail", detail, _describe_repair(unit.wrong, REQUIRED_SETTINGS))


def _report_unwatched(shown: str, unit: SystemdUnit) -> Finding:
    """Report a unit with which the daemon works, but is not restarted when it is stuck."""
    detail = f"{shown} has {_format_settings(unit.missing)}: systemd does not notice a stuck daemon"
    return Finding("systemd", "warn", detail, _describe_repair(unit.missing, ADVISED_SETTINGS))


def _format_settings(found: Mapping[str, str | None]) -> str:
    return ", ".join(f"{key}={value or '(not set)'}" for key, value in found.items())


def _describe_repair(found: Mapping[str, str | None], wanted: Mapping[str, str]) -> str:
    settings = " and ".join(f"{key}={wanted[key]}" for key in found)
    return (
        f"Set {settings} in its [Service] section, then run `systemctl daemon-reload` "
        "(with --user for a user unit)."
    )
