"""Finds the systemd units that start a daemon, and reads their settings.

The rules are those of systemd.unit(5): folders in order of precedence, drop-ins by name, the last
assignment wins, and an empty assignment resets the setting.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

# These settings keep agents alive when the daemon stops, and when one agent runs out of memory.
REQUIRED_SETTINGS: Mapping[str, str] = {"KillMode": "process", "OOMPolicy": "continue"}
# These settings let systemd notice when the daemon is ready, and restart one that is stuck.
ADVISED_SETTINGS: Mapping[str, str] = {
    "Type": "notify",
    "NotifyAccess": "main",
    "WatchdogSec": "60",
}

_SYSTEM = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
_CONTINUED = re.compile(r"\\\n")
_STARTS = re.compile(r"\bsteadyrun[\"']?\s+(?:-\S+\s+)*up(?:\s|$)")


class SystemdUnit(Struct, frozen=True):
    """A unit that starts a daemon. `wrong` has the settings that differ from the required ones,
    `missing` those without which systemd does not watch the daemon; None means not set. `problem`
    is the reason why the unit could not be read, `absent` the program of ExecStart if it does not
    exist."""

    path: Path
    wrong: Mapping[str, str | None] = {}
    problem: str = ""
    missing: Mapping[str, str | None] = {}
    absent: str = ""


def find_units(environ: Mapping[str, str], root: Path = Path("/")) -> Iterator[SystemdUnit]:
    """Yield the units of this user and of the machine."""
    # %h is the home of the user; in a unit of the machine it is another one.
    home = environ.get("HOME") or None
    for folders, h in (
        (_list_user_folders(environ, root), home),
        (_list_system_folders(root), None),
    ):
        names = sorted({path.name for each in folders for path in each.glob("*.service")})
        for name in names:
            if "steadyrun" in name:
                yield from _read_unit(name, folders, h)


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


def _read_unit(name: str, folders: list[Path], home: str | None) -> Iterator[SystemdUnit]:
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
        found = {key: settings.get(key) or None for key in (*REQUIRED_SETTINGS, *ADVISED_SETTINGS)}
        wrong = {key: found[key] for key, value in REQUIRED_SETTINGS.items() if found[key] != value}
        missing = {key: found[key] for key in ADVISED_SETTINGS if not _is_watched(key, found[key])}
        absent = _find_absent(settings["ExecStart"], home)
        yield SystemdUnit(path, wrong, missing=missing, absent=absent)


def _find_absent(start: str, home: str | None) -> str:
    """Find the program of ExecStart that does not exist; empty if it exists or is not known."""
    try:
        program = shlex.split(start.lstrip("-@:+!"))[0]
    except ValueError:
        return ""
    if home is not None:
        program = program.replace("%h", home)
    is_known = program.startswith("/") and "%" not in program
    return program if is_known and not Path(program).exists() else ""


def _is_watched(key: str, value: str | None) -> bool:
    """Whether this setting lets systemd watch the daemon."""
    match key:
        case "Type":
            return value == "notify"
        case "NotifyAccess":
            # Without it, a unit of type notify accepts reports of its main process.
            return value != "none"
        case _:
            return value not in {None, "0", "infinity"}


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
