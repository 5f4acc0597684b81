"""Calls between two processes: JSON-RPC over a pair of streams, in both directions."""

import asyncio
from contextlib import suppress
from itertools import count
from typing import Any, assert_never

import anyio
from anyio.abc import TaskGroup
from msgspec import DecodeError

from steadyrun.errors import RpcClosed, RpcRefused, RpcTimeout
from steadyrun.lib import jsonrpc
from steadyrun.lib.framing import LineSplitter
from steadyrun.lib.jsonrpc import (
    RpcError,
    RpcFailure,
    RpcId,
    RpcNotification,
    RpcRequest,
    RpcResponse,
)

_CHUNK_BYTES = 64 * 1024


class RpcService:
    """Handles requests of the other side. This base class has no methods."""

    async def answer(self, request: RpcRequest) -> Any:
        """The result. `RpcRefused` becomes the error it names, all else an internal error."""
        raise RpcRefused(f"no method {request.method!r}", number=jsonrpc.METHOD_NOT_FOUND)

    def on_notification(self, notification: RpcNotification) -> None:
        """Handle a notification. Called in the order of the lines, so it should be quick."""

    def on_stray_line(self, raw: bytes) -> None:
        """Handle a line that is not a message, or an answer without a pending request."""

    def on_error(self, message: RpcRequest | RpcNotification, error: Exception) -> None:
        """Handle a bug in a handler. The other side gets an internal error without details."""


class RpcPeer:
    """One end of a connection. Calls are answered while `serve` runs, and fail when it ends."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        service: RpcService | None = None,
        *,
        with_version: bool = True,
        longest_line: int | None = None,
    ) -> None:
        """With `longest_line`, a longer line is refused and the connection ends."""
        self._reader, self._writer = reader, writer
        self._longest_line = longest_line
        self._service = service or RpcService()
        self._with_version = with_version
        self._numbers = count(1)
        self._pending: dict[RpcId, asyncio.Future[RpcResponse | RpcFailure | None]] = {}
        self._scope = anyio.CancelScope()
        self._is_closed = False

    async def serve(self) -> None:
        """Serve the other side until it ends; requests that are still running are cancelled."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    await self._receive_all(tasks)
                    tasks.cancel_scope.cancel()
        finally:
            self.close()

    async def call(self, method: str, params: Any = None, *, seconds: float) -> RpcResponse:
        number = next(self._numbers)
        line = jsonrpc.encode_request(number, method, params, with_version=self._with_version)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            with anyio.move_on_after(seconds):
                await self._send(line, method)
                return _require_response(method, await answer)
        finally:
            del self._pending[number]
        raise RpcTimeout(method, seconds=seconds)

    async def notify(self, method: str, params: Any = None) -> None:
        line = jsonrpc.encode_notification(method, params, with_version=self._with_version)
        await self._send(line, method)

    def close(self) -> None:
        """End `serve`, and fail what is pending."""
        self._is_closed = True
        self._writer.close()
        self._scope.cancel()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_result(None)

    async def _receive_all(self, tasks: TaskGroup) -> None:
        lines = LineSplitter()
        while chunk := await self._read():
            for frame in lines.feed(chunk):
                await self._receive(frame.raw, tasks)
            if self._longest_line is not None and lines.open_bytes > self._longest_line:
                await self._refuse_length(self._longest_line)
                return
        if rest := lines.read_rest():
            await self._receive(rest.raw, tasks)

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_CHUNK_BYTES)
        except OSError:
            # A connection that broke has ended.
            return b""

    async def _receive(self, raw: bytes, tasks: TaskGroup) -> None:
        try:
            message = jsonrpc.decode(raw)
        except DecodeError:
            self._refuse(raw)
            return
        match message:
            case RpcRequest():
                tasks.start_soon(self._answer, message)
                # It has started before the next line is read, which may cancel it.
                await asyncio.sleep(0)
            case RpcNotification():
                self._handle_notification(message)
            case RpcResponse() | RpcFailure():
                self._settle(message, raw)
            case _:
                assert_never(message)

    def _refuse(self, raw: bytes) -> None:
        self._service.on_stray_line(raw)
        if jsonrpc.is_batch(raw):
            # The only valid message that is not supported: the peer waits for an answer.
            error = RpcError(jsonrpc.INVALID_REQUEST, jsonrpc.BATCH_REFUSED)
            self._writer.write(jsonrpc.encode_failure(None, error, with_version=self._with_version))

    async def _refuse_length(self, most: int) -> None:
        error = RpcError(jsonrpc.INVALID_REQUEST, f"expected a line of at most {most} bytes")
        with suppress(RpcClosed):
            await self._send(jsonrpc.encode_failure(None, error), "the refusal")

    def _handle_notification(self, notification: RpcNotification) -> None:
        try:
            self._service.on_notification(notification)
        except Exception as bug:  # noqa: BLE001 (a bug in one handler is not the end of the others)
            self._service.on_error(notification, bug)

    def _settle(self, message: RpcResponse | RpcFailure, raw: bytes) -> None:
        answer = self._pending.get(message.id)
        if answer is None or answer.done():
            self._service.on_stray_line(raw)
        else:
            answer.set_result(message)

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
        return jsonrpc.encode_result(request.id, value, with_version=self._with_version)

    def _encode_failure(self, request: RpcRequest, error: RpcError) -> bytes:
        return jsonrpc.encode_failure(request.id, error, with_version=self._with_version)

    async def _send(self, line: bytes, method: str) -> None:
        if self._is_closed:
            raise RpcClosed(method)
        try:
            self._writer.write(line)
            await self._writer.drain()
        except OSError as broken:
            raise RpcClosed(method) from broken


def _require_response(method: str, answer: RpcResponse | RpcFailure | None) -> RpcResponse:
    if answer is None:
        raise RpcClosed(method)
    if isinstance(answer, RpcFailure):
        error = answer.error
        raise RpcRefused(error.message, number=error.code, data=error.data)
    return answer
