"""Loads the settings and the origin of each.

There are four layers; a later one overrides an earlier one key by key: defaults, the user's file,
the project's file, the environment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadyrun.config.accounts import find_account_values
from steadyrun.config.locations import Locations, find_user_home, get_environ, locate
from steadyrun.config.schema import (
    UNTRUSTED_SETTINGS,
    ProviderSettings,
    Settings,
    build,
    iterate_values,
    list_values,
    to_pattern,
)
from steadyrun.config.toml_source import (
    ConfigSource,
    KeyPath,
    find_line,
    format_path,
    read_source,
    to_printable,
)
from steadyrun.config.trust import is_source_trusted, read_project
from steadyrun.config.validators import check_header_value
from steadyrun.config.variables import (
    expand,
    find_header_secrets,
    find_secret_options,
    find_secret_values,
)
from steadyrun.errors import ConfigInvalid, ConfigUntrusted
from steadyrun.model.secret import Secret


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of this process. The repr has no settings: they may contain secrets."""

    settings: Settings = field(repr=False)
    locations: Locations
    project_trusted: bool
    origins: Mapping[str, str] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)

    def find_provider(self, name: str) -> ProviderSettings:
        """Return the settings of a provider; the defaults if it has no table."""
        return self.settings.providers.get(name, ProviderSettings())

    def find_kind(self, name: str) -> str:
        return self.find_provider(name).kind or name

    def expand_env(self, name: str) -> dict[str, Secret]:
        """Expand the variables of a provider's `env`, for a launch."""
        provider = self.find_provider(name)
        return {
            key: Secret(
                expand(value, self.environ, setting=format_path(("providers", name, "env", key)))
            )
            for key, value in provider.env.items()
        }

    def find_account(self, name: str) -> dict[str, Secret | None]:
        """Find the settings that identify a provider's account; None for an unset variable."""
        provider = self.find_provider(name)
        found = find_account_values(provider.env, provider.options, self.environ)
        return {where: None if value is None else Secret(value) for where, value in found}

    def expand_headers(self) -> dict[str, Secret]:
        """Expand the variables of `telemetry.headers`, for an export."""
        found = {}
        for name, template in self.settings.telemetry.headers.items():
            setting = format_path(("telemetry", "headers", name))
            value = expand(template, self.environ, setting=setting)
            if flaw := check_header_value(value):
                raise ConfigInvalid(f"{setting}: {flaw.problem}", file=None)
            found[name] = Secret(value)
        return found

    def resolve_agent_home(self, name: str) -> Path:
        """Resolve the home of an agent: a relative path starts at the directory of its file."""
        given = self.settings.agents[name].home
        if given.startswith("~/"):
            return find_user_home(self.environ) / given[2:]
        project = self.locations.project_file
        origin = self.origins.get(format_path(("agents", name, "home")))
        is_project = project is not None and origin == to_printable(project)
        return (project.parent if project and is_project else self.locations.home) / given

    def list_secrets(self) -> list[Secret]:
        """List the secrets that must never be recorded, as far as their variables are set."""
        found = [
            value for each in self.settings.providers.values() for value in self._find_secrets(each)
        ]
        for name, template in self.settings.telemetry.headers.items():
            found += find_header_secrets(name, template, self.environ)
        return [Secret(value) for value in found]

    def _find_secrets(self, provider: ProviderSettings) -> Iterator[str]:
        for name, template in provider.env.items():
            yield from find_secret_values(name, template, self.environ)
        for name, value in provider.options.items():
            yield from find_secret_options(name, value)


def load(
    home: Path | None = None, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """Read every layer. Nothing is cached between calls."""
    environ = get_environ() if environ is None else environ
    places = locate(home, cwd, environ)
    project = read_project(places)
    trusted = project is not None and is_source_trusted(places, project)
    if project is not None and not trusted:
        _refuse_untrusted(project)
    user = read_source(places.user_file, follow_links=True)
    layers = [each for each in (user, project, *_read_environment(environ)) if each is not None]
    values, sources = _merge(layers)
    settings = build(values, sources)
    return Config(settings, places, trusted, _find_origins(settings, sources), environ)


def _read_environment(environ: Mapping[str, str]) -> Iterator[ConfigSource]:
    if store := environ.get("STEADYRUN_STORE"):
        yield ConfigSource("environment STEADYRUN_STORE", {"store": store})
    if listen := environ.get("STEADYRUN_DAEMON_LISTEN"):
        yield ConfigSource("environment STEADYRUN_DAEMON_LISTEN", {"daemon": {"listen": listen}})


def _refuse_untrusted(project: ConfigSource) -> None:
    for path, _ in iterate_values(project):
        if to_pattern(path) not in UNTRUSTED_SETTINGS:
            problem = f"{format_path(path)} may be set only by a file that you trust"
            hint = "Read the file; if you agree with it, run: steadyrun trust"
            line = find_line(project.text, path)
            raise ConfigUntrusted(problem, file=project.file, line=line, hint=hint)


def _merge(layers: list[ConfigSource]) -> tuple[dict[KeyPath, Any], dict[KeyPath, ConfigSource]]:
    values: dict[KeyPath, Any] = {}
    sources: dict[KeyPath, ConfigSource] = {}
    for source in layers:
        for path, value in iterate_values(source):
            values[path], sources[path] = value, source
    return values, sources


def _find_origins(settings: Settings, sources: dict[KeyPath, ConfigSource]) -> dict[str, str]:
    return {
        format_path(path): sources[path].origin if path in sources else "default"
        for path, _ in list_values(settings)
    }
