"""Finds the systemd units that start a daemon, and reads their settings.

The rules are those of systemd.unit(5): folders in order of precedence, drop-ins by name, the last
assignment wins, and an empty assignment resets the setting.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

# These settings keep agents alive when the daemon stops, and when one agent runs out of memory.
REQUIRED_SETTINGS: Mapping[str, str] = {"KillMode": "process", "OOMPolicy": "continue"}

_SYSTEM = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
_CONTINUED = re.compile(r"\\\n")
_STARTS = re.compile(r"\bsteadyrun[\"']?\s+(?:-\S+\s+)*up(?:\s|$)")


class SystemdUnit(Struct, frozen=True):
    """A unit that starts a daemon. `wrong` has the settings that differ from the required ones;
    None means not set. `problem` is the reason why the unit could not be read."""

    path: Path
    wrong: Mapping[str, str | None] = {}
    problem: str = ""


def find_units(environ: Mapping[str, str], root: Path = Path("/")) -> Iterator[SystemdUnit]:
    """Yield the units of this user and of the machine."""
    for folders in (_list_user_folders(environ, root), _list_system_folders(root)):
        names = sorted({path.name for each in folders for path in each.glob("*.service")})
        for name in names:
            if "steadyrun" in name:
                yield from _read_unit(name, folders)


def read_service(texts: Iterable[str]) -> dict[str, str]:
    """Read the settings of the [Service] sections. A later file overrides an earlier one."""
    found: dict[str, str] = {}
    for text in texts:
        is_service = False
        for line in map(str.strip, _CONTINUED.sub(" ", text).splitlines()):
            if line.startswith("["):
                is_service = line == "[Service]"
            elif is_service and line[:1] not in {"#", ";"} and "=" in line:
                key, _, value = line.partition("=")
                found[key.strip()] = value.strip()
    return found


def _read_unit(name: str, folders: list[Path]) -> Iterator[SystemdUnit]:
    path = next(each / name for each in folders if os.path.lexists(each / name))
    try:
        texts = [
            each.read_text(errors="replace") for each in (path, *_find_drop_ins(name, folders))
        ]
    except OSError as error:
        yield SystemdUnit(path, problem=error.strerror or str(error))
        return
    settings = read_service(texts)
    if _STARTS.search(settings.get("ExecStart", "")):
        found = {key: settings.get(key) or None for key in REQUIRED_SETTINGS}
        yield SystemdUnit(
            path,
            {key: found[key] for key in REQUIRED_SETTINGS if found[key] != REQUIRED_SETTINGS[key]},
        )


def _find_drop_ins(name: str, folders: list[Path]) -> list[Path]:
    """Find the drop-ins of a unit. The earlier folder wins if two have the same name."""
    found: dict[str, Path] = {}
    for folder in reversed(folders):
        found |= {path.name: path for path in (folder / f"{name}.d").glob("*.conf")}
    return [found[each] for each in sorted(found)]


def _list_user_folders(environ: Mapping[str, str], root: Path) -> list[Path]:
    home = Path(environ.get("HOME") or root / "nonexistent")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    machine = [root / each / "systemd/user" for each in _SYSTEM]
    return [config / "systemd/user", *machine[:2], data / "systemd/user", *machine[2:]]


def _list_system_folders(root: Path) -> list[Path]:
    return [root / each / "systemd/system" for each in _SYSTEM]
