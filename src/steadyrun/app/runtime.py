"""What do runs need? The store, the providers as configured, and a place among the holders."""

import ctypes
import gc
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from steadyrun.app.command_link import command_directory
from steadyrun.app.store import budget_rules, open_store
from steadyrun.config import Config
from steadyrun.config.schema import ClockSettings, ProviderSettings
from steadyrun.dialect import Dialect
from steadyrun.drivers.launcher import KeeperLauncher, ProviderSetup
from steadyrun.errors import ConfigInvalid
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.model.ids import Ids
from steadyrun.model.secret import Scrubber
from steadyrun.providers.claude.dialect import Claude
from steadyrun.providers.codex.dialect import Codex
from steadyrun.providers.scripted.dialect import Scripted
from steadyrun.providers.shell import Shell
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.run.timeouts import Timeouts

DIALECTS: dict[str, type[Any]] = {each.name: each for each in (Claude, Codex, Scripted, Shell)}
# What every child gets of our own environment; all else it must be given by its `env`.
_INHERITED = ("PATH", "HOME", "LANG", "TERM", "TMPDIR")
# So many new objects make it worth looking for garbage, in a daemon.
_COLLECTED_AT = 20_000
# malloc.h of glibc: how many heaps there may be.
_M_ARENA_MAX = -8


@asynccontextmanager
async def open_runtime(config: Config, *, kind: str, machine: str) -> AsyncIterator[Deps]:
    """Everything that runs need, with this process as a holder of lanes."""
    if kind == "daemon":
        _share_heap()
    clock, scrubber = SystemClock(), Scrubber(config.secrets())
    async with open_store(config, scrubber) as store:
        home = config.places.home
        first = await anyio.to_thread.run_sync(command_directory, home)
        setups = {name: _setup(config, name, first) for name in DIALECTS}
        with FileWatches() as watches, _collecting_garbage(seldom=kind == "daemon"):
            holder = await store.join(kind)
            drivers = KeeperLauncher(home, setups, clock=clock, watches=watches)
            try:
                yield Deps(
                    store=store,
                    drivers=drivers,
                    clock=clock,
                    ids=Ids(clock.now),
                    holder=holder.id,
                    machine=machine,
                    limits=_limits(config.settings.clocks),
                    scrubber=scrubber,
                    home=home,
                    appended=_appended(config),
                    budgets=budget_rules(config.settings.budgets),
                )
            finally:
                await store.leave(holder.id)


def _share_heap() -> None:
    """Let all threads take memory from one heap. What one of them has given back is of no use to
    the others else, and a daemon's threads come and go with what its agents do."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


@contextmanager
def _collecting_garbage(*, seldom: bool) -> Iterator[None]:
    """A daemon lives long and has many agents: whoever looks through all that they have for garbage
    at each 700 new objects does little else. In a program that is not ours it stays as it is."""
    before = gc.get_threshold()
    if seldom:
        gc.set_threshold(_COLLECTED_AT, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _limits(clocks: ClockSettings) -> Timeouts:
    return Timeouts(
        idle=clocks.idle_seconds,
        stall=clocks.stall_seconds,
        hang=clocks.hang_seconds,
        warning=clocks.warning_seconds,
        interrupt=clocks.interrupt_seconds,
        close=clocks.close_seconds,
        offer=clocks.offer_seconds,
        approval=clocks.approval_seconds,
    )


def _setup(config: Config, name: str, first: Path | None) -> ProviderSetup:
    settings = config.settings.providers.get(name, ProviderSettings())
    return ProviderSetup(
        dialect=lambda: make_dialect(name, settings.options),
        env=lambda: _environment(config, name, first),
        command=settings.command or (),
        options=settings.options,
        model=settings.model,
    )


def _appended(config: Config) -> frozenset[str]:
    """The providers whose options have a text for their system prompt."""
    providers = config.settings.providers.items()
    return frozenset(name for name, each in providers if each.options.get("append_system_prompt"))


def make_dialect(name: str, options: Mapping[str, Any]) -> Dialect:
    """A Dialect with its own options, checked."""
    kind = DIALECTS[name]
    try:
        return kind(msgspec.convert(dict(options), kind.options_type))  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        hint = f"It may have: {', '.join(kind.options_type.__struct_fields__)}"
        raise ConfigInvalid(f"providers.{name}.options: {error}", file=None, hint=hint) from error


def _environment(config: Config, name: str, first: Path | None) -> dict[str, str]:
    """From nothing: a few of our own, what is configured, and our command before all others."""
    inherited = {key: config.environ[key] for key in _INHERITED if key in config.environ}
    given = {key: secret.reveal() for key, secret in config.provider_env(name).items()}
    env = {**inherited, **given}
    if first is not None:
        env["PATH"] = f"{first}{os.pathsep}{env.get('PATH') or os.defpath}"
    return env
