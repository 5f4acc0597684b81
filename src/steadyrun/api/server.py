"""Serves operations on a unix socket: lines of JSON-RPC, from processes of the same user only.

The first call is `hello`. A stream is answered with its start; then every event is sent as the
notification `event`, and `end` after the last one. A connection has at most one stream, so that a
slow reader delays its own stream only. The requests of a connection are executed in their order.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct

from steadyrun.api.errors import to_document, to_refusal
from steadyrun.errors import (
    ChangeRefused,
    InvalidUsage,
    NotAllowed,
    RpcClosed,
    RpcRefused,
    SteadyrunError,
    VersionMismatch,
)
from steadyrun.lib import jsonrpc
from steadyrun.lib.jsonrpc import RpcNotification, RpcRequest
from steadyrun.lib.jsonrpc_server import RpcConnection, RpcService
from steadyrun.lib.processes.peer import PeerProcess, open_peer
from steadyrun.lib.safe_paths import make_directory
from steadyrun.lib.task_group import task_group
from steadyrun.lib.unix_socket import shorten_path
from steadyrun.model.event_json import to_public
from steadyrun.operations.access.caller import require_same_user
from steadyrun.operations.access.execution import call_for
from steadyrun.operations.context import OperationContext
from steadyrun.operations.events import EventFeed
from steadyrun.operations.registry import BY_NAME
from steadyrun.version import __version__

LONGEST_LINE_BYTES = 8 * 1024 * 1024
# A caller of another version can still stop the daemon, to start a new one.
WITHOUT_HELLO = "daemon.stop"
_BACKLOG = 128
_ACCEPT_RETRY_SECONDS = 1.0

# Logs a failure: the method, and its error.
ErrorReporter = Callable[[str, Exception], None]


class HelloRequest(Struct, frozen=True, forbid_unknown_fields=True):
    version: str


def locate_folder(home: Path) -> Path:
    return home / "daemon"


def locate_lock(home: Path) -> Path:
    """The file that a running daemon has locked. It contains the process id."""
    return locate_folder(home) / "lock"


@asynccontextmanager
async def serve(context: OperationContext, report: ErrorReporter) -> AsyncIterator[None]:
    """Serve calls until the block ends. The process must have the lock of the daemon."""
    file = locate_folder(context.home) / "socket"
    listener = await anyio.to_thread.run_sync(_bind, locate_folder(context.home))
    inode = _find_inode(file)
    try:
        async with task_group() as tasks:
            tasks.start_soon(_accept_all, listener, context, report)
            yield
            tasks.cancel_scope.cancel()
    finally:
        listener.close()
        # If another daemon has replaced the socket in between, its socket is kept.
        if _find_inode(file) == inode:
            file.unlink(missing_ok=True)


def _find_inode(file: Path) -> int | None:
    try:
        return file.stat().st_ino
    except FileNotFoundError:
        return None


def _bind(folder: Path) -> socket.socket:
    make_directory(folder)
    folder.chmod(0o700)
    (folder / "socket").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with shorten_path(folder) as path:
        listener.bind(path)
        Path(path).chmod(0o600)
    listener.listen(_BACKLOG)
    return listener


async def _accept_all(
    listener: socket.socket, context: OperationContext, report: ErrorReporter
) -> None:
    loop = asyncio.get_running_loop()
    async with task_group() as tasks:
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # No free descriptors, for example. The caller waits until the next attempt.
                report("accept", error)
                await anyio.sleep(_ACCEPT_RETRY_SECONDS)
            else:
                tasks.start_soon(_serve_safely, connection, context, report)


async def _serve_safely(
    connection: socket.socket, context: OperationContext, report: ErrorReporter
) -> None:
    try:
        await _serve_caller(connection, context, report)
    except Exception as bug:  # noqa: BLE001 (a bug in one connection must not end the others)
        report("connection", bug)


async def _serve_caller(
    accepted: socket.socket, context: OperationContext, report: ErrorReporter
) -> None:
    """Serve one caller until its connection ends."""
    accepted.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=accepted)
    with open_peer(accepted) as peer:
        try:
            require_same_user(peer)
        except NotAllowed as error:
            await _refuse(writer, error)
            return
        async with task_group() as tasks:
            session = CallerSession(context, peer, tasks, report)
            connection = RpcConnection(reader, writer, session, longest_line=LONGEST_LINE_BYTES)
            session.connection = connection
            await connection.serve()
            tasks.cancel_scope.cancel()


async def _refuse(writer: asyncio.StreamWriter, problem: NotAllowed) -> None:
    refusal = to_refusal(problem)
    error = jsonrpc.RpcError(refusal.number, refusal.problem, refusal.data)
    writer.write(jsonrpc.encode_failure(None, error))
    with contextlib.suppress(OSError):
        await writer.drain()
    writer.close()


class CallerSession(RpcService):
    """Serves one connection: checks `hello`, runs operations and sends at most one stream."""

    def __init__(
        self,
        context: OperationContext,
        process: PeerProcess,
        tasks: TaskGroup,
        report: ErrorReporter,
    ) -> None:
        self._context, self._process = context, process
        self._tasks, self._report = tasks, report
        self._is_greeted, self._has_stream = False, False
        self.connection: RpcConnection

    async def answer(self, request: RpcRequest) -> Any:
        try:
            if request.method == "hello":
                return self._greet(request.decode_params(HelloRequest))
            return await self._run_operation(request)
        except RpcRefused:
            raise
        except SteadyrunError as error:
            raise to_refusal(error) from error

    def on_error(self, message: RpcRequest | RpcNotification, error: Exception) -> None:
        self._report(message.method, error)

    def _greet(self, hello: HelloRequest) -> dict[str, Any]:
        if _parse_release_line(hello.version) != _parse_release_line(__version__):
            raise VersionMismatch(daemon=__version__, ours=hello.version)
        self._is_greeted = True
        return {"version": __version__}

    async def _run_operation(self, request: RpcRequest) -> Any:
        operation = BY_NAME.get(request.method)
        if operation is None:
            return await super().answer(request)
        if not self._is_greeted and operation.name != WITHOUT_HELLO:
            raise InvalidUsage(f"expected hello first, found {operation.name}")
        try:
            params = request.decode_params(operation.request)
        except msgspec.DecodeError as error:
            raise InvalidUsage(f"{operation.name}: {error}") from error
        answer = await call_for(self._process, self._context, operation, params)
        return self._start_stream(answer) if isinstance(answer, EventFeed) else answer

    def _start_stream(self, stream: EventFeed) -> Struct:
        if self._has_stream:
            raise ChangeRefused("events.follow", found="this connection has a stream already")
        self._has_stream = True
        # The answer is written before any other task runs, so no event comes before it.
        self._tasks.start_soon(self._send_events, stream)
        return stream.answer

    async def _send_events(self, stream: EventFeed) -> None:
        with contextlib.suppress(RpcClosed):
            try:
                async with aclosing(stream.events) as events:
                    async for event in events:
                        await self.connection.notify("event", to_public(event))
            except RpcClosed:
                raise
            except SteadyrunError as error:
                await self.connection.notify("end", {"error": to_document(error)})
            else:
                await self.connection.notify("end", {"error": None})


def _parse_release_line(version: str) -> str:
    """Return the compatible release line: the first number, before 1.0 the first two."""
    major, _, rest = version.partition(".")
    return f"0.{rest.partition('.')[0]}" if major == "0" else major
