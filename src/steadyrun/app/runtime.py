"""Opens what runs need: the store, the providers of the configuration, and a holder of lanes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import anyio.to_thread

from steadyrun.app.command_link import link_command
from steadyrun.app.providers import ProviderSetups
from steadyrun.app.store import build_budget_rules, open_store
from steadyrun.app.tuning import collect_garbage_rarely, share_heap
from steadyrun.config import Config
from steadyrun.config.schema import ClockSettings
from steadyrun.drivers.launcher import KeeperLauncher
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.model.ids import Ids
from steadyrun.model.secret import Scrubber
from steadyrun.providers import registry
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.run.timeouts import Timeouts


@asynccontextmanager
async def open_runtime(config: Config, *, kind: str, machine: str) -> AsyncIterator[Deps]:
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
            drivers = KeeperLauncher(home, setups, clock=clock, watches=watches)
            try:
                yield Deps(
                    store=store,
                    launcher=drivers,
                    clock=clock,
                    ids=Ids(clock.now),
                    holder=holder.id,
                    machine=machine,
                    timeouts=_build_timeouts(config.settings.clocks),
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


def _build_timeouts(clocks: ClockSettings) -> Timeouts:
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


def _find_appended(config: Config) -> frozenset[str]:
    """Find the providers whose options have a text for the system prompt."""
    providers = config.settings.providers.items()
    return frozenset(name for name, each in providers if each.options.get("append_system_prompt"))
