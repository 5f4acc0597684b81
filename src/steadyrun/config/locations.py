"""Finds the files of the configuration: the user's and the nearest project's."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from steadyrun.errors import ConfigInvalid, HomePathTooLong

PROJECT_FILE = "steadyrun.toml"
# SQLite opens no file with a path of more than 504 bytes, and the name of the store takes 13.
LONGEST_HOME_BYTES = 491
_LONGEST_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Locations:
    """The paths of the configuration. `project_file` exists or is None; others may be missing."""

    home: Path
    project_file: Path | None

    @property
    def user_file(self) -> Path:
        return self.home / "config.toml"

    @property
    def has_user_file(self) -> bool:
        return os.path.lexists(self.user_file)

    @property
    def trusted_file(self) -> Path:
        return self.home / "trusted.json"


def locate(
    home: Path | None = None, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> Locations:
    home = _find_home(get_environ() if environ is None else environ) if home is None else home
    home = _resolve(home)
    _check_length(home)
    return Locations(home, _find_project(_resolve(cwd or Path()), home))


def get_environ() -> Mapping[str, str]:
    """Return the environment of this process. No other function reads it."""
    return os.environ  # noqa: TID251


def _find_home(environ: Mapping[str, str]) -> Path:
    given = environ.get("STEADYRUN_HOME")
    return _expand(Path(given)) if given else find_user_home(environ) / ".steadyrun"


def find_user_home(environ: Mapping[str, str]) -> Path:
    """Return the directory that `~` stands for."""
    user = environ.get("HOME")
    return Path(user) if user else _expand(Path("~"))


def _expand(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        hint = "Set STEADYRUN_HOME to an absolute path."
        raise ConfigInvalid(f"no home directory for {path}", file=None, hint=hint) from error


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        problem = f"the directory {path} cannot be found"
        raise ConfigInvalid(
            problem, file=None, hint="Change to a directory that exists."
        ) from error


def _check_length(home: Path) -> None:
    longest_name = max(len(os.fsencode(part)) for part in home.parts)
    if longest_name > _LONGEST_NAME_BYTES:
        what = "a directory name in the path of the home"
        raise HomePathTooLong(found=longest_name, most=_LONGEST_NAME_BYTES, what=what)
    length = len(os.fsencode(home))
    if length > LONGEST_HOME_BYTES:
        raise HomePathTooLong(found=length, most=LONGEST_HOME_BYTES)


def _find_project(cwd: Path, home: Path) -> Path | None:
    for directory in _walk_project_directories(cwd):
        # STEADYRUN_HOME is not a project, even if an agent works inside it.
        if directory != home and os.path.lexists(directory / PROJECT_FILE):
            return directory / PROJECT_FILE
    return None


def _walk_project_directories(cwd: Path) -> Iterator[Path]:
    for directory in (cwd, *cwd.parents):
        yield directory
        if os.path.lexists(directory / ".git"):
            return
