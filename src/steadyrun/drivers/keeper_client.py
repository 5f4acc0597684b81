"""Starts keepers, writes to their processes and stops them, and reads their files.

The protocol is docs/keeper.md.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import ProcessExit, Rung
from steadyrun.drivers import keeper, keeper_processes
from steadyrun.errors import (
    ConversationBusy,
    KeeperFailed,
    KeeperGone,
    KeeperSilent,
    LaunchFailed,
    LeaseLost,
)
from steadyrun.lib.clock import Clock
from steadyrun.lib.flock import is_locked, wait_until_unlocked
from steadyrun.lib.framing import Frame
from steadyrun.lib.signal import Signal
from steadyrun.lib.unix_socket import shorten_path
from steadyrun.model.ids import HolderId
from steadyrun.model.process import Process
from steadyrun.model.secret import Scrubber

# A message of a keeper, or to it.
KeeperMessage = dict[str, Any]
T = TypeVar("T")

START_SECONDS = 30.0
# After the first time a keeper that is stopped is continued, after the second it does not answer.
RESUME_SECONDS = 3.0
ANSWER_SECONDS = 10.0
# How long an outer process may take to end the processes of a killed keeper: it has a limit, too.
CLEANUP_SECONDS = 10.0
_LONGEST_HEADER = 64 * 1024
STDERR_EXCERPT_CHARS = 4096
# More is read than is kept: a secret may begin before the excerpt.
_STDERR_READ_BYTES = STDERR_EXCERPT_CHARS + keeper.STDERR_KEPT_BYTES
# Python compiles a script at each run. A loader uses the bytecode of our own import of the file, if
# it belongs to this source; after any error it uses the source.
_RUN_CACHED = """
import sys, importlib.machinery
loader = importlib.machinery.SourceFileLoader("__main__", sys.argv[1])
try:
    code = loader.get_code("__main__")
except Exception:
    code = loader.source_to_code(loader.get_data(sys.argv[1]), sys.argv[1])
exec(code)
"""


class KeeperLimits(Struct, frozen=True):
    """When a keeper ends its process on its own."""

    free_bytes: int = 64 * 1024 * 1024
    journal_bytes: int = 8 * 1024 * 1024 * 1024
    silent_seconds: float = 30 * 60.0
    unclaimed_seconds: float = 24 * 60 * 60.0
    kill_seconds: float = 5.0


class KeeperSpec(Struct, frozen=True):
    """The document that a keeper reads at its start."""

    process: str
    directory: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    stdin: str
    rungs: tuple[Rung, ...]
    limits: KeeperLimits
    # A file that only one keeper at a time may have locked.
    claim: str = ""
    v: int = keeper.VERSION


async def start(spec: KeeperSpec) -> None:
    """Start a keeper and its process, or raise `LaunchFailed`. Both outlive this process."""
    try:
        answer = await anyio.to_thread.run_sync(_start, spec)
    except KeeperFailed:
        # A keeper that is stopped or slow must not start the program later.
        await kill(Path(spec.directory))
        await anyio.to_thread.run_sync(keeper.sweep, [spec.process])
        raise
    error = answer.get("error")
    if error and error["code"] == "busy":
        raise ConversationBusy(spec.claim and Path(spec.claim).name)
    if error:
        raise LaunchFailed(spec.argv[0], code=error["code"], problem=error["message"])


def build_command(directory: str, source: str = keeper.__file__) -> list[str]:
    """The command of a keeper. It writes no bytecode: a full disk would leave a part of it.

    The keeper does not use the last word. It shows, also to `lineage`, which process is kept.
    """
    return [sys.executable, "-I", "-S", "-B", "-c", _RUN_CACHED, source, directory]


def _start(spec: KeeperSpec) -> KeeperMessage:
    try:
        done = subprocess.run(
            build_command(spec.directory),
            input=msgspec.json.encode(spec),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            timeout=START_SECONDS,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=KeeperMessage)
    except (subprocess.TimeoutExpired, OSError, msgspec.DecodeError) as error:
        raise KeeperFailed(spec.argv[0], problem=str(error)) from error


class KeeperConnection(asyncio.Protocol):
    """A connection to a keeper. When it has ended, `has_exited` or `is_replaced` is the reason;
    with neither, the keeper was killed."""

    def __init__(self, directory: Path, agent: str, fence: int) -> None:
        self.fence = fence
        self._over = Signal()
        # Called when the connection ends.
        self.on_over: Callable[[], None] | None = None
        self.has_exited = False
        self.is_replaced = False
        # The process is running, but its stdin is closed.
        self.is_input_closed = False
        self._directory, self._agent = directory, agent
        self._transport: asyncio.Transport | None = None
        self._waiting: list[asyncio.Future[KeeperMessage]] = []
        self._buffer = b""

    @property
    def is_over(self) -> bool:
        return self._over.count > 0

    async def wait_until_over(self) -> None:
        await self._over.wait(since=0)

    async def claim(self, holder: HolderId) -> None:
        message = {"type": "claim", "v": keeper.VERSION, "holder": holder, "fence": self.fence}
        await self._call(message)

    async def send_frame(self, key: str, at: int, raw: bytes) -> int:
        """Write one line to the process; return its number. The same key is written once."""
        line = raw + b"\n"
        answer = await self._call({"type": "frame", "key": key, "at": at, "size": len(line)}, line)
        return int(answer["n"])

    async def deposit_will(self, raw: bytes) -> KeeperMessage:
        """Deposit the line that interrupts the open turn, for a keeper without a driver."""
        line = raw + b"\n"
        return await self._call({"type": "will", "size": len(line)}, line)

    async def send_signal(self, number: int) -> KeeperMessage:
        return await self._call({"type": "signal", "number": number})

    async def close_input(self) -> KeeperMessage:
        return await self._call({"type": "eof"})

    async def stop(self, reason: str) -> KeeperMessage:
        """Start the stop ladder; the process has ended when the connection ends."""
        return await self._call({"type": "stop", "reason": reason})

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._receive(msgspec.json.decode(line, type=KeeperMessage))

    def connection_lost(self, exc: Exception | None) -> None:
        self._over.notify()
        while self._waiting:
            self._resolve_answer({"type": "over"})
        if self.on_over:
            self.on_over()

    def _receive(self, message: KeeperMessage) -> None:
        match message["type"]:
            case "exited":
                self.has_exited = True
            case "replaced":
                self.is_replaced = True
            case _:
                self._resolve_answer(message)

    def _resolve_answer(self, message: KeeperMessage) -> None:
        if self._waiting and not (waiting := self._waiting.pop(0)).done():
            waiting.set_result(message)

    # -- asking

    async def _call(self, message: KeeperMessage, payload: bytes = b"") -> KeeperMessage:
        if self._transport is None or self.is_over:
            raise self._build_error()
        answer: asyncio.Future[KeeperMessage] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(msgspec.json.encode(message) + b"\n" + payload)
        with anyio.move_on_after(RESUME_SECONDS):
            return self._check_answer(await answer)
        return await self._wait_for_late_answer(answer)

    async def _wait_for_late_answer(
        self, given_up: "asyncio.Future[KeeperMessage]"
    ) -> KeeperMessage:
        """The keeper may be stopped: continue it, and wait for its answer once more."""
        if not given_up.cancelled():
            return self._check_answer(given_up.result())
        if given_up not in self._waiting:
            # The answer came in the moment in which it was given up, or the connection ended.
            raise self._build_error()
        answer: asyncio.Future[KeeperMessage] = asyncio.get_running_loop().create_future()
        # Answers come in the order of the requests.
        self._waiting = [answer if each is given_up else each for each in self._waiting]
        with anyio.move_on_after(ANSWER_SECONDS - RESUME_SECONDS):
            await anyio.to_thread.run_sync(keeper_processes.resume, self._directory)
            return self._check_answer(await answer)
        raise KeeperSilent(self._agent)

    def _check_answer(self, answer: KeeperMessage) -> KeeperMessage:
        match answer["type"]:
            case "refused":
                raise LeaseLost(self._agent, fence=self.fence)
            case "over":
                raise self._build_error()
            case "error":
                self.is_input_closed = answer["code"] == "stdin_closed"
                raise KeeperGone(self._agent, found=f"it refused: {answer['code']}")
            case _:
                return answer

    def _build_error(self) -> LeaseLost | KeeperGone:
        if self.is_replaced:
            return LeaseLost(self._agent, fence=self.fence)
        return KeeperGone(self._agent, found="the connection has ended")


async def connect(directory: Path, holder: HolderId, agent: str, fence: int) -> KeeperConnection:
    """Claim the process in `directory`; the caller closes the connection."""
    link = KeeperConnection(directory, agent, fence)
    try:
        with shorten_path(directory) as path:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, path)
    except OSError as error:
        raise KeeperGone(directory.name, found=str(error.strerror)) from error
    try:
        await link.claim(holder)
    except BaseException:
        link.close()
        raise
    return link


def is_alive(directory: Path) -> bool:
    """Whether the outer process or the keeper is running: each holds the lock."""
    return is_locked(directory / "lock")


def was_started(directory: Path) -> bool | None:
    """Whether a keeper has started. If not, none will: a later one finds the directory in use.
    None: the keeper is about to start its process."""
    journal = directory / "journal"
    if journal.exists():
        return True
    with contextlib.suppress(FileExistsError):
        (directory / "sent").touch(mode=0o600, exist_ok=False)
    # It may have created its journal and ended since the check above.
    return None if is_alive(directory) else journal.exists()


async def wait_until_gone(directory: Path) -> None:
    """Wait for the end of the outer process and the keeper. If only the outer process is left and
    does not end, it is continued, then killed."""
    if await _is_unlocked_within(directory, RESUME_SECONDS):
        return
    await anyio.to_thread.run_sync(keeper_processes.resume, directory)
    while not await _is_unlocked_within(directory, CLEANUP_SECONDS):
        if not await _is_listening(directory):
            await anyio.to_thread.run_sync(keeper_processes.kill_all, directory)


async def kill(directory: Path) -> None:
    """End a keeper that does not answer. Its outer process ends everything else, or is killed
    too; then a sweep finds what is left by its mark."""
    await anyio.to_thread.run_sync(keeper_processes.kill_keeper, directory)
    if not await _is_unlocked_within(directory, CLEANUP_SECONDS):
        await anyio.to_thread.run_sync(keeper_processes.kill_all, directory)


async def _is_unlocked_within(directory: Path, seconds: float) -> bool:
    """Whether the outer process and the keeper end in this time."""
    with anyio.move_on_after(seconds):
        lock = directory / "lock"
        await anyio.to_thread.run_sync(wait_until_unlocked, lock, abandon_on_cancel=True)
        return True
    return False


async def _is_listening(directory: Path) -> bool:
    """Whether the keeper is alive: the outer process has closed the socket."""
    try:
        with shorten_path(directory) as path:
            _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


def read_exit(directory: Path, scrubber: Scrubber) -> ProcessExit:
    """How the process ended; `keeper_lost` if there is no exit file."""
    try:
        found = msgspec.json.decode((directory / "exit").read_bytes(), type=ProcessExit)
    except (FileNotFoundError, msgspec.DecodeError):
        found = ProcessExit(reason="keeper_lost")
    return replace(found, stderr=_read_stderr(directory, scrubber))


def _read_stderr(directory: Path, scrubber: Scrubber) -> str:
    """The last part of stderr, without secrets."""
    try:
        with (directory / "stderr").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _STDERR_READ_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    clean = scrubber.clean_end(text) if is_cut_stderr(size) else str(scrubber.clean(text))
    return clean.strip()[-STDERR_EXCERPT_CHARS:]


def is_cut_stderr(size: int) -> bool:
    """Whether the keeper may have cut the beginning of a stderr file of this size."""
    return size >= keeper.STDERR_KEPT_BYTES


def read_sent(directory: Path, after: int) -> list[Frame]:
    """The frames with numbers above `after`, in the order in which they were made."""
    try:
        data = (directory / "sent").read_bytes()
    except FileNotFoundError:
        return []
    frames = [
        Frame(raw.removesuffix(b"\n"), at, key, number)
        for number, key, at, raw in keeper.read_sent(data)
        if number > after
    ]
    return sorted(frames, key=lambda frame: (frame.end, frame.number))


def read_sent_keys(directory: Path) -> list[str]:
    """The keys of all frames that were sent, in their order. The frames are not read."""
    keys: list[str] = []
    try:
        with (directory / "sent").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while header := file.readline(_LONGEST_HEADER):
                found = msgspec.json.decode(header, type=KeeperMessage)
                end = file.tell() + int(found["size"]) + 1
                if end > size:
                    # The keeper was killed while it wrote this frame.
                    break
                keys.append(str(found["key"]))
                file.seek(end)
    except (FileNotFoundError, msgspec.DecodeError):
        # A header that was not written completely is the last one.
        return keys
    return keys


class KeptProcess:
    """One process and the connection to its keeper.

    Without a connection the process has ended. What is sent to a process that has ended is
    discarded; the driver reads the end from the journal.
    """

    __slots__ = ("_clock", "_link", "_will", "directory", "record", "written_at")

    def __init__(
        self, process: Process, directory: Path, link: KeeperConnection | None, clock: Clock
    ) -> None:
        self.record, self.directory = process, directory
        self._link, self._clock = link, clock
        # When something was last written to its input.
        self.written_at = clock.monotonic()
        self._will: bytes | None = None

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended, or there was none."""
        return self._link is None or self._link.is_over

    def on_over(self, call: Callable[[], None]) -> None:
        """Call this when the connection ends."""
        if self._link:
            self._link.on_over = call

    async def write(self, key: str, at: int, raw: bytes) -> int | None:
        """Write one line to its input; return its number, or None if the process has ended."""
        number = await self._call(lambda link: link.send_frame(key, at, raw))
        if number is not None:
            self.written_at = self._clock.monotonic()
        return number

    async def find_written(self, key: str) -> int | None:
        """The number of a frame that a keeper has written and not acknowledged: it was killed in
        between. None if there is no such frame, or if the process has not ended."""
        if not self.is_over:
            return None
        await self.wait_for_end()
        numbers = [frame.number for frame in read_sent(self.directory, 0) if frame.key == key]
        return numbers[0] if numbers else None

    async def set_will(self, raw: bytes) -> None:
        """Deposit the line with which the keeper interrupts the open turn if no driver is left."""
        if raw != self._will:
            self._will = raw
            await self._call(lambda link: link.deposit_will(raw))

    async def signal(self, number: int) -> bool:
        """Send a signal; return False if the process has ended."""
        return await self._call(lambda link: link.send_signal(number)) is not None

    async def close_input(self) -> None:
        await self._call(KeeperConnection.close_input)

    async def stop(self, reason: str) -> None:
        await self._call(lambda link: link.stop(reason))

    async def wait_for_end(self) -> None:
        """Wait until the process and its keeper have ended."""
        link = self._link
        if link is None:
            return
        await link.wait_until_over()
        if link.is_replaced:
            raise LeaseLost(self.record.agent, fence=link.fence)
        # If the keeper was killed, the outer process ends everything and writes the exit file.
        if not link.has_exited:
            await wait_until_gone(self.directory)
            # If both were killed, nothing was ended yet.
            await anyio.to_thread.run_sync(keeper.sweep, [self.record.id])

    def was_interrupted_by_keeper(self) -> bool:
        """Whether the keeper has sent the deposited line."""
        sent = read_sent(self.directory, 0)
        return any(frame.key == keeper.WILL_KEY for frame in sent)

    async def _call(self, send: Callable[[KeeperConnection], Awaitable[T]]) -> T | None:
        """Send to the keeper; return None if the process has ended or its input is closed."""
        link = self._link
        if link is None:
            return None
        try:
            return await send(link)
        except KeeperGone:
            if not link.is_over and not link.is_input_closed:
                raise
            return None
