"""Calls the daemon over its socket, one request after the other on a connection.

Lines are read only when the caller asks for the next one. A slow reader therefore slows down the
stream and does not fill the memory of this process.
"""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec import Raw, Struct

from steadyrun.api.errors import FailureDocument, build_error, from_refusal
from steadyrun.api.server import (
    LONGEST_LINE_BYTES,
    WITHOUT_HELLO,
    HelloRequest,
    locate_folder,
    locate_lock,
)
from steadyrun.errors import (
    DaemonNotAnswering,
    DaemonUnreachable,
    MessageTooLong,
    RpcClosed,
    RpcFailed,
    RpcRefused,
    RpcTimeout,
    describe_silent_daemon,
)
from steadyrun.lib import jsonrpc
from steadyrun.lib.framing import LineSplitter
from steadyrun.lib.jsonrpc import RpcFailure, RpcNotification, RpcResponse
from steadyrun.lib.processes.peer import read_peer_pid
from steadyrun.lib.processes.tree import is_stopped
from steadyrun.lib.unix_socket import shorten_path
from steadyrun.operations.documents import StreamStart
from steadyrun.operations.events import FollowRequest
from steadyrun.operations.registry import BY_NAME, Operation
from steadyrun.version import __version__

# A daemon that does not answer `hello` in this time is suspended or hangs.
HELLO_SECONDS = 5.0
ANSWER_SECONDS = 60.0
_CHUNK_BYTES = 64 * 1024


T = TypeVar("T")


class StreamEnd(Struct, frozen=True):
    error: FailureDocument | None


async def call(
    home: Path, operation: Operation, request: Struct, *, seconds: float = ANSWER_SECONDS
) -> Any:
    """Call an operation in the daemon. After `DaemonUnreachable` the daemon has not received it."""
    async with connect(home, greets=operation.name != WITHOUT_HELLO) as connection:
        response = await connection.request(operation.name, request, seconds=seconds)
        return _decode_answer(response, operation.answer)


@asynccontextmanager
async def follow(
    home: Path, request: FollowRequest
) -> AsyncIterator[tuple[int, AsyncGenerator[Raw, None]]]:
    """Follow events. Yield the cursor after which the stream begins, and the events as JSON."""
    operation = BY_NAME["events.follow"]
    async with connect(home) as connection:
        response = await connection.request(operation.name, request, seconds=ANSWER_SECONDS)
        events = _read_events(connection)
        try:
            yield _decode_answer(response, StreamStart).as_of, events
        finally:
            await events.aclose()


def _decode_answer(response: RpcResponse, kind: type[T]) -> T:
    try:
        return response.decode_result(kind)
    except msgspec.DecodeError as error:
        hint = "Restart the daemon with this version: steadyrun down, then steadyrun up"
        raise RpcFailed(f"the daemon's answer cannot be read: {error}", hint=hint) from error


async def _read_events(connection: "DaemonConnection") -> AsyncGenerator[Raw, None]:
    while True:
        match await connection.read_message("events.follow"):
            case RpcNotification("event", params):
                yield params
            case RpcNotification("end") as end:
                error = end.decode_params(StreamEnd).error
                if error is not None:
                    raise build_error(error)
                return
            case _:
                continue


@asynccontextmanager
async def connect(home: Path, *, greets: bool = True) -> AsyncIterator["DaemonConnection"]:
    """Connect to the daemon and send `hello`, which checks its version."""
    reader, writer = await _open_socket(home)
    try:
        connection = DaemonConnection(reader, writer)
        if greets:
            await _greet(home, connection)
        yield connection
    finally:
        writer.close()


class DaemonConnection:
    """A connection to the daemon, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._lines, self._numbers = LineSplitter(), count(1)
        self._frames: list[bytes] = []

    async def request(self, method: str, params: Struct, *, seconds: float) -> RpcResponse:
        number = next(self._numbers)
        line = jsonrpc.encode_request(number, method, params)
        if len(line) > LONGEST_LINE_BYTES:
            raise MessageTooLong(found=len(line), most=LONGEST_LINE_BYTES)
        with anyio.move_on_after(seconds):
            await self._send(line, method)
            return await self._read_answer(number, method)
        raise RpcTimeout(method, seconds=seconds, hint=self._describe_silence())

    async def read_message(self, method: str) -> jsonrpc.RpcMessage:
        """Read the next message; `RpcClosed` if the connection has ended."""
        while not self._frames:
            chunk = await self._read()
            if not chunk:
                raise RpcClosed(method)
            self._frames = [frame.raw for frame in reversed(self._lines.feed(chunk))]
        try:
            return jsonrpc.decode(self._frames.pop())
        except msgspec.DecodeError as error:
            raise RpcFailed(f"the answer to {method} cannot be read: {error}") from error

    async def _read_answer(self, number: int, method: str) -> RpcResponse:
        while True:
            match await self.read_message(method):
                case RpcResponse(id=found) as response if found == number:
                    return response
                # An error without a number: the daemon could not read the request.
                case RpcFailure(id=found, error=error) if found in {number, None}:
                    refused = RpcRefused(error.message, number=error.code, data=error.data)
                    raise from_refusal(refused)
                case _:
                    continue

    def find_daemon(self) -> tuple[int, bool]:
        """The process that listens, by what the kernel says, and whether it is stopped."""
        pid = read_peer_pid(self._writer.get_extra_info("socket"))
        return pid, is_stopped(pid)

    def _describe_silence(self) -> str:
        pid, is_halted = self.find_daemon()
        return describe_silent_daemon(pid, is_stopped=is_halted)

    async def _send(self, line: bytes, method: str) -> None:
        try:
            self._writer.write(line)
            await self._writer.drain()
        except OSError as broken:
            raise RpcClosed(method) from broken

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_CHUNK_BYTES)
        except OSError:
            # A broken connection has ended.
            return b""


async def _open_socket(home: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        connection = _connect(home)
    except BlockingIOError as error:
        raise _build_silence(home, _read_lock(home), "its queue of callers is full") from error
    except OSError as error:
        raise DaemonUnreachable(home, found=os.strerror(error.errno or 0)) from error
    return await asyncio.open_unix_connection(sock=connection)


def _connect(home: Path) -> socket.socket:
    """Connect at once, or raise `BlockingIOError` if no more callers can wait. asyncio would take
    that error for a connection that is being made."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with shorten_path(locate_folder(home)) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


async def _greet(home: Path, connection: DaemonConnection) -> None:
    try:
        await connection.request("hello", HelloRequest(__version__), seconds=HELLO_SECONDS)
    except RpcRefused:
        raise
    except RpcTimeout as error:
        raise _build_silence(home, connection.find_daemon()[0], error.message) from error
    except RpcFailed as error:
        raise DaemonUnreachable(home, found=str(error)) from error


def _build_silence(home: Path, pid: int | None, found: str) -> DaemonNotAnswering:
    is_halted = pid is not None and is_stopped(pid)
    return DaemonNotAnswering(home, pid=pid, is_stopped=is_halted, found=found)


def _read_lock(home: Path) -> int | None:
    """The process id of the daemon, as it has written it to its lock."""
    try:
        text = locate_lock(home).read_text(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
