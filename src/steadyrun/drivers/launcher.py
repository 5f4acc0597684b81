"""Starts and takes over processes of any provider. Each process has its own directory."""

import contextlib
import errno
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from steadyrun.dialect import Ability, Dialect, EnforcedRights, LaunchRequest, Refused
from steadyrun.driver import LaunchRecord, Sink
from steadyrun.drivers import aside_mark, keeper, keeper_client, keeper_processes, programs
from steadyrun.drivers.journal.output_lines import LINE_BYTES
from steadyrun.drivers.journal.process_output import ReadSetup, read_last_turn
from steadyrun.drivers.keeper_client import KeeperConnection, KeeperLimits, KeeperSpec, KeptProcess
from steadyrun.drivers.lineage import PROCESSES
from steadyrun.drivers.process_driver import ProcessDriver
from steadyrun.drivers.process_files import ProcessFiles
from steadyrun.errors import (
    ConversationBusy,
    KeeperFailed,
    KeeperGone,
    KeeperSilent,
    LaunchFailed,
    NotFound,
)
from steadyrun.lib.atomic import write_file
from steadyrun.lib.clock import Clock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.lib.safe_paths import make_directory
from steadyrun.lib.task_group import is_out_of_threads
from steadyrun.model.ids import AgentId, HolderId, ProcessId
from steadyrun.model.policy import Rights
from steadyrun.model.process import Process
from steadyrun.model.secret import Scrubber

# The locks of the conversations that processes have resumed.
CONVERSATIONS = "conversations"
_REQUEST = "request"
_PAUSE_SECONDS = 0.02
_RESUME_SECONDS = 2.0
_LAUNCHED_AT_ONCE = 8
# A keeper accepts any fence that is not lower than the last one; no lane has this one.
_HIGHEST_FENCE = 2**62
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

    def __init__(  # noqa: PLR0913 (each has a default but four)
        self,
        home: Path,
        setups: Mapping[str, ProviderSetup],
        *,
        clock: Clock,
        watches: FileWatches,
        line_bytes: int = LINE_BYTES,
        generation: str = "",
        scrubber: Scrubber | None = None,
    ) -> None:
        """`generation` is that of the store: see `aside_mark`."""
        self._home = home
        self._generation = generation
        self.files = ProcessFiles(home / PROCESSES, generation)
        self._setups = setups
        self._clock = clock
        self._reading = ReadSetup(watches, clock, scrubber or Scrubber(), line_bytes)
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
            try:
                await self._launch(process, request, env or {})
            except LaunchFailed as error:
                error.name_provider(process.provider)
                raise
            except OSError as error:
                raise KeeperFailed(process.provider, problem=str(error)) from error
            except RuntimeError as error:
                if not is_out_of_threads(error):
                    raise
                raise KeeperFailed(process.provider, problem=str(error)) from error

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
            files = {_REQUEST: msgspec.msgpack.encode(request), **launch.files}
            if self._generation:
                files[aside_mark.GENERATION] = self._generation.encode()
            await anyio.to_thread.run_sync(_prepare, directory, files, KeeperLimits().free_bytes)
        except OSError as error:
            raise LaunchFailed(launch.argv[0], code="failed", problem=str(error)) from error
        claim = None
        if request.resume:
            key = (process.provider, request.resume, request.cwd)
            name = hashlib.sha256(msgspec.json.encode(key)).hexdigest()
            claim = self._home / CONVERSATIONS / name
            await anyio.to_thread.run_sync(make_directory, claim.parent)
        spec = KeeperSpec(
            process=process.id,
            directory=str(directory),
            argv=launch.argv,
            cwd=request.cwd,
            env=given,
            stdin=launch.stdin,
            rungs=launch.rungs,
            limits=KeeperLimits(),
            claim=str(claim) if claim else "",
        )
        try:
            await keeper_client.start(spec)
        except ConversationBusy as error:
            raise ConversationBusy(request.resume or "") from error

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
            driver = ProcessDriver(dialect, kept, request, self._reading, sink)
            # A request may be long: it is not kept until the process ends.
            del request
            yield driver
        finally:
            if link:
                link.close()

    async def read_launches(self, processes: Sequence[Process]) -> dict[ProcessId, LaunchRecord]:
        found: dict[ProcessId, LaunchRecord] = {}
        while processes:
            processes = await anyio.to_thread.run_sync(self._find_launches, processes, found)
            if processes:
                await anyio.sleep(_PAUSE_SECONDS)
        return found

    def _find_launches(
        self, processes: Sequence[Process], found: dict[ProcessId, LaunchRecord]
    ) -> list[Process]:
        """Read the launches of processes; return those that are being launched now."""
        starting = []
        for process in processes:
            with contextlib.suppress(NotFound):
                request = self._read_request(process)
                was_started = keeper_client.was_started(self._find_directory(process))
                if was_started:
                    directory = self._find_directory(process)
                    found[process.id] = _build_record(directory, request, self._generation)
                elif was_started is None:
                    starting.append(process)
        return starting

    async def end_any(self, process: ProcessId) -> None:
        """End a process of which nothing but its directory is known."""
        place = self.name_directory(process)
        row = Process(process, AgentId(""), "", "", place, self._clock.now())
        # A keeper that does not answer ends its process by itself when no driver comes.
        with contextlib.suppress(KeeperGone):
            await self.end(row, holder=HolderId("none"), fence=_HIGHEST_FENCE)

    async def end(self, process: Process, *, holder: HolderId, fence: int) -> None:
        try:
            link = await self._connect(process, holder, fence)
            if link is not None:
                with contextlib.closing(link):
                    directory = self._find_directory(process)
                    kept = KeptProcess(process, directory, link, self._clock)
                    await kept.stop("shutdown")
                    await kept.wait_for_end()
        except KeeperSilent:
            await self.kill(process)
        await anyio.to_thread.run_sync(keeper.sweep, [process.id])

    async def kill(self, process: Process) -> None:
        await keeper_client.kill(self._find_directory(process))

    def _read_request(self, process: Process) -> LaunchRequest:
        file = self._find_directory(process) / _REQUEST
        try:
            return _decode_request(file.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise NotFound("launch of", process.id) from error

    async def _connect(
        self, process: Process, holder: HolderId, fence: int
    ) -> KeeperConnection | None:
        """Claim the keeper; the caller closes the connection. None if the process has ended; then
        its descendants are ended, too."""
        directory, now = self._find_directory(process), self._clock.monotonic
        resume_at, limit = now() + _RESUME_SECONDS, now() + keeper_client.START_SECONDS
        while keeper_client.is_alive(directory):
            try:
                return await keeper_client.connect(directory, holder, process.agent, fence)
            except KeeperSilent:
                raise
            except KeeperGone as error:
                # The keeper does not listen yet, or was killed and the outer process cleans up.
                if now() > limit:
                    raise KeeperSilent(process.agent) from error
            if now() > resume_at:
                # One of the two may be stopped.
                resume_at = now() + _RESUME_SECONDS
                await anyio.to_thread.run_sync(keeper_processes.resume, directory)
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
    """Build a Dialect; for a single turn if its options have `one_shot`."""
    dialect = setup.dialect()
    kind = type(dialect)
    if not one_shot or "one_shot" not in kind.options_type.__struct_fields__:
        return dialect
    options = msgspec.convert({**setup.options, "one_shot": True}, kind.options_type)
    return kind(options)  # type: ignore[call-arg]


def _build_record(directory: Path, request: LaunchRequest, generation: str) -> LaunchRecord:
    is_of_generation = aside_mark.is_of_generation(directory, generation)
    is_of_store = is_of_generation and not aside_mark.has_mark(directory)
    return LaunchRecord(request, is_of_store, read_last_turn(directory))


def _prepare(directory: Path, files: Mapping[str, bytes], free_bytes: int) -> None:
    """Create the directory and its files. The next driver needs the request.

    With less than `free_bytes` of space the keeper would end the process at once."""
    make_directory(directory.parent)
    make_directory(directory)
    disk = os.statvfs(directory)
    if disk.f_bavail * disk.f_frsize < free_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
    for name, content in files.items():
        write_file(directory / name, content, is_durable=False)
