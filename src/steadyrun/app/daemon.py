"""Starts the daemon: the lock of its home, everything that runs need, and a socket.

The order is: configuration, lock, store, agents of the configuration, spooled calls, processes of
an earlier daemon, and only then callers. An error in one step is reported before the next one.
"""

import contextlib
import math
import os
import platform
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from steadyrun.api.server import locate_folder, serve
from steadyrun.app.home_key import load_home_key
from steadyrun.app.operations import load_price_source, make_abilities_lookup, make_enforcer
from steadyrun.app.providers import has_provider, make_dialect
from steadyrun.app.runtime import open_runtime
from steadyrun.app.sync_agents import sync_agents
from steadyrun.config import Config, DaemonSettings
from steadyrun.errors import ConfigInvalid, DaemonRunning, StoreUnusable
from steadyrun.lib.flock import open_lock, try_lock
from steadyrun.lib.task_group import task_group
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Message
from steadyrun.operations.context import OperationContext, ProcessState
from steadyrun.operations.documents import DaemonDocument, LiveCount, StoppedDocument
from steadyrun.operations.spool import drain_spool
from steadyrun.runtime.daemon import Daemon, Recovered
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.events.stream import stream_events
from steadyrun.runtime.log import log_bug, log_event
from steadyrun.runtime.process_pool import Capacity
from steadyrun.store import Accepted
from steadyrun.version import __version__

LOCK = "lock"
# A process that only tests the lock holds it for a moment.
_LOCK_SECONDS = 1.0
_LOOK_SECONDS = 0.02
# The caller that requested the end gets its answer first.
_LAST_WORDS_SECONDS = 0.1


class DaemonHandle:
    """A running daemon, as operations see it. It ends after `stop`."""

    def __init__(
        self, daemon: Daemon, deps: Deps, settings: DaemonSettings, tasks: TaskGroup
    ) -> None:
        self.recovered: Recovered
        self._tasks = tasks
        # How many runs were ended, or left to their keepers, by `stop`.
        self._remaining = 0
        self._daemon, self._deps, self._settings = daemon, deps, settings
        self._started_at = deps.clock.now()
        self._stopped = anyio.Event()

    def describe(self) -> DaemonDocument:
        workers, capacity = list(self._daemon.workers), self._daemon.pool.capacity
        return DaemonDocument(
            os.getpid(),
            __version__,
            str(self._deps.home),
            self._started_at,
            LiveCount(sum(worker.is_held for worker in workers), capacity.runs),
            LiveCount(sum(worker.slot.live is not None for worker in workers), capacity.processes),
            self._daemon.pool.is_draining,
        )

    async def accept(self, message: Message) -> Accepted:
        return await self._daemon.accept(message)

    def find_process_state(self, agent: AgentId) -> ProcessState | None:
        return self._daemon.find_process_state(agent)

    def is_waiting(self, agent: AgentId) -> bool:
        return self._daemon.is_waiting(agent)

    async def release(self, agent: AgentId) -> None:
        await self._daemon.release(agent)

    async def stop(self, drain_seconds: float | None, *, keep: bool) -> StoppedDocument:
        """See `DaemonView`. A second call with less time shortens the wait. The stop continues if
        its caller disconnects."""
        usual = self._settings.drain_seconds
        seconds = usual if drain_seconds is None else drain_seconds
        self._tasks.start_soon(self._stop, seconds, keep)
        await self._stopped.wait()
        store = self._deps.store
        overviews = await store.agent_overviews(self._deps.clock.now())
        queued = sum(each.lane.queued for each in overviews)
        return StoppedDocument(
            0 if keep else self._remaining, self._remaining if keep else 0, queued
        )

    async def _stop(self, seconds: float, keep: bool) -> None:
        remaining = await self._daemon.shut_down(drain_seconds=seconds, keep=keep)
        if not self._stopped.is_set():
            self._remaining = remaining
            self._stopped.set()

    async def follow(
        self, *, agent: AgentId | None, run: RunId | None, after: int
    ) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
        store = self._deps.store
        whose = await store.agent(agent) if agent else None
        events = stream_events(store, self._deps.bus, after, agent=whose, run=run)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def wait_until_stopped(self) -> None:
        await self._stopped.wait()
        await anyio.sleep(_LAST_WORDS_SECONDS)


@asynccontextmanager
async def open_daemon(config: Config) -> AsyncIterator[DaemonHandle]:
    """Run the daemon of the home of the configuration until the block ends."""
    home = config.locations.home
    exporting = _prepare_export(config)
    async with lock_home(home):
        key = await anyio.to_thread.run_sync(load_home_key, home)
        async with (
            open_runtime(config, kind="daemon", machine=platform.node()) as deps,
            exporting(deps),
            task_group() as tasks,
        ):
            await _sync_agents(config, deps)
            await _check_providers(config, deps)
            daemon = Daemon(deps, tasks, capacity=_build_capacity(config), key=key)
            running = DaemonHandle(daemon, deps, config.settings.daemon, tasks)
            context = OperationContext(
                deps.store,
                deps.clock,
                deps.ids,
                home,
                make_abilities_lookup(config),
                make_enforcer(config),
                running,
                deps.budgets,
                load_price_source,
            )
            # Spooled calls do not start runs: runs start once the recovery is done.
            without_daemon = replace(context, daemon=None)
            running.recovered = await daemon.recover(partial(_drain_spool, without_daemon))
            tasks.start_soon(daemon.serve)
            log_event("daemon.started", pid=os.getpid(), version=__version__)
            async with serve(context, lambda method, error: log_bug(error, method=method)):
                yield running
            tasks.cancel_scope.cancel()
    log_event("daemon.stopped", pid=os.getpid())


def _prepare_export(config: Config) -> Callable[[Deps], AbstractAsyncContextManager[None]]:
    """Prepare the export of traces, if it is configured. A missing package is reported before the
    daemon starts."""
    telemetry = config.settings.telemetry
    if not telemetry.endpoint:
        return lambda _: contextlib.nullcontext()
    try:
        # The packages are an extra: without an endpoint they are neither needed nor imported.
        from steadyrun.telemetry.otlp import export_spans  # noqa: PLC0415
    except ModuleNotFoundError as error:
        problem = f"telemetry.endpoint is set, but the package {error.name} is not installed"
        hint = 'Install it: pip install "steadyrun[otel]"'
        raise ConfigInvalid(problem, file=None, hint=hint) from error
    headers, content = config.expand_headers(), telemetry.content
    kinds = {name: config.find_kind(name) for name in config.settings.providers}
    return lambda deps: export_spans(
        telemetry.endpoint, headers, deps, content=content, kinds=kinds
    )


async def _sync_agents(config: Config, deps: Deps) -> None:
    synced = await sync_agents(config, deps.store, deps.ids)
    for what in ("added", "changed", "resumed", "paused"):
        for name in getattr(synced, what):
            log_event("agent.synced", agent=name, what=what)


async def _check_providers(config: Config, deps: Deps) -> None:
    """Check that every provider in use exists and can be loaded: without it neither an agent's next
    run could start, nor its process be taken over."""
    overviews = await deps.store.agent_overviews(deps.clock.now())
    agents = [each.agent for each in overviews if not each.lane.is_paused]
    used = {provider: f"agent {each.name}" for each in agents for provider in each.providers}
    used |= {each.provider: f"process {each.id}" for each in await deps.store.open_processes()}
    for provider, user in used.items():
        if not has_provider(config, provider):
            problem = f"the {user} uses the provider {provider!r}, which does not exist"
            hint = f"Add [providers.{provider}] to the configuration, with its kind."
            raise ConfigInvalid(problem, file=None, hint=hint)
        make_dialect(config, provider)


async def _drain_spool(context: OperationContext) -> None:
    drained = await drain_spool(context)
    if drained != type(drained)():
        log_event(
            "letters.drained",
            done=drained.done,
            kept=len(drained.kept),
            bad=len(drained.bad),
        )


def _build_capacity(config: Config) -> Capacity:
    settings = config.settings
    runs_of = {name: each.runs for name, each in settings.providers.items() if each.runs}
    idle = settings.daemon.idle_seconds or math.inf
    keep = settings.daemon.keep_days * 86400
    return Capacity(
        settings.daemon.runs, runs_of, settings.daemon.processes, idle, keep_seconds=keep
    )


@asynccontextmanager
async def lock_home(home: Path) -> AsyncIterator[None]:
    """Hold the daemon lock of this home; `DaemonRunning` if another process has it."""
    folder = locate_folder(home)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_lock(folder / LOCK)
    except OSError as error:
        raise StoreUnusable(str(error.strerror), path=folder) from error
    try:
        await _lock(descriptor, home)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


async def _lock(descriptor: int, home: Path) -> None:
    limit = anyio.current_time() + _LOCK_SECONDS
    while not try_lock(descriptor):
        if anyio.current_time() > limit:
            said = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise DaemonRunning(home, pid=int(said) if said.isdecimal() else None)
        await anyio.sleep(_LOOK_SECONDS)
