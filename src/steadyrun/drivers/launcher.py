"""Starts and takes over processes of any provider. Each process has its own directory."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from steadyrun.dialect import Ability, Dialect, EnforcedRights, Launch, LaunchRequest, Refused
from steadyrun.driver import Sink
from steadyrun.drivers import keeper, keeper_client, programs
from steadyrun.drivers.keeper_client import KeeperConnection, KeeperLimits, KeeperSpec
from steadyrun.drivers.kept_process import KeptProcess
from steadyrun.drivers.process_driver import ProcessDriver
from steadyrun.errors import KeeperGone, LaunchFailed, NotFound
from steadyrun.lib.clock import Clock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.model.ids import HolderId, ProcessId
from steadyrun.model.policy import Rights
from steadyrun.model.process import Process

PROCESSES = "processes"
_REQUEST = "request"
_PAUSE_SECONDS = 0.02
_LAUNCHED_AT_ONCE = 8
_decode_request = msgspec.msgpack.Decoder(LaunchRequest).decode


@dataclass(frozen=True, slots=True)
class ProviderSetup:
    """A provider as it is configured here. `env` is filled in when a process is launched."""

    dialect: Callable[[], Dialect]
    env: Callable[[], Mapping[str, str]]
    command: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None


class KeeperLauncher:
    """Starts processes under keepers, and drives existing ones. Used by the runtime.

    It has no state of its own: everything about a process is in its directory.
    """

    def __init__(
        self,
        home: Path,
        setups: Mapping[str, ProviderSetup],
        *,
        clock: Clock,
        watches: FileWatches,
        limits: KeeperLimits | None = None,
    ) -> None:
        self._home = home
        self._setups = setups
        self._clock = clock
        self._watches = watches
        self._limits = limits or KeeperLimits()
        # More starts at a time take as long in all, and more memory.
        self._launching = anyio.CapacityLimiter(_LAUNCHED_AT_ONCE)

    def find_abilities(self, provider: str, *, one_shot: bool = False) -> frozenset[Ability]:
        return _build_dialect(self._find_setup(provider), one_shot=one_shot).abilities

    def enforce(
        self, provider: str, rights: Rights, *, one_shot: bool = False
    ) -> EnforcedRights | Refused:
        return _build_dialect(self._find_setup(provider), one_shot=one_shot).enforce(rights)

    def find_wall_seconds(self, provider: str) -> float | None:
        return self._find_setup(provider).dialect().wall_seconds

    def encode_setup(self, provider: str) -> bytes:
        setup = self._find_setup(provider)
        return msgspec.msgpack.encode((setup.command, setup.options, sorted(setup.env().items())))

    def find_model(self, provider: str) -> str | None:
        return self._find_setup(provider).model

    def name_directory(self, process: ProcessId) -> str:
        return f"{PROCESSES}/{process}"

    async def launch(
        self, process: Process, request: LaunchRequest, *, env: Mapping[str, str] | None = None
    ) -> None:
        async with self._launching:
            await self._launch(process, request, env or {})

    async def _launch(
        self, process: Process, request: LaunchRequest, env: Mapping[str, str]
    ) -> None:
        setup, directory = self._find_setup(process.provider), self._find_directory(process)
        request = msgspec.structs.replace(request, directory=str(directory), command=setup.command)
        dialect = _build_dialect(setup, one_shot=request.one_shot)
        launch = dialect.launch(request)
        # The configuration of the user overrides the dialect.
        given = {**launch.env, **setup.env(), **env}
        if dialect.program is not None:
            command, cwd = request.command, request.cwd
            await anyio.to_thread.run_sync(
                programs.require_program, dialect.program, command, given, cwd
            )
        try:
            await anyio.to_thread.run_sync(_prepare, directory, request, launch)
        except OSError as error:
            raise LaunchFailed(launch.argv[0], code="failed", problem=str(error)) from error
        spec = KeeperSpec(
            process=process.id,
            directory=str(directory),
            argv=launch.argv,
            cwd=request.cwd,
            env=given,
            stdin=launch.stdin,
            rungs=launch.rungs,
            limits=self._limits,
        )
        await keeper_client.start(spec)

    @asynccontextmanager
    async def drive(
        self, process: Process, *, holder: HolderId, fence: int, sink: Sink
    ) -> AsyncIterator[ProcessDriver]:
        directory = self._find_directory(process)
        request = self._read_request(process)
        dialect = _build_dialect(self._find_setup(process.provider), one_shot=request.one_shot)
        link = await self._connect(process, holder, fence)
        try:
            kept = KeptProcess(process, directory, link, self._clock)
            driver = ProcessDriver(
                dialect, kept, request, watches=self._watches, clock=self._clock, sink=sink
            )
            # A request may be long: it is not kept as long as the process lives.
            del request
            yield driver
        finally:
            if link:
                link.close()

    async def read_requests(self, processes: Sequence[Process]) -> dict[ProcessId, LaunchRequest]:
        found: dict[ProcessId, LaunchRequest] = {}
        while processes:
            processes = await anyio.to_thread.run_sync(self._find_requests, processes, found)
            if processes:
                await anyio.sleep(_PAUSE_SECONDS)
        return found

    def _find_requests(
        self, processes: Sequence[Process], found: dict[ProcessId, LaunchRequest]
    ) -> list[Process]:
        """Read the requests of processes; return those that are being launched now."""
        starting = []
        for process in processes:
            with contextlib.suppress(NotFound):
                request = self._read_request(process)
                was_started = keeper_client.was_started(self._find_directory(process))
                if was_started:
                    found[process.id] = request
                elif was_started is None:
                    starting.append(process)
        return starting

    async def end(self, process: Process, *, holder: HolderId, fence: int) -> None:
        directory = self._find_directory(process)
        link = await self._connect(process, holder, fence)
        if link is not None:
            try:
                with contextlib.suppress(KeeperGone):
                    await link.stop("shutdown")
                await link.wait_until_over()
            finally:
                link.close()
        await keeper_client.wait_until_gone(directory)
        await anyio.to_thread.run_sync(keeper.sweep, [process.id])

    async def list_remains(self) -> dict[ProcessId, datetime]:
        return await anyio.to_thread.run_sync(_list_remains, self._home / PROCESSES)

    async def delete_remains(self, process: ProcessId) -> bool:
        return await anyio.to_thread.run_sync(
            _delete_remains, self._home / self.name_directory(process)
        )

    def _read_request(self, process: Process) -> LaunchRequest:
        file = self._find_directory(process) / _REQUEST
        try:
            return _decode_request(file.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise NotFound("launch of", process.id) from error

    async def _connect(
        self, process: Process, holder: HolderId, fence: int
    ) -> KeeperConnection | None:
        """A link to the claimed keeper, to be closed; None when the process is gone, and then all
        it left is ended."""
        directory = self._find_directory(process)
        limit = self._clock.monotonic() + keeper_client.START_SECONDS
        while keeper_client.is_alive(directory):
            try:
                return await keeper_client.connect(directory, holder, process.agent, fence)
            except KeeperGone:
                # The keeper does not listen yet, or was killed and the outer process cleans up.
                if self._clock.monotonic() > limit:
                    raise
            await anyio.sleep(_PAUSE_SECONDS)
        await anyio.to_thread.run_sync(keeper.sweep, [process.id])
        return None

    def _find_setup(self, provider: str) -> ProviderSetup:
        if provider not in self._setups:
            known = ", ".join(sorted(self._setups))
            raise NotFound("provider", provider, hint=f"There are: {known}")
        return self._setups[provider]

    def _find_directory(self, process: Process) -> Path:
        return self._home / process.keeper


def _build_dialect(setup: ProviderSetup, *, one_shot: bool) -> Dialect:
    """A new one of the provider; where its options know that shape, one for a single turn."""
    dialect = setup.dialect()
    kind = type(dialect)
    if not one_shot or "one_shot" not in kind.options_type.__struct_fields__:
        return dialect
    options = msgspec.convert({**setup.options, "one_shot": True}, kind.options_type)
    return kind(options)  # type: ignore[call-arg]


def _prepare(directory: Path, request: LaunchRequest, launch: Launch) -> None:
    """Create the directory and its files. The next driver needs the request."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in {_REQUEST: msgspec.msgpack.encode(request), **launch.files}.items():
        path = directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)


def _list_remains(folder: Path) -> dict[ProcessId, datetime]:
    found = {}
    for directory in filter(Path.is_dir, folder.iterdir()) if folder.is_dir() else ():
        # A process whose files are created and deleted now is alive.
        with contextlib.suppress(FileNotFoundError):
            times = [file.stat().st_mtime for file in (directory, *directory.iterdir())]
            found[ProcessId(directory.name)] = datetime.fromtimestamp(max(times), UTC)
    return found


def _delete_remains(directory: Path) -> bool:
    if keeper_client.is_alive(directory):
        return False
    shutil.rmtree(directory)
    return True
