"""Stores which project files the user trusts, by path and exact content."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from steadyrun.config.locations import PROJECT_FILE, Locations, locate
from steadyrun.config.schema import iterate_values
from steadyrun.config.toml_source import ConfigSource, read_bytes, read_source
from steadyrun.errors import ConfigInvalid, NotFound
from steadyrun.lib.atomic import make_private_directory, write_file
from steadyrun.operations.access.caller import require_person


def trust(
    home: Path | None = None, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> Path:
    """Trust the project's file with its present content. A changed file must be trusted again.

    `NotAllowed` if this process was started by an agent.
    """
    places = locate(home, cwd, environ)
    require_person(places.home, "trust the file of a project")
    source = read_project(places)
    if source is None or source.file is None:
        hint = "Go to the project's directory."
        raise NotFound("project file", PROJECT_FILE, hint=hint)
    list(iterate_values(source))  # an invalid file cannot be trusted
    _write_digests(places, {**_read_digests(places), str(source.file): source.digest})
    return source.file


def is_trusted(places: Locations) -> bool:
    """Whether there is a project's file and it is trusted with its present content."""
    if places.project_file is None:
        return False
    content = read_bytes(places.project_file, follow_links=False)
    return content is not None and _is_listed(places, hashlib.sha256(content).hexdigest())


def read_project(places: Locations) -> ConfigSource | None:
    file = places.project_file
    return None if file is None else read_source(file, follow_links=False)


def is_source_trusted(places: Locations, source: ConfigSource) -> bool:
    """Decide by the content that was read, so that a later change of the file has no effect."""
    return _is_listed(places, source.digest)


def _is_listed(places: Locations, digest: str) -> bool:
    return _read_digests(places).get(str(places.project_file)) == digest


def _read_digests(places: Locations) -> dict[str, str]:
    content = read_bytes(places.trusted_file, follow_links=True)
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        hint = "Delete it, then run steadyrun trust again in each project."
        raise ConfigInvalid("is damaged", file=places.trusted_file, hint=hint)
    return found


def _write_digests(places: Locations, digests: dict[str, str]) -> None:
    file = places.trusted_file
    try:
        make_private_directory(places.home)
        write_file(file, json.dumps(digests, indent=1, sort_keys=True).encode())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigInvalid(f"cannot be written: {reason}", file=file) from error
