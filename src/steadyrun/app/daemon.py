"""Starts the daemon: the lock of its home, everything that runs need, and a socket.

The order is: configuration, lock, store, agents of the configuration, spooled calls, processes of
an earlier daemon, and only then callers. An error in one step is reported before the next one.
"""

import contextlib
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from steadyrun.api.server import locate_lock, serve
from steadyrun.app.home_key import load_home_key
from steadyrun.app.operations import build_context
from steadyrun.app.providers import has_provider, make_dialect
from steadyrun.app.runtime import open_runtime
from steadyrun.app.store import build_periods
from steadyrun.app.sync_agents import sync_agents
from steadyrun.config import Config
from steadyrun.errors import ConfigInvalid, DaemonRunning, StoreUnusable
from steadyrun.lib.flock import LockFile
from steadyrun.lib.safe_paths import make_directory
from steadyrun.lib.task_group import task_group
from steadyrun.model.agent import Agent
from steadyrun.model.event import LiveEvent, StoredEvent
from steadyrun.model.ids import RunId
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import DaemonDocument, LiveCount, StoppedDocument
from steadyrun.operations.spool import drain_spool
from steadyrun.runtime.daemon import Daemon
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.events.stream import stream_events
from steadyrun.runtime.health import HealthMonitor
from steadyrun.runtime.log import log_bug, log_event
from steadyrun.runtime.process_pool import Capacity
from steadyrun.runtime.retention import prune_regularly
from steadyrun.version import __version__

# A process that only tests the lock holds it for a moment.
_LOCK_SECONDS = 1.0
_LOOK_SECONDS = 0.02
# How often the daemon looks whether its lock file is still there.
_KEEP_SECONDS = 1.0
# The caller that requested the end gets its answer first.
_LAST_WORDS_SECONDS = 0.1


class RunningDaemon(Daemon):
    """The daemon of this process, with what operations need of it. It ends after `stop`."""

    def __init__(
        self, config: Config, deps: Deps, tasks: TaskGroup, *, key: bytes, health: HealthMonitor
    ) -> None:
        super().__init__(deps, tasks, capacity=_build_capacity(config), key=key)
        self._health = health
        # How many lanes of an earlier daemon were adopted.
        self.recovered_lanes = 0
        # How many runs were ended, or left to their keepers, by `stop`.
        self._remaining = 0
        self._drain_seconds = config.settings.daemon.drain_seconds
        self._started_at = deps.clock.now()
        self._stopped = anyio.Event()

    def describe(self) -> DaemonDocument:
        workers, capacity = list(self.workers), self.pool.capacity
        return DaemonDocument(
            os.getpid(),
            __version__,
            str(self._deps.home),
            self._started_at,
            LiveCount(sum(worker.is_held for worker in workers), capacity.runs),
            LiveCount(
                sum(worker.slot.process is not None for worker in workers), capacity.processes
            ),
            self.pool.is_draining,
            self._health.read(),
        )

    async def stop(self, drain_seconds: float | None, *, keep: bool) -> StoppedDocument:
        """See `DaemonView`. A second call with less time shortens the wait. The stop continues if
        its caller disconnects."""
        seconds = self._drain_seconds if drain_seconds is None else drain_seconds
        self._tasks.start_soon(self._stop, seconds, keep)
        await self._stopped.wait()
        overviews = await self._store.agent_overviews(self._deps.clock.now())
        queued = sum(each.lane.queued for each in overviews)
        return StoppedDocument(
            0 if keep else self._remaining, self._remaining if keep else 0, queued
        )

    async def _stop(self, seconds: float, keep: bool) -> None:
        remaining = await self.shut_down(drain_seconds=seconds, keep=keep)
        if not self._stopped.is_set():
            self._remaining = remaining
            self._stopped.set()

    def follow(
        self, *, agent: Agent | None, run: RunId | None, after: int
    ) -> AsyncGenerator[StoredEvent | LiveEvent, None]:
        return stream_events(self._store, self._deps.bus, after, agent=agent, run=run)

    async def wait_until_stopped(self) -> None:
        await self._stopped.wait()
        await anyio.sleep(_LAST_WORDS_SECONDS)


@asynccontextmanager
async def open_daemon(config: Config) -> AsyncIterator[RunningDaemon]:
    """Run the daemon of the home of the configuration until the block ends."""
    home = config.locations.home
    exporting = _prepare_export(config)
    async with lock_home(home) as lock:
        key = await anyio.to_thread.run_sync(load_home_key, home)
        async with open_runtime(config, kind="daemon") as deps:
            health = HealthMonitor(deps.store, deps.clock, config.settings.watch)
            async with exporting(deps, health), task_group() as tasks:
                await _require_alone(deps)
                tasks.start_soon(_keep_lock, lock)
                await _sync_agents(config, deps)
                await _check_providers(config, deps)
                daemon = RunningDaemon(config, deps, tasks, key=key, health=health)
                # Spooled calls do not start runs: runs start once the recovery is done.
                drain = partial(_drain_spool, build_context(deps))
                daemon.recovered_lanes = await daemon.recover(drain)
                tasks.start_soon(daemon.serve)
                tasks.start_soon(health.serve)
                tasks.start_soon(prune_regularly, deps.store, deps.clock, build_periods(config))
                log_event("daemon.started", pid=os.getpid(), version=__version__)
                context = build_context(deps, daemon)
                async with serve(context, lambda method, error: log_bug(error, method=method)):
                    yield daemon
                tasks.cancel_scope.cancel()
    log_event("daemon.stopped", pid=os.getpid())


def _prepare_export(
    config: Config,
) -> Callable[[Deps, HealthMonitor], AbstractAsyncContextManager[None]]:
    """Prepare the export of traces and metrics, if it is configured. A missing package is reported
    before the daemon starts."""
    telemetry = config.settings.telemetry
    if not telemetry.endpoint:
        return lambda *_: contextlib.nullcontext()
    try:
        # The packages are an extra: without an endpoint they are neither needed nor imported.
        from steadyrun.telemetry.otlp import export_metrics, export_spans  # noqa: PLC0415
    except ModuleNotFoundError as error:
        problem = f"telemetry.endpoint is set, but the package {error.name} is not installed"
        hint = 'Install it: pip install "steadyrun[otel]"'
        raise ConfigInvalid(problem, file=None, hint=hint) from error
    headers, content = config.expand_headers(), telemetry.content
    kinds = {name: config.find_kind(name) for name in config.settings.providers}

    @asynccontextmanager
    async def export(deps: Deps, health: HealthMonitor) -> AsyncIterator[None]:
        endpoint = telemetry.endpoint
        async with (
            export_metrics(endpoint, headers, health.read),
            export_spans(endpoint, headers, deps, content=content, kinds=kinds),
        ):
            yield

    return export


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
    used |= {each.provider: f"process {each.id}" for each in await deps.store.processes()}
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
async def lock_home(home: Path) -> AsyncIterator[LockFile]:
    """Hold the daemon lock of this home; `DaemonRunning` if another process has it."""
    try:
        lock = await anyio.to_thread.run_sync(_open_lock_file, home)
    except OSError as error:
        raise StoreUnusable(str(error.strerror), path=locate_lock(home).parent) from error
    try:
        await _lock(lock, home)
        yield lock
    finally:
        lock.close()


def _open_lock_file(home: Path) -> LockFile:
    make_directory(locate_lock(home).parent)
    return LockFile(locate_lock(home))


async def _lock(lock: LockFile, home: Path) -> None:
    limit = anyio.current_time() + _LOCK_SECONDS
    while not lock.try_lock():
        if anyio.current_time() > limit:
            raise DaemonRunning(home, pid=lock.read_pid())
        await anyio.sleep(_LOOK_SECONDS)


async def _keep_lock(lock: LockFile) -> None:
    """Restore the lock file whenever it was deleted. A daemon that has locked a new file before
    that finds this one among the holders, and ends: then the file is free."""
    while True:
        await anyio.sleep(_KEEP_SECONDS)
        try:
            is_restored = await anyio.to_thread.run_sync(_restore_lock, lock)
        except OSError:
            # The home is not there, or the disk is full: the next try restores it.
            continue
        if is_restored:
            log_event("daemon.relocked", pid=os.getpid())


def _restore_lock(lock: LockFile) -> bool:
    return not lock.is_in_place() and lock.restore()


async def _require_alone(deps: Deps) -> None:
    """The lock file of a daemon may have been deleted while it runs: it is a holder still."""
    for holder in await deps.store.holders():
        if holder.kind == "daemon" and holder.is_alive and holder.id != deps.holder:
            raise DaemonRunning(deps.home)
