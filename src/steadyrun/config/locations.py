"""Finds the files of the configuration: the user's and the nearest project's."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from steadyrun.drivers.keeper import MARK
from steadyrun.errors import ConfigInvalid

PROJECT_FILE = "steadyrun.toml"


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
    return Locations(home, _find_project(_resolve(cwd or Path()), home))


def get_environ() -> Mapping[str, str]:
    """Return the environment of this process. No other function reads it."""
    return os.environ  # noqa: TID251


def is_started_by_agent() -> bool:
    """Whether this process is a descendant of an agent's process."""
    return bool(get_environ().get(MARK))


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
        raise ConfigInvalid(problem, file=None, hint="Go to one that exists.") from error


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
