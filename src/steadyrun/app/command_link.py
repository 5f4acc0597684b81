"""Links the `steadyrun` command into a directory of the home that contains nothing else.

The directory of the installation may be that of a whole Python environment: first in PATH, its
`python` and `pip` would hide those of the agent's project.
"""

import sysconfig
from pathlib import Path

from steadyrun.errors import FileUnusable
from steadyrun.lib.atomic import write_link
from steadyrun.lib.safe_paths import make_directory

BIN = "bin"
_NAME = "steadyrun"


def link_command(home: Path) -> Path | None:
    """Return the directory to put first in PATH; None if the command is not installed."""
    command = _find_command()
    if command is None:
        return None
    link = home / BIN / _NAME
    try:
        if not link.is_symlink() or link.readlink() != command:
            make_directory(link.parent)
            write_link(link, command)
    except (OSError, FileUnusable):
        # The disk is full, or something is in the way: use the directory of the installation.
        return command.parent
    return link.parent


def _find_command() -> Path | None:
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    places = [Path(sysconfig.get_path("scripts", scheme)) / _NAME for scheme in schemes]
    return next((place for place in places if place.is_file()), None)
