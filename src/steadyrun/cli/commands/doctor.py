"""The command `doctor`: checks this machine. Each check reports its result and a repair."""

import os
import stat
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import anyio
from msgspec import Struct

from steadyrun.app.diagnostics import (
    BUILT_IN,
    DAEMON_LOCK,
    ProviderInfo,
    check_store,
    find_daemon,
    find_providers,
)
from steadyrun.cli.commands.providers import format_version
from steadyrun.cli.output.format import sanitize, to_json
from steadyrun.cli.systemd import REQUIRED_SETTINGS, SystemdUnit, find_units
from steadyrun.config import load, locate, to_printable
from steadyrun.config.locations import get_environ
from steadyrun.errors import SteadyrunError

OLDEST_PYTHON = (3, 11)


class Finding(Struct, frozen=True):
    """The result of one check."""

    check: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    repair: str = ""


def doctor(args: Namespace) -> int:
    findings = list(run_checks(locate().home))
    if args.json:
        print(to_json({"checks": findings}))
    else:
        for finding in findings:
            print(f"{finding.state:<5} {finding.check:<18} {sanitize(finding.detail)}")
            if finding.repair:
                print(f"{'':<24} -> {sanitize(finding.repair)}")
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def run_checks(home: Path) -> Iterator[Finding]:
    yield _check_python()
    yield _check_config()
    yield from _check_home(home)
    yield _check_store(home)
    yield _check_daemon(home)
    yield from _check_systemd(get_environ())
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


def _check_store(home: Path) -> Finding:
    try:
        store = anyio.run(check_store, home)
    except (SteadyrunError, OSError) as error:
        hint = error.hint if isinstance(error, SteadyrunError) else ""
        return Finding("store", "fail", str(error).partition("\n")[0], hint)
    shown = to_printable(store.path)
    if not store.exists:
        return Finding("store", "ok", f"{shown} does not exist yet")
    if store.damage:
        return Finding("store", "fail", f"{shown}: {store.damage}", "Restore it from a backup.")
    return Finding("store", "ok", f"{shown} ({store.size_bytes} bytes, no damage found)")


def _check_daemon(home: Path) -> Finding:
    try:
        daemon = find_daemon(home)
    except OSError as error:
        shown = to_printable(home / DAEMON_LOCK)
        return Finding("daemon", "warn", f"{shown}: {error.strerror}", f"chmod u+rw {shown}")
    if not daemon.is_running:
        return Finding("daemon", "ok", "not running; `steadyrun up` starts it")
    return Finding("daemon", "ok", f"running (pid {daemon.pid})" if daemon.pid else "running")


def _check_systemd(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the units that start a daemon. There is no finding if there is no such unit."""
    for unit in find_units(environ):
        yield _check_unit(unit)


def _check_unit(unit: SystemdUnit) -> Finding:
    shown = to_printable(unit.path)
    if unit.problem:
        return Finding("systemd", "warn", f"{shown}: {unit.problem}", "Make it readable.")
    if not unit.wrong:
        settings = ", ".join(f"{key}={value}" for key, value in REQUIRED_SETTINGS.items())
        return Finding("systemd", "ok", f"{shown} ({settings})")
    found = ", ".join(f"{key}={value or '(not set)'}" for key, value in unit.wrong.items())
    wanted = " and ".join(f"{key}={REQUIRED_SETTINGS[key]}" for key in unit.wrong)
    detail = f"{shown} has {found}: systemd would stop agents with the daemon or with each other"
    repair = (
        f"Set {wanted} in its [Service] section, then run `systemctl daemon-reload` "
        "(with --user for a user unit)."
    )
    return Finding("systemd", "fail", detail, repair)
