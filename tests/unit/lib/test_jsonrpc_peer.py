"""Two ends of a real socket call each other, out of order, badly and until one of them is gone."""

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

from steadyrun.errors import RpcClosed, RpcRefused, RpcTimeout
from steadyrun.lib.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RpcNotification,
    RpcRequest,
)
from steadyrun.lib.jsonrpc_peer import RpcPeer, RpcService

PATIENCE_SECONDS = 30.0


class Sum(Struct, frozen=True):
    left: int
    right: int = 0


class Desk(RpcService):
    """Adds, waits, refuses and breaks, and writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.strays: list[bytes] = []
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

    def on_stray_line(self, raw: bytes) -> None:
        self.strays.append(raw)

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


class Wire:
    """The bare other end, for what no Peer would send."""

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
async def serving(
    service: RpcService | None = None, *, with_version: bool = True
) -> AsyncIterator[tuple[RpcPeer, Wire]]:
    """A peer that serves, and the bare other end of its socket."""
    near, far = socket.socketpair()
    wire = Wire(*await asyncio.open_connection(sock=far))
    peer = RpcPeer(*await asyncio.open_connection(sock=near), service, with_version=with_version)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.serve)
        try:
            yield peer, wire
        finally:
            peer.close()
            wire.writer.close()


@asynccontextmanager
async def both(near: RpcService, far: RpcService) -> AsyncIterator[tuple[RpcPeer, RpcPeer]]:
    async with serving(near) as (peer, wire), anyio.create_task_group() as tasks:
        other = RpcPeer(wire.reader, wire.writer, far)
        tasks.start_soon(other.serve)
        yield peer, other
        other.close()


async def outcomes(*calls: Awaitable[object]) -> list[object]:
    """What each call came to, all of them made at once."""
    found: list[object] = [None] * len(calls)

    async def wait(place: int, call: Awaitable[object]) -> None:
        try:
            found[place] = await call
        except (RpcRefused, RpcTimeout, RpcClosed) as error:
            found[place] = type(error)

    async with anyio.create_task_group() as tasks:
        for place, call in enumerate(calls):
            tasks.start_soon(wait, place, call)
    return found


def test_both_ends_call_at_the_same_time() -> None:
    async def main() -> None:
        async def add(peer: RpcPeer, left: int, right: int) -> int:
            answer = await peer.call("add", Sum(left, right), seconds=PATIENCE_SECONDS)
            return answer.decode_result(int)

        async with both(Desk(), Desk()) as (near, far):
            calls = [add(peer, n, 1000) for n in range(100) for peer in (near, far)]
            assert await outcomes(*calls) == [n + 1000 for n in range(100) for _ in range(2)]

    run(main)


def test_slow_answer_does_not_delay_other_requests() -> None:
    async def main() -> None:
        desk = Desk()

        async def add_then_open() -> int:
            answer = await near.call("add", Sum(1, 2), seconds=PATIENCE_SECONDS)
            await near.notify("open")
            return answer.decode_result(int)

        async def wait() -> str:
            return (await near.call("wait", seconds=PATIENCE_SECONDS)).decode_result(str)

        async with both(RpcService(), desk) as (near, _):
            assert await outcomes(wait(), add_then_open()) == ["opened", 3]

    run(main)


def test_lines_of_any_length_pass() -> None:
    async def main() -> None:
        text = ["x" * 3_000_000]
        async with both(RpcService(), Echo()) as (near, _):
            answer = await near.call("echo", text, seconds=PATIENCE_SECONDS)
        assert answer.decode_result(list) == text

    run(main)


def test_request_starts_before_the_next_line_is_read() -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(desk) as (_, wire):
            wire.send(b'{"id":1,"method":"wait"}\n{"method":"open"}\n{"id":2,"method":"add"}')

            answers = [await wire.receive(), await wire.receive()]

        assert desk.heard == ["wait", "open", "add"]
        assert {"jsonrpc": "2.0", "id": 1, "result": "opened"} in answers

    run(main)


@pytest.mark.parametrize("id_", [0, -1, 2**70, "1", "", None])
def test_an_answer_has_the_id_of_its_request(id_: object) -> None:
    async def main() -> None:
        async with serving(Desk()) as (_, wire):
            wire.send(msgspec.json.encode({"id": id_, "method": "add", "params": {"left": 1}}))

            assert await wire.receive() == {"jsonrpc": "2.0", "id": id_, "result": 1}

    run(main)


def test_ids_of_another_type_answer_nothing() -> None:
    async def main() -> None:
        desk = Desk()
        odd = [
            b'{"id":"1","result":"text"}',
            b'{"id":true,"result":"bool"}',
            b'{"id":1.0,"result":"float"}',
            b'{"id":null,"error":{"code":1,"message":"null"}}',
            b'{"id":2,"result":"another"}',
        ]

        async def answer(wire: Wire) -> None:
            assert (await wire.receive())["id"] == 1
            for line in [*odd, b'{"id":1,"result":"int"}', b'{"id":1,"result":"twice"}']:
                wire.send(line)

        async with serving(desk) as (peer, wire), anyio.create_task_group() as tasks:
            tasks.start_soon(answer, wire)
            response = await peer.call("m", seconds=PATIENCE_SECONDS)
            await until(lambda: len(desk.strays) == 6)

        assert response.decode_result(str) == "int"
        assert desk.strays == [*odd, b'{"id":1,"result":"twice"}']

    run(main)


def test_an_answer_that_comes_too_late_is_reported() -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(desk) as (peer, wire):
            with pytest.raises(RpcTimeout, match="no answer to slow within"):
                await peer.call("slow", seconds=0.01)
            wire.send(b'{"id":1,"result":"at last"}')
            await until(lambda: bool(desk.strays))

        assert desk.strays == [b'{"id":1,"result":"at last"}']

    run(main)


def test_a_timeout_ends_a_call_that_could_not_even_be_sent() -> None:
    async def main() -> None:
        async with serving() as (peer, _):
            with pytest.raises(RpcTimeout):
                await peer.call("m", "x" * 10_000_000, seconds=0.05)

    run(main)


def test_a_cancelled_call_is_forgotten() -> None:
    async def main() -> None:
        async with serving() as (peer, _):
            with anyio.move_on_after(0.01):
                await peer.call("m", seconds=PATIENCE_SECONDS)

            assert peer._pending == {}

    run(main)


def test_a_refusal_is_raised_where_the_call_was_made() -> None:
    async def main() -> None:
        async with both(RpcService(), Desk()) as (near, _):
            with pytest.raises(RpcRefused, match="not today") as caught:
                await near.call("refuse", seconds=PATIENCE_SECONDS)

        assert (caught.value.number, caught.value.data) == (-5, {"until": "monday"})

    run(main)


def test_service_without_methods_refuses_every_request() -> None:
    async def main() -> None:
        async with both(RpcService(), RpcService()) as (near, _):
            await near.notify("anything")
            with pytest.raises(RpcRefused, match="no method 'm'") as caught:
                await near.call("m", seconds=PATIENCE_SECONDS)

        assert caught.value.number == METHOD_NOT_FOUND

    run(main)


def test_parameters_of_the_wrong_type_are_refused() -> None:
    async def main() -> None:
        async with both(RpcService(), Desk()) as (near, _):
            with pytest.raises(RpcRefused, match="Expected `int`, got `str`") as caught:
                await near.call("add", {"left": "1"}, seconds=PATIENCE_SECONDS)

        assert caught.value.number == INVALID_PARAMS

    run(main)


@pytest.mark.parametrize("method", ["break", "unspeakable", "unspeakably refuse"])
def test_a_bug_is_an_internal_error_without_details(method: str) -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(desk) as (_, wire):
            wire.send(msgspec.json.encode({"id": 1, "method": method}))

            error = {"code": INTERNAL_ERROR, "message": "internal error"}
            assert await wire.receive() == {"jsonrpc": "2.0", "id": 1, "error": error}

        assert [line.split(":")[0] for line in desk.broken] == [method]

    run(main)


def test_a_bug_in_hearing_is_reported_and_hearing_goes_on() -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(desk) as (_, wire):
            wire.send(b'{"method":"break"}\n{"method":"open"}')
            await desk.is_open.wait()

        assert desk.broken == ["break: LookupError"]

    run(main)


def test_what_is_no_message_is_reported_and_not_answered() -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(desk) as (_, wire):
            wire.send(b'Starting...\n\n{"type":"log"}\n{"id":1,"method":"add","params":{"left":1}}')

            assert (await wire.receive())["result"] == 1

        assert desk.strays == [b"Starting...", b'{"type":"log"}']

    run(main)


def test_a_batch_is_answered_with_a_refusal() -> None:
    async def main() -> None:
        async with serving(Desk()) as (_, wire):
            wire.send(b'[{"id":1,"method":"add"}]')

            answer = await wire.receive()

        assert (answer["id"], answer["error"]["code"]) == (None, INVALID_REQUEST)
        assert "batches are not supported" in answer["error"]["message"]

    run(main)


def test_the_version_can_be_left_out() -> None:
    async def main() -> None:
        async with serving(Desk(), with_version=False) as (peer, wire):
            await peer.notify("hello")
            wire.send(b'{"id":1,"method":"add","params":{"left":1}}')
            wire.send(b'{"id":2,"method":"refuse"}')

            lines = [await wire.receive() for _ in range(3)]

        assert [sorted(line) for line in lines] == [["method"], ["id", "result"], ["error", "id"]]

    run(main)


def test_the_end_of_the_other_side_fails_what_is_pending() -> None:
    async def main() -> None:
        async with serving() as (peer, wire):

            async def leave() -> None:
                await wire.receive()
                wire.writer.close()

            calls = [peer.call("m", seconds=PATIENCE_SECONDS) for _ in range(3)]
            assert await outcomes(*calls, leave()) == [RpcClosed] * 3 + [None]
            with pytest.raises(RpcClosed, match="before late was answered"):
                await peer.call("late", seconds=PATIENCE_SECONDS)
            with pytest.raises(RpcClosed):
                await peer.notify("late")

    run(main)


def test_closing_fails_what_is_pending_and_cancels_what_is_being_answered() -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(desk) as (peer, wire):

            async def close() -> None:
                wire.send(b'{"id":1,"method":"wait"}')
                await until(lambda: desk.heard == ["wait"])
                peer.close()
                await desk.was_cancelled.wait()

            assert await outcomes(peer.call("m", seconds=PATIENCE_SECONDS), close()) == [
                RpcClosed,
                None,
            ]

    run(main)


def test_the_last_line_may_lack_its_line_break() -> None:
    async def main() -> None:
        desk = Desk()
        async with serving(desk) as (_, wire):
            wire.writer.write(b'{"method":"open"}')
            wire.writer.write_eof()
            await desk.is_open.wait()

    run(main)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await anyio.lowlevel.checkpoint()
