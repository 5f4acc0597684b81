"""Makes the providers of the configuration ready for use.

A provider is an instance of a kind. Each kind has an instance of its own name; the configuration
may add others, with another command, environment, model or options.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from steadyrun.config import Config
from steadyrun.dialect import Dialect, Program
from steadyrun.drivers.launcher import ProviderSetup
from steadyrun.providers import registry

# The variables that every child process gets from the environment of steadyrun. It gets no others,
# except those in `env`.
_INHERITED = ("PATH", "HOME", "LANG", "TERM", "TMPDIR")


def list_providers(config: Config) -> list[str]:
    """Return the names of all providers, configured or not, sorted."""
    return sorted({*registry.list_kinds(), *config.settings.providers})


def has_provider(config: Config, name: str) -> bool:
    return name in config.settings.providers or registry.has_kind(name)


def make_dialect(config: Config, name: str) -> Dialect:
    """Make a Dialect of this provider, with the options of the configuration."""
    kind, options = config.find_kind(name), config.find_provider(name).options
    return registry.make_dialect(kind, options, provider=name)


def load_program(config: Config, name: str) -> Program | None:
    """Find the CLI that this provider needs; None for one that is part of steadyrun."""
    program: Program | None = registry.load_dialect(config.find_kind(name)).program
    return program


class ProviderSetups(Mapping[str, ProviderSetup]):
    """The setups of all providers by name; one is made when a process of it is launched.

    `first` is the directory that comes first in PATH.
    """

    def __init__(self, config: Config, first: Path | None) -> None:
        self._config, self._first = config, first

    def __getitem__(self, name: str) -> ProviderSetup:
        if not has_provider(self._config, name):
            raise KeyError(name)
        config, settings = self._config, self._config.find_provider(name)
        return ProviderSetup(
            dialect=lambda: make_dialect(config, name),
            env=lambda: _build_environment(config, name, self._first),
            command=settings.command or (),
            options=settings.options,
            model=settings.model,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(list_providers(self._config))

    def __len__(self) -> int:
        return len(list_providers(self._config))


def _build_environment(config: Config, name: str, first: Path | None) -> dict[str, str]:
    """Build the environment: some variables of this process, those of the configuration, and PATH
    with `first` at its start.
    """
    inherited = {key: config.environ[key] for key in _INHERITED if key in config.environ}
    given = {key: secret.reveal() for key, secret in config.expand_env(name).items()}
    env = {**inherited, **given}
    if first is not None:
        env["PATH"] = f"{first}{os.pathsep}{env.get('PATH') or os.defpath}"
    return env
