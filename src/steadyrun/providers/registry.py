"""Maps the name of each provider kind to its Dialect class. This is the only list of them.

The kinds that come with steadyrun are named here. Another package adds a kind by an entry point of
the group `steadyrun.providers`. A Dialect is imported, and entry points are read, only when they
are needed: both take longer than most commands run.
"""

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from steadyrun.errors import ConfigInvalid, NotFound

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from steadyrun.dialect import Dialect

GROUP = "steadyrun.providers"
BUILT_IN: dict[str, str] = {
    "claude": "steadyrun.providers.claude.dialect:Claude",
    "codex": "steadyrun.providers.codex.dialect:Codex",
    "scripted": "steadyrun.providers.scripted.dialect:Scripted",
    "shell": "steadyrun.providers.shell:Shell",
}
# A class without these is no Dialect; the rest of the contract is checked by the conformance suite.
_REQUIRED = ("name", "program", "options_type", "abilities", "launch", "receive")


def list_kinds() -> list[str]:
    """Return the names of all kinds, built in and installed, sorted."""
    return sorted({*BUILT_IN, *_read_entry_points()})


def has_kind(name: str) -> bool:
    """Whether there is a kind of this name. Entry points are not read for one that is built in."""
    return name in BUILT_IN or name in _read_entry_points()


def load_dialect(kind: str) -> type[Any]:
    """Import the Dialect class of a kind."""
    if kind in BUILT_IN:
        module, _, name = BUILT_IN[kind].partition(":")
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    installed = _read_entry_points()
    if kind not in installed:
        raise NotFound("provider", kind, hint=f"There are: {', '.join(list_kinds())}")
    return _load_entry_point(installed[kind])


def make_dialect(
    kind: str, options: Mapping[str, Any], *, provider: str | None = None
) -> "Dialect":
    """Make a Dialect with its options, which are checked; `provider` is named in an error."""
    # The help of a command lists the kinds, and must not take the time of this import.
    import msgspec  # noqa: PLC0415

    dialect = load_dialect(kind)
    try:
        return dialect(msgspec.convert(dict(options), dialect.options_type))  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        names = ", ".join(dialect.options_type.__struct_fields__)
        problem = f"providers.{provider or kind}.options: {error}"
        raise ConfigInvalid(problem, file=None, hint=f"It may have: {names}") from error


@functools.cache
def _read_entry_points() -> "dict[str, EntryPoint]":
    """Find the kinds of installed packages. A name that is taken is an error."""
    # It takes 10 ms and more, and most commands use what is built in.
    from importlib.metadata import entry_points  # noqa: PLC0415

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in BUILT_IN:
            raise _refuse(entry, "steadyrun itself has a provider of this name")
        if entry.name in found:
            raise _refuse(entry, f"so does {_name_package(found[entry.name])}")
        found[entry.name] = entry
    return found


def _refuse(entry: "EntryPoint", reason: str) -> ConfigInvalid:
    problem = f"{_name_package(entry)} registers the provider {entry.name!r}, but {reason}"
    return ConfigInvalid(problem, file=None, hint="Uninstall the package, or rename its provider.")


def _load_entry_point(entry: "EntryPoint") -> type[Any]:
    try:
        found = entry.load()
    # The import of another package's module may raise any error, including SystemExit.
    except (Exception, SystemExit) as error:
        raise _report_broken(entry, f"{type(error).__name__}: {error}") from error
    missing = [name for name in _REQUIRED if not hasattr(found, name)]
    if not isinstance(found, type) or missing:
        reason = f"{entry.value} is no Dialect class"
        raise _report_broken(entry, f"{reason}: it has no {missing[0]}" if missing else reason)
    return found


def _report_broken(entry: "EntryPoint", reason: str) -> ConfigInvalid:
    problem = f"the provider {entry.name!r} of {_name_package(entry)} cannot be loaded: {reason}"
    return ConfigInvalid(problem, file=None, hint="Repair or uninstall the package.")


def _name_package(entry: "EntryPoint") -> str:
    package = entry.dist
    return f"the package {package.name} {package.version}" if package else f"{entry.value}"
