"""Is everything in order here? Each check says what it found and what repairs it."""

import os
import stat
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import anyio
from msgspec import Struct

from steadyrun.cli.commands.providers import BUILT_IN, ProviderInfo, find_providers, format_version
from steadyrun.cli.output import format as render
from steadyrun.cli.systemd import REQUIRED_SETTINGS, SystemdUnit, find_units
from steadyrun.config import load, locate, printable
from steadyrun.config.locations import process_environ
from steadyrun.drivers import programs
from steadyrun.errors import SteadyrunError
from steadyrun.lib.flock import is_locked
from steadyrun.stores.sqlite import DATABASE, SqliteStore

OLDEST_PYTHON = (3, 11)
# Whoever has a lock on it is the daemon of this home.
DAEMON_LOCK = Path("daemon", "lock")


class Finding(Struct, frozen=True):
    """The outcome of one check."""

    check: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    repair: str = ""


def doctor(args: Namespace) -> int:
    findings = list(run_checks(locate().home))
    if args.json:
        print(render.to_json({"checks": findings}))
    else:
        for finding in findings:
            print(f"{finding.state:<5} {finding.check:<18} {render.sanitize(finding.detail)}")
            if finding.repair:
                print(f"{'':<24} -> {render.sanitize(finding.repair)}")
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def run_checks(home: Path) -> Iterator[Finding]:
    yield _check_python()
    yield _check_config()
    yield from _check_home(home)
    yield anyio.run(_check_store, home)
    yield _check_daemon(home)
    yield from _check_systemd(process_environ())
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
    places = config.places
    used = printable(places.user_file) if places.has_user_file else "defaults (no file)"
    return Finding("config", "ok", used)


def _check_providers() -> Iterator[Finding]:
    try:
        config = load()
    except SteadyrunError:
        # The configuration itself is what is wrong; that has been said.
        return
    try:
        providers = find_providers(config)
    except SteadyrunError as error:
        # Two packages have a provider of the same name.
        yield Finding("providers", "fail", error.message, error.hint)
    else:
        yield from map(_check_provider, providers)


def _check_provider(found: ProviderInfo) -> Finding:
    check = f"provider {found.name}"
    if found.repair or not found.is_there:
        return _report_unusable(check, found)
    what = " ".join(filter(None, (found.path or BUILT_IN, format_version(found))))
    doubts = list(_list_doubts(found))
    if not doubts:
        return Finding(check, "ok", f"{what}, login: {found.login}" if found.login else what)
    detail = "; ".join([what, *(doubt for doubt, _ in doubts if doubt)])
    return Finding(check, "warn", detail, " ".join(repair for _, repair in doubts))


def _report_unusable(check: str, found: ProviderInfo) -> Finding:
    if found.repair:
        return Finding(check, "fail", found.problem, found.repair)
    # Not everybody wants every provider: only one that was configured must be there.
    state: Literal["warn", "fail"] = "fail" if found.is_configured else "warn"
    setting = f"set providers.{found.name}.command in config.toml to where it is."
    if found.problem:
        return Finding(check, state, found.problem, f"Make it executable, or {setting}")
    how = f"Install it ({found.install})" if found.install else "Install it"
    return Finding(check, state, f"{found.program} was not found on PATH", f"{how}, or {setting}")


def _list_doubts(found: ProviderInfo) -> Iterator[tuple[str, str]]:
    """What may be wrong with a program that is there, and what to do about it."""
    if found.problem:
        yield found.problem, f"See what it does when you run it: {found.path}"
    if found.is_tested is False and found.version and found.tested:
        is_old = programs.is_older(found.version, found.tested[0])
        yield (
            "",
            f"Update it ({found.install})." if is_old else f"If it fails, use {found.tested[1]}.",
        )
    if found.login_by and not found.login:
        by = ", ".join(name for name in found.login_by if not name.startswith("~"))
        way = f", or set one of {by} in providers.{found.name}.env" if by else ""
        yield "no login was found", f"Log in with {found.login_with}{way}."


def _check_home(home: Path) -> Iterator[Finding]:
    shown = printable(home)
    try:
        found = home.stat()
    except FileNotFoundError:
        yield Finding("home", "ok", f"{shown} does not exist yet; the first command makes it")
        return
    except OSError as error:
        yield Finding("home", "fail", f"{shown}: {error.strerror}", "Check STEADYRUN_HOME.")
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Finding("home", "fail", f"{shown} is not a directory", "Check STEADYRUN_HOME.")
    elif not os.access(home, os.W_OK | os.X_OK):
        yield Finding("home", "fail", f"{shown} cannot be written to", f"chmod u+rwx {shown}")
    elif found.st_mode & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        detail = f"{shown} has mode {mode}: others on this machine can look into it"
        yield Finding("home", "warn", detail, f"chmod 700 {shown}")
    else:
        yield Finding("home", "ok", f"{shown} (mode 0700)")


async def _check_store(home: Path) -> Finding:
    path = home / DATABASE
    shown = printable(path)
    try:
        if not path.exists():
            return Finding("store", "ok", f"{shown} does not exist yet")
        store = await SqliteStore.open(home)
        try:
            damage = await store.check()
        finally:
            await store.close()
    except (SteadyrunError, OSError) as error:
        hint = error.hint if isinstance(error, SteadyrunError) else ""
        return Finding("store", "fail", str(error).partition("\n")[0], hint)
    if damage:
        return Finding("store", "fail", f"{shown}: {damage[0]}", "Restore it from a backup.")
    return Finding("store", "ok", f"{shown} ({path.stat().st_size} bytes, no damage found)")


def _check_daemon(home: Path) -> Finding:
    path = home / DAEMON_LOCK
    try:
        runs, said = _read_lock(path)
    except FileNotFoundError:
        runs, said = False, ""
    except OSError as error:
        shown = printable(path)
        return Finding("daemon", "warn", f"{shown}: {error.strerror}", f"chmod u+rw {shown}")
    if not runs:
        return Finding("daemon", "ok", "none runs; `steadyrun up` starts one")
    return Finding("daemon", "ok", f"one runs (pid {said})" if said.isdecimal() else "one runs")


def _read_lock(path: Path) -> tuple[bool, str]:
    """Whether somebody has the lock, and the first word that is in it."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return is_locked(path), next(iter(file.read(64).split()), "")


def _check_systemd(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Nothing is said where no unit starts a daemon."""
    for unit in find_units(environ):
        yield _check_unit(unit)


def _check_unit(unit: SystemdUnit) -> Finding:
    shown = printable(unit.path)
    if unit.problem:
        return Finding("systemd", "warn", f"{shown}: {unit.problem}", "Make it readable.")
    if not unit.wrong:
        says = ", ".join(f"{key}={value}" for key, value in REQUIRED_SETTINGS.items())
        return Finding("systemd", "ok", f"{shown} ({says})")
    found = ", ".join(f"{key}={value or '(not set)'}" for key, value in unit.wrong.items())
    wanted = " and ".join(f"{key}={REQUIRED_SETTINGS[key]}" for key in unit.wrong)
    detail = f"{shown} has {found}: agents would be ended with the daemon, or with one another"
    repair = f"Set {wanted} in its [Service], then `systemctl daemon-reload` (a user's: --user)."
    return Finding("systemd", "fail", detail, repair)
