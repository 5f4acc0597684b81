"""Starts keepers, connects to them and reads their files. See docs/keeper.md."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from steadyrun.dialect import ProcessExit, Rung
from steadyrun.drivers import keeper
from steadyrun.errors import KeeperFailed, KeeperGone, LaunchFailed, LeaseLost
from steadyrun.lib.flock import is_locked, wait_until_unlocked
from steadyrun.lib.framing import Frame
from steadyrun.lib.signal import Signal
from steadyrun.lib.unix_socket import shorten_path
from steadyrun.model.ids import HolderId

VERSION = 1
START_SECONDS = 30.0
ANSWER_SECONDS = 10.0
STDERR_EXCERPT_BYTES = 4096
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
    v: int = VERSION


async def start(spec: KeeperSpec) -> None:
    """Start a keeper and its process, or raise `LaunchFailed`. Both outlive this process."""
    answer = await anyio.to_thread.run_sync(_start, spec)
    error = answer.get("error")
    if error:
        raise LaunchFailed(spec.argv[0], code=error["code"], problem=error["message"])


def build_command(source: str = keeper.__file__) -> list[str]:
    """The command of a keeper. It writes no bytecode: a full disk would leave a part of it."""
    return [sys.executable, "-I", "-S", "-B", "-c", _RUN_CACHED, source]


def _start(spec: KeeperSpec) -> dict[str, Any]:
    try:
        done = subprocess.run(
            build_command(),
            input=msgspec.json.encode(spec),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            timeout=START_SECONDS,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=dict[str, Any])
    except (subprocess.TimeoutExpired, OSError, msgspec.DecodeError) as error:
        raise KeeperFailed(spec.argv[0], problem=str(error)) from error


class KeeperConnection(asyncio.Protocol):
    """A connection to a keeper. When it has ended, `has_exited` or `is_replaced` is the reason;
    with neither, the keeper was killed."""

    def __init__(self, agent: str, fence: int) -> None:
        self.fence = fence
        self._over = Signal()
        # Called when the connection ends.
        self.on_over: Callable[[], None] | None = None
        self.has_exited = False
        self.is_replaced = False
        # The process lives, but its stdin is closed.
        self.is_input_closed = False
        self._agent = agent
        self._transport: asyncio.Transport | None = None
        self._waiting: list[asyncio.Future[dict[str, Any]]] = []
        self._buffer = b""

    @property
    def is_over(self) -> bool:
        return self._over.count > 0

    async def wait_until_over(self) -> None:
        await self._over.wait(since=0)

    async def claim(self, holder: HolderId) -> None:
        message = {"type": "claim", "v": VERSION, "holder": holder, "fence": self.fence}
        await self._call(message)

    async def send_frame(self, key: str, at: int, raw: bytes) -> int:
        """Write one line to the process; return its number. The same key is written once."""
        line = raw + b"\n"
        answer = await self._call({"type": "frame", "key": key, "at": at, "size": len(line)}, line)
        return int(answer["n"])

    async def deposit_will(self, raw: bytes) -> None:
        """Deposit the line that interrupts the open turn, for a keeper without a driver."""
        line = raw + b"\n"
        await self._call({"type": "will", "size": len(line)}, line)

    async def send_signal(self, number: int) -> None:
        await self._call({"type": "signal", "number": number})

    async def close_input(self) -> None:
        await self._call({"type": "eof"})

    async def stop(self, reason: str) -> None:
        """Start the stop ladder; the process has ended when the connection ends."""
        await self._call({"type": "stop", "reason": reason})

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
            self._receive(msgspec.json.decode(line, type=dict[str, Any]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._over.notify()
        while self._waiting:
            self._resolve_answer({"type": "over"})
        if self.on_over:
            self.on_over()

    def _receive(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "exited":
                self.has_exited = True
            case "replaced":
                self.is_replaced = True
            case _:
                self._resolve_answer(message)

    def _resolve_answer(self, message: dict[str, Any]) -> None:
        if self._waiting and not (waiting := self._waiting.pop(0)).done():
            waiting.set_result(message)

    # -- asking

    async def _call(self, message: dict[str, Any], payload: bytes = b"") -> dict[str, Any]:
        if self._transport is None or self.is_over:
            raise self._build_error()
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(msgspec.json.encode(message) + b"\n" + payload)
        with anyio.move_on_after(ANSWER_SECONDS):
            return self._check_answer(await answer)
        raise KeeperGone(self._agent, found="it does not answer")

    def _check_answer(self, answer: dict[str, Any]) -> dict[str, Any]:
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
    link = await _connect(directory, KeeperConnection(agent, fence))
    try:
        await link.claim(holder)
    except BaseException:
        link.close()
        raise
    return link


async def _connect(directory: Path, link: KeeperConnection) -> KeeperConnection:
    try:
        with shorten_path(directory) as path:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, path)
    except OSError as error:
        raise KeeperGone(directory.name, found=str(error.strerror)) from error
    return link


def is_alive(directory: Path) -> bool:
    """Whether the outer process or the keeper lives: each holds the lock."""
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
    """Wait for the end of the outer process and the keeper."""
    await anyio.to_thread.run_sync(wait_until_unlocked, directory / "lock", abandon_on_cancel=True)


class _ExitFile(Struct, frozen=True):
    code: int | None = None
    signal: int | None = None
    reason: str | None = None


def read_exit(directory: Path) -> ProcessExit:
    """How the process ended; `keeper_lost` if there is no exit file."""
    try:
        found = msgspec.json.decode((directory / "exit").read_bytes(), type=_ExitFile)
    except (FileNotFoundError, msgspec.DecodeError):
        found = _ExitFile(reason="keeper_lost")
    return ProcessExit(found.code, found.signal, found.reason, read_stderr(directory))


def read_stderr(directory: Path) -> str:
    """The last part of stderr."""
    try:
        with (directory / "stderr").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - STDERR_EXCERPT_BYTES))
            return file.read().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


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
