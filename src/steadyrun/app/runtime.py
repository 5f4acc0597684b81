"""Opens what runs need: the store, the providers of the configuration, and a holder of lanes."""

import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import anyio.to_thread

from steadyrun.app.command_link import link_command
from steadyrun.app.providers import ProviderSetups
from steadyrun.app.store import build_budget_rules, open_store
from steadyrun.app.tuning import collect_garbage_rarely, share_heap
from steadyrun.config import Config
from steadyrun.drivers.launcher import KeeperLauncher
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.lib.task_group import task_group
from steadyrun.model.ids import Ids
from steadyrun.model.secret import Scrubber
from steadyrun.providers import registry
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.direct_runs import DirectRuns
from steadyrun.store import GENERATION


@asynccontextmanager
async def open_direct_runs(config: Config, *, kind: str) -> AsyncIterator[DirectRuns]:
    """Open the runtime for direct runs. After the block they continue without this process."""
    async with open_runtime(config, kind=kind) as deps, task_group() as tasks:
        yield DirectRuns(deps, tasks)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def open_runtime(
    config: Config, *, kind: str, machine: str | None = None
) -> AsyncIterator[Deps]:
    """Open everything that runs need, and register this process as a holder of lanes."""
    is_daemon = kind == "daemon"
    if is_daemon:
        share_heap()
        _load_dialects(config)
    clock, scrubber = SystemClock(), Scrubber(config.list_secrets())
    async with open_store(config, scrubber) as store:
        home = config.locations.home
        first = await anyio.to_thread.run_sync(link_command, home)
        setups = ProviderSetups(config, first)
        tuning = collect_garbage_rarely() if is_daemon else nullcontext()
        with FileWatches() as watches, tuning:
            holder = await store.join(kind)
            launcher = KeeperLauncher(
                home,
                setups,
                clock=clock,
                watches=watches,
                line_bytes=config.settings.daemon.line_bytes,
                generation=(await store.get(GENERATION) or b"").decode(),
                scrubber=scrubber,
            )
            try:
                yield Deps(
                    store=store,
                    launcher=launcher,
                    clock=clock,
                    ids=Ids(clock.now),
                    holder=holder.id,
                    machine=machine or platform.node(),
                    timeouts=config.settings.clocks,
                    scrubber=scrubber,
                    home=home,
                    appended=_find_appended(config),
                    budgets=build_budget_rules(config.settings.budgets),
                )
            finally:
                await store.leave(holder.id)


def _load_dialects(config: Config) -> None:
    """Import all Dialects at the start: the package may be replaced while the daemon runs."""
    configured = map(config.find_kind, config.settings.providers)
    for kind in {*registry.BUILT_IN, *configured}:
        registry.load_dialect(kind)


def _find_appended(config: Config) -> frozenset[str]:
    """Find the providers whose options have a text for the system prompt."""
    providers = config.settings.providers.items()
    return frozenset(name for name, each in providers if each.options.get("append_system_prompt"))
