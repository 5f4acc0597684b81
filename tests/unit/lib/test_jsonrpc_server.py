"""Requests on a real socket are answered: in order, malformed, and until the client is gone."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec import Struct

from steadyrun.errors import RpcClosed, RpcRefused
from steadyrun.lib.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RpcNotification,
    RpcRequest,
)
from steadyrun.lib.jsonrpc_server import MOST_WAITING, RpcConnection, RpcService

PATIENCE_SECONDS = 30.0
LONGEST_LINE_BYTES = 8_000_000


class Sum(Struct, frozen=True):
    left: int
    right: int = 0


class RecordingService(RpcService):
    """A service with methods that add, wait, refuse and fail; it records all notifications."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.broken: list[str] = []
        self.is_open = anyio.Event()
        self.was_cancelled = anyio.Event()

    async def answer(self, request: RpcRequest) -> Any:
        self.heard.append(request.method)
        match request.method:
            case "add":
                wanted = request.decode_params(Sum)
                return wanted.left + wanted.right
            case "wait":
                return await self._wait()
            case "refuse":
                raise RpcRefused("not today", number=-5, data={"until": "monday"})
            case "break":
                raise LookupError("secret: hunter2")
            case "unspeakable":
                return object()
            case "unspeakably refuse":
                raise RpcRefused("no", number=1, data=object())
            case _:
                return await super().answer(request)

    def on_notification(self, notification: RpcNotification) -> None:
        self.heard.append(notification.method)
        if notification.method == "open":
            self.is_open.set()
        if notification.method == "break":
            raise LookupError("secret: hunter2")

    def on_error(self, message: RpcRequest | RpcNotification, error: Exception) -> None:
        self.broken.append(f"{message.method}: {type(error).__name__}")

    async def _wait(self) -> str:
        try:
            await self.is_open.wait()
        except BaseException:
            self.was_cancelled.set()
            raise
        return "opened"


class Echo(RpcService):
    async def answer(self, request: RpcRequest) -> Any:
        return request.params


class LongAnswers(RpcService):
    """Answers with a megabyte, and counts the requests that it has taken."""

    def __init__(self) -> None:
        self.count = 0

    async def answer(self, request: RpcRequest) -> Any:
        self.count += 1
        return "x" * 1_000_000


class Wire:
    """The client's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, line: bytes) -> None:
        self.writer.write(line + b"\n")

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = msgspec.json.decode(await self.reader.readline())
        return message


def run(use: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            await use()

    anyio.run(main)


@asynccontextmanager
async def serving(service: RpcService | None = None) -> AsyncIterator[tuple[RpcConnection, Wire]]:
    """A connection that serves, and the other end of its socket."""
    near, far = socket.socketpair()
    wire = Wire(*await asyncio.open_connection(sock=far, limit=LONGEST_LINE_BYTES))
    peer = RpcConnection(*await asyncio.open_connection(sock=near), service)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.serve)
        try:
            yield peer, wire
        finally:
            peer.close()
            wire.writer.close()


def test_requests_of_a_connection_are_answered_in_their_order() -> None:
    async def main() -> None:
        desk = RecordingService()
        async with serving(desk) as (_, wire):
            wire.send(b'{"id":1,"method":"wait"}\n{"id":2,"method":"add","params":{"left":3}}')
            await until(lambda: desk.heard == ["wait"])
            wire.send(b'{"method":"open"}')
            assert await wire.receive() == {"jsonrpc": "2.0", "id": 1, "result": "opened"}
            assert await wire.receive() == {"jsonrpc": "2.0", "id": 2, "result": 3}

        assert desk.heard == ["wait", "open", "add"]

    run(main)


def test_many_requests_wait_in_the_socket_and_are_all_answered() -> None:
    async def main() -> None:
        async with serving(RecordingService()) as (_, wire):
            for number in range(500):
                params = {"left": number}
                line = {"id": number, "method": "add", "params": params}
                wire.send(msgspec.json.encode(line))
            found = [(await wire.receive())["result"] for _ in range(500)]

        assert found == list(range(500))

    run(main)


def test_lines_of_any_length_are_transferred() -> None:
    async def main() -> None:
        text = ["x" * 3_000_000]
        async with serving(Echo()) as (_, wire):
            wire.send(msgspec.json.encode({"id": 1, "method": "echo", "params": text}))
            assert (await wire.receive())["result"] == text

    run(main)


@pytest.mark.parametrize("id_", [0, -1, 2**70, "1", "", None])
def test_answer_has_the_id_of_its_request(id_: object) -> None:
    async def main() -> None:
        async with serving(RecordingService()) as (_, wire):
            wire.send(msgspec.json.encode({"id": id_, "method": "add", "params": {"left": 1}}))

            assert await wire.receive() == {"jsonrpc": "2.0", "id": id_, "result": 1}

    run(main)


REFUSALS: dict[str, tuple[RpcService, dict[str, Any], dict[str, Any]]] = {
    "refused by the service": (
        RecordingService(),
        {"method": "refuse"},
        {"code": -5, "message": "not today", "data": {"until": "monday"}},
    ),
    "a service without methods": (
        RpcService(),
        {"method": "m"},
        {"code": METHOD_NOT_FOUND, "message": "no method 'm'"},
    ),
    "parameters of the wrong type": (
        RecordingService(),
        {"method": "add", "params": {"left": "1"}},
        {"code": INVALID_PARAMS, "message": "Expected `int`, got `str` - at `$.left`"},
    ),
}


@pytest.mark.parametrize(("service", "request_", "error"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusal_is_an_error_in_the_answer(
    service: RpcService, request_: dict[str, Any], error: dict[str, Any]
) -> None:
    async def main() -> None:
        async with serving(service) as (_, wire):
            wire.send(msgspec.json.encode({"id": 1, **request_}))

            assert await wire.receive() == {"jsonrpc": "2.0", "id": 1, "error": error}

    run(main)


@pytest.mark.parametrize("method", ["break", "unspeakable", "unspeakably refuse"])
def test_bug_in_a_service_is_an_internal_error_without_details(method: str) -> None:
    async def main() -> None:
        desk = RecordingService()
        async with serving(desk) as (_, wire):
            wire.send(msgspec.json.encode({"id": 1, "method": method}))

            error = {"code": INTERNAL_ERROR, "message": "internal error"}
            assert await wire.receive() == {"jsonrpc": "2.0", "id": 1, "error": error}

        assert [line.split(":")[0] for line in desk.broken] == [method]

    run(main)


def test_bug_in_a_notification_handler_is_reported_and_reading_continues() -> None:
    async def main() -> None:
        desk = RecordingService()
        async with serving(desk) as (_, wire):
            wire.send(b'{"method":"break"}\n{"method":"open"}')
            await desk.is_open.wait()

        assert desk.broken == ["break: LookupError"]

    run(main)


ODD_LINES = {
    b"Starting...": PARSE_ERROR,
    b'{"id":1,"method":': PARSE_ERROR,
    b"\x00\xff\x16\x03": PARSE_ERROR,
    b"[" * 100_000: INVALID_REQUEST,
    b'"text"': INVALID_REQUEST,
    b'{"type":"log"}': INVALID_REQUEST,
    b'{"id":1}': INVALID_REQUEST,
    b'{"id":1,"method":7}': INVALID_REQUEST,
    b'{"id":[1],"method":"add"}': INVALID_REQUEST,
    b'{"jsonrpc":"1.0","id":1,"method":"add"}': INVALID_REQUEST,
    b'{"id":1,"result":2}': INVALID_REQUEST,
    b'{"id":true,"result":3}': INVALID_REQUEST,
}


@pytest.mark.parametrize(("line", "code"), ODD_LINES.items(), ids=lambda value: repr(value)[:30])
def test_line_that_is_no_request_is_answered_with_an_error(line: bytes, code: int) -> None:
    async def main() -> None:
        async with serving(RecordingService()) as (_, wire):
            wire.send(line)
            refusal = await wire.receive()
            wire.send(b'{"id":1,"method":"add","params":{"left":1}}')

            assert (await wire.receive())["result"] == 1

        assert (refusal["id"], refusal["error"]["code"]) == (None, code)
        assert refusal["error"]["message"]

    run(main)


def test_notification_is_answered_with_an_error_if_none_is_expected() -> None:
    async def main() -> None:
        async with serving(Echo()) as (_, wire):
            wire.send(b'{"method":"add"}')
            refusal = await wire.receive()

        assert (refusal["id"], refusal["error"]["code"]) == (None, INVALID_REQUEST)
        assert "'add'" in refusal["error"]["message"]

    run(main)


@pytest.mark.parametrize("line", [b"half a", b'{"id":1,"meth', b"\xff\xfe"])
def test_half_a_line_before_the_end_of_the_client_is_answered_and_the_connection_ends(
    line: bytes,
) -> None:
    async def main() -> None:
        async with serving(RecordingService()) as (_, wire):
            wire.writer.write(line)
            wire.writer.write_eof()
            refusal = await wire.receive()

            assert refusal["error"]["code"] == PARSE_ERROR
            assert await wire.reader.read() == b""

    run(main)


def test_batch_is_answered_with_a_refusal() -> None:
    async def main() -> None:
        async with serving(RecordingService()) as (_, wire):
            wire.send(b'[{"id":1,"method":"add"}]')

            answer = await wire.receive()

        assert (answer["id"], answer["error"]["code"]) == (None, INVALID_REQUEST)
        assert "batches are not supported" in answer["error"]["message"]

    run(main)


def test_version_can_be_left_out_by_the_client() -> None:
    async def main() -> None:
        async with serving(RecordingService()) as (_, wire):
            wire.send(b'{"id":1,"method":"add","params":{"left":1}}')
            wire.send(b'{"id":2,"method":"refuse"}')

            lines = [await wire.receive() for _ in range(2)]

        assert [line.keys() - {"jsonrpc"} for line in lines] == [{"id", "result"}, {"error", "id"}]

    run(main)


def test_nothing_can_be_sent_after_the_end_of_the_client() -> None:
    async def main() -> None:
        async with serving(RecordingService()) as (peer, wire):
            wire.writer.close()
            with pytest.raises(RpcClosed, match="before late was answered"):
                await notify_forever(peer)

    run(main)


def test_close_cancels_running_answers() -> None:
    async def main() -> None:
        desk = RecordingService()
        async with serving(desk) as (peer, wire):
            wire.send(b'{"id":1,"method":"wait"}')
            await until(lambda: desk.heard == ["wait"])
            peer.close()
            await desk.was_cancelled.wait()
            with pytest.raises(RpcClosed):
                await peer.notify("late")

    run(main)


def test_requests_of_a_client_that_reads_no_answers_are_not_taken_without_limit() -> None:
    async def main() -> None:
        service, sent = LongAnswers(), 3 * MOST_WAITING
        async with serving(service) as (_, wire):
            for number in range(sent):
                wire.send(b'{"id":%d,"method":"any"}' % number)
            await until(lambda: service.count >= 1)
            # The client's reader holds some answers; what is beyond that waits.
            for _ in range(1000):
                await anyio.lowlevel.checkpoint()
            assert service.count < sent

            answers = [await wire.receive() for _ in range(sent)]

        assert [answer["id"] for answer in answers] == list(range(sent))

    run(main)


def test_last_line_may_lack_its_line_break() -> None:
    async def main() -> None:
        desk = RecordingService()
        async with serving(desk) as (_, wire):
            wire.writer.write(b'{"method":"open"}')
            wire.writer.write_eof()
            await desk.is_open.wait()

    run(main)


async def notify_forever(peer: RpcConnection) -> None:
    while True:
        await peer.notify("late")


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await anyio.lowlevel.checkpoint()
