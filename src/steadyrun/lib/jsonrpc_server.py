"""Answers JSON-RPC requests on a pair of streams, in their order, and sends notifications.

A request starts when the one before it was answered. A line that is not a request is answered with
an error at once: its sender may be waiting for an answer.
"""

import asyncio
from contextlib import suppress
from typing import Any, assert_never

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import DecodeError, ValidationError

from steadyrun.errors import RpcClosed, RpcRefused
from steadyrun.lib import jsonrpc
from steadyrun.lib.framing import LineSplitter
from steadyrun.lib.jsonrpc import (
    RpcError,
    RpcFailure,
    RpcNotification,
    RpcRequest,
    RpcResponse,
)

_CHUNK_BYTES = 64 * 1024
# So many requests wait at most: further lines are not read until one of them was answered.
MOST_WAITING = 64


class RpcService:
    """Handles requests of the other side. This base class has no methods."""

    async def answer(self, request: RpcRequest) -> Any:
        """The result. `RpcRefused` becomes the error it names, all else an internal error."""
        raise RpcRefused(f"no method {request.method!r}", number=jsonrpc.METHOD_NOT_FOUND)

    def on_notification(self, notification: RpcNotification) -> None:
        """Handle a notification as soon as it is read. `RpcRefused` is sent as an error."""
        problem = f"expected a request with an id, found the notification {notification.method!r}"
        raise RpcRefused(problem, number=jsonrpc.INVALID_REQUEST)

    def on_error(self, message: RpcRequest | RpcNotification, error: Exception) -> None:
        """Handle a bug in a handler. The other side gets an internal error without details."""


class RpcConnection:
    """The server's end of a connection. Requests are answered while `serve` runs."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        service: RpcService | None = None,
        *,
        longest_line: int | None = None,
    ) -> None:
        """With `longest_line`, a longer line is refused and the connection ends."""
        self._reader, self._writer = reader, writer
        self._longest_line = longest_line
        self._service = service or RpcService()
        self._scope = anyio.CancelScope()
        self._is_closed = False

    async def serve(self) -> None:
        """Serve the other side until it ends; requests that are not answered are cancelled."""
        waiting, requests = anyio.create_memory_object_stream[RpcRequest](MOST_WAITING)
        try:
            with self._scope, waiting, requests:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._answer_all, requests)
                    await self._receive_all(waiting)
                    tasks.cancel_scope.cancel()
        finally:
            self.close()

    async def notify(self, method: str, params: Any = None) -> None:
        line = jsonrpc.encode_notification(method, params)
        await self._send(line, method)

    def close(self) -> None:
        """End `serve`."""
        self._is_closed = True
        self._writer.close()
        self._scope.cancel()

    async def _receive_all(self, waiting: MemoryObjectSendStream[RpcRequest]) -> None:
        lines = LineSplitter()
        while chunk := await self._read():
            for frame in lines.feed(chunk):
                await self._receive(frame.raw, waiting)
            if self._longest_line is not None and lines.open_bytes > self._longest_line:
                await self._refuse_length(self._longest_line)
                return
        if rest := lines.read_rest():
            await self._receive(rest.raw, waiting)

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_CHUNK_BYTES)
        except OSError:
            # A connection that broke has ended.
            return b""

    async def _receive(self, raw: bytes, waiting: MemoryObjectSendStream[RpcRequest]) -> None:
        try:
            message = jsonrpc.decode(raw)
        except DecodeError as error:
            await self._refuse(RpcError(_find_code(error), str(error)))
            return
        match message:
            case RpcRequest():
                await waiting.send(message)
            case RpcNotification():
                await self._handle_notification(message)
            case RpcResponse() | RpcFailure():
                problem = "expected a request, found an answer"
                await self._refuse(RpcError(jsonrpc.INVALID_REQUEST, problem))
            case _:
                assert_never(message)

    async def _refuse(self, error: RpcError) -> None:
        """Send an error about a line that has no id."""
        with suppress(RpcClosed):
            await self._send(jsonrpc.encode_failure(None, error), "the refusal")

    async def _refuse_length(self, most: int) -> None:
        problem = f"expected a line of at most {most} bytes"
        await self._refuse(RpcError(jsonrpc.INVALID_REQUEST, problem))

    async def _handle_notification(self, notification: RpcNotification) -> None:
        try:
            self._service.on_notification(notification)
        except RpcRefused as refused:
            await self._refuse(RpcError(refused.number, refused.problem, refused.data))
        except Exception as bug:  # noqa: BLE001 (a bug in one handler is not the end of the others)
            self._service.on_error(notification, bug)

    async def _answer_all(self, requests: MemoryObjectReceiveStream[RpcRequest]) -> None:
        async for request in requests:
            await self._answer(request)

    async def _answer(self, request: RpcRequest) -> None:
        try:
            line = await self._build_answer(request)
        except Exception as bug:  # noqa: BLE001 (a bug in one handler is not the end of the others)
            self._service.on_error(request, bug)
            line = self._encode_failure(request, RpcError(jsonrpc.INTERNAL_ERROR, "internal error"))
        with suppress(RpcClosed):
            await self._send(line, request.method)

    async def _build_answer(self, request: RpcRequest) -> bytes:
        try:
            value = await self._service.answer(request)
        except RpcRefused as refused:
            error = RpcError(refused.number, refused.problem, refused.data)
            return self._encode_failure(request, error)
        except DecodeError as mismatch:
            return self._encode_failure(request, RpcError(jsonrpc.INVALID_PARAMS, str(mismatch)))
        return jsonrpc.encode_result(request.id, value)

    def _encode_failure(self, request: RpcRequest, error: RpcError) -> bytes:
        return jsonrpc.encode_failure(request.id, error)

    async def _send(self, line: bytes, method: str) -> None:
        if self._is_closed:
            raise RpcClosed(method)
        try:
            self._writer.write(line)
            await self._writer.drain()
        except OSError as broken:
            raise RpcClosed(method) from broken


def _find_code(error: DecodeError) -> int:
    """The code of a line that is not JSON, or of a document that is not a message."""
    is_json = isinstance(error, ValidationError)
    return jsonrpc.INVALID_REQUEST if is_json else jsonrpc.PARSE_ERROR
