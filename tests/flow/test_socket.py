"""The daemon's socket: who may call, what a bad call gets, and streams that a slow reader reads."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest

from steadyrun.api import client
from steadyrun.api.client import connect
from steadyrun.api.server import LONGEST_LINE_BYTES, HelloRequest
from steadyrun.errors import (
    ChangeRefused,
    DaemonUnreachable,
    InvalidUsage,
    MessageTooLong,
    NotFound,
    RpcRefused,
    SteadyrunError,
    VersionMismatch,
)
from steadyrun.model import event as ev
from steadyrun.model.event_json import to_public
from steadyrun.operations.agents import AddAgentRequest, ListAgentsRequest
from steadyrun.operations.context import OperationContext
from steadyrun.operations.documents import ItemDocument
from steadyrun.operations.events import FollowRequest
from steadyrun.operations.items import SendRequest
from steadyrun.operations.registry import BY_NAME
from steadyrun.runtime.events import bus
from steadyrun.store import Started
from steadyrun.stores.sqlite import SqliteStore
from tests.support.cli_home import cli_home
from tests.support.fake_daemon import FakeDaemon, Play, make_context, serve_daemon
from tests.support.require import require

PATIENCE_SECONDS = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@asynccontextmanager
async def serve_in_time(
    home: Path, bugs: list[tuple[str, Exception]] | None = None
) -> AsyncIterator[tuple[OperationContext, FakeDaemon]]:
    """A small daemon with its socket; the block fails if it takes too long."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with serve_daemon(home, bugs=bugs) as served:
            yield served


async def add_agent(context: OperationContext, name: str = "ada") -> None:
    given = AddAgentRequest(name=name, provider="scripted", home=str(context.home))
    await BY_NAME["agent.add"].do(context, given)


async def send(home: Path, text: str) -> ItemDocument:
    found: ItemDocument = await client.call(
        home, BY_NAME["item.send"], SendRequest(agent="ada", text=text)
    )
    return found


def connect_raw(home: Path) -> socket.socket:
    """A connection that sends bytes as they are."""
    folder = os.open(home / "daemon", os.O_PATH)
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(PATIENCE_SECONDS)
    end.connect(f"/proc/self/fd/{folder}/socket")
    os.close(folder)
    return end


async def raw(home: Path, answers: int, *lines: bytes) -> list[dict[str, Any]]:
    """So many answers to these bytes."""

    def talk() -> list[bytes]:
        with connect_raw(home) as end:
            end.sendall(b"".join(lines))
            with end.makefile("rb") as answered:
                return [answered.readline() for _ in range(answers)]

    return [json.loads(line) for line in await anyio.to_thread.run_sync(talk)]


def read(event: msgspec.Raw) -> dict[str, Any]:
    return msgspec.json.decode(event, type=dict[str, Any])


def hello() -> bytes:
    return b'{"jsonrpc":"2.0","id":0,"method":"hello","params":{"version":"0.1.0"}}\n'


async def test_only_this_user_can_reach_the_socket(home: Path) -> None:
    folder, end = home / "daemon", home / "daemon" / "socket"
    old = os.umask(0)
    try:
        async with serve_in_time(home):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE(end.stat().st_mode) == 0o600
            assert stat.S_ISSOCK(end.stat().st_mode)
    finally:
        os.umask(old)
    assert not (home / "daemon" / "socket").exists()


async def test_daemon_folder_open_to_others_becomes_private(home: Path) -> None:
    (home / "daemon").mkdir(parents=True)
    (home / "daemon").chmod(0o777)

    async with serve_in_time(home):
        assert stat.S_IMODE((home / "daemon").stat().st_mode) == 0o700


# The process enters the folder before it changes its user: no directory above can stop it.
STRANGER = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
end = socket.socket(socket.AF_UNIX)
end.settimeout(30)
end.connect("socket")
print(end.makefile().read(), end="")
"""


async def test_another_user_is_refused_even_if_every_file_is_open(home: Path) -> None:
    require("root", os.geteuid() == 0, "only root can become another user")
    answers: list[str] = []

    def ask() -> str:
        command = [sys.executable, "-I", "-c", STRANGER, str(home / "daemon")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    async with serve_in_time(home) as (context, _):
        await add_agent(context)
        (home / "daemon").chmod(0o777)
        (home / "daemon" / "socket").chmod(0o777)
        answers.append(await anyio.to_thread.run_sync(ask))

    [line] = answers[0].splitlines()
    error = json.loads(line)["error"]
    assert (error["data"]["code"], error["data"]["exit"]) == ("not_allowed", 4)
    assert "ada" not in answers[0]


async def test_socket_works_in_a_home_with_a_very_long_path(tmp_path: Path) -> None:
    home = tmp_path.joinpath(*("long" * 20 for _ in range(3))) / "home"
    home.parent.mkdir(parents=True)

    async with serve_in_time(home) as (context, _):
        await add_agent(context)
        found = await client.call(home, BY_NAME["agent.list"], ListAgentsRequest())
        assert [agent.name for agent in found.agents] == ["ada"]
    assert len(bytes(home)) > 200


def test_call_without_a_daemon_raises_daemon_unreachable(home: Path) -> None:
    with pytest.raises(DaemonUnreachable) as found:
        anyio.run(client.call, home, BY_NAME["agent.list"], ListAgentsRequest())
    (home / "daemon").mkdir(parents=True)
    with pytest.raises(DaemonUnreachable, match="No such file"):
        anyio.run(client.call, home, BY_NAME["agent.list"], ListAgentsRequest())

    assert (found.value.exit_code, found.value.hint) == (69, "Start one: steadyrun up")


async def test_socket_of_a_killed_daemon_is_unreachable_and_replaced_by_the_next(
    home: Path,
) -> None:
    (home / "daemon").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        folder = os.open(home / "daemon", os.O_PATH)
        dead.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)

    with pytest.raises(DaemonUnreachable, match="refused"):
        await client.call(home, BY_NAME["agent.list"], ListAgentsRequest())

    async with serve_in_time(home):
        await client.call(home, BY_NAME["agent.list"], ListAgentsRequest())


def test_daemon_that_does_not_answer_hello_is_unreachable(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HELLO_SECONDS", 0.05)
    (home / "daemon").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stopped:
        folder = os.open(home / "daemon", os.O_PATH)
        stopped.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        stopped.listen()

        with pytest.raises(DaemonUnreachable, match="no answer to hello"):
            anyio.run(client.call, home, BY_NAME["agent.list"], ListAgentsRequest())


async def test_invalid_lines_are_answered_and_later_valid_ones_too(home: Path) -> None:
    async with serve_in_time(home):
        answers = await raw(
            home,
            10,
            b"no json\n",
            b"\xff\xfe\n",
            b"[]\n",
            hello(),
            b'{"jsonrpc":"2.0","id":1,"method":"agent.dance"}\n',
            b'{"jsonrpc":"2.0","id":2,"method":"agent.show","params":{"nmae":"ada"}}\n',
            b'{"jsonrpc":"2.0","id":3,"method":"agent.show","params":{"name":7}}\n',
            b'{"jsonrpc":"2.0","id":4,"method":"agent.show","params":[1]}\n',
            b'{"jsonrpc":"2.0","id":5,"method":"agent.show","params":{"name":"bob"}}\n',
            b'{"jsonrpc":"2.0","id":6,"method":"agent.list"}\n',
        )
        by_id = {answer["id"]: answer for answer in answers}

        refusals = [each["error"]["code"] for each in answers if each["id"] is None]
        assert refusals == [-32700, -32700, -32600]
        assert by_id[1]["error"]["code"] == -32601
        assert [by_id[n]["error"]["data"]["code"] for n in (2, 3, 4)] == ["usage"] * 3
        assert by_id[5]["error"]["data"] == {
            "code": "not_found", "message": "no agent 'bob'", "exit": 3, "retryable": False,
            "hint": "`steadyrun agents` lists them.",
        }  # fmt: skip
        assert by_id[6]["result"] == {"agents": []}


MALFORMED = [
    b"no json\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes(range(256)) + b"\n",
    b'{"jsonrpc":"2.0","id":1,"method":["agent.list"]}\n',
    b'{"jsonrpc":"2.0","id":1}\n',
    b'{"jsonrpc":"2.0","method":"agent.list"}\n',
    b"7\n",
    b'{"jsonrpc":"2.0","id":1,"method":"agent.list"',
]


def test_daemon_answers_a_malformed_request_at_once(tmp_path: Path) -> None:
    def talk(line: bytes, *, is_end: bool) -> int:
        with connect_raw(place.path) as end:
            end.sendall(line)
            if is_end or not line.endswith(b"\n"):
                end.shutdown(socket.SHUT_WR)
            with end.makefile("rb") as answered:
                return int(json.loads(answered.readline())["error"]["code"])

    with cli_home(tmp_path) as place:
        place.up()
        found = {
            (line, is_end): talk(line, is_end=is_end)
            for line in MALFORMED
            for is_end in (False, True)
        }

        assert set(found.values()) == {-32700, -32600}
        assert place.run("status").returncode == 0


async def test_pipelined_sends_are_accepted_in_their_order(home: Path) -> None:
    texts = [f"message {number}" for number in range(200)]
    async with serve_in_time(home) as (context, _):
        await add_agent(context)
        lines = [
            msgspec.json.encode(
                {"id": number, "method": "item.send", "params": {"agent": "ada", "text": text}}
            )
            for number, text in enumerate(texts, 1)
        ]
        answers = await raw(home, 201, hello(), b"\n".join(lines) + b"\n")
        items = await context.store.items(include_settled=True, limit=1000)

        assert [each["id"] for each in answers] == list(range(201))
        assert [item.text for item in reversed(items)] == texts
        assert [each["result"]["text"] for each in answers[1:]] == texts


async def test_client_without_a_greeting_may_only_stop_the_daemon(home: Path) -> None:
    async with serve_in_time(home) as (_, daemon):
        [refused] = await raw(home, 1, b'{"jsonrpc":"2.0","id":1,"method":"agent.list"}\n')
        [stopped] = await raw(
            home, 1, b'{"jsonrpc":"2.0","id":1,"method":"daemon.stop","params":{"drain":1.5}}\n'
        )

        assert refused["error"]["data"]["code"] == "usage"
        assert stopped["result"] == {"stopped": 0, "kept": 0, "queued": 0}
        assert daemon.stopped == [(1.5, False)]


@pytest.mark.parametrize(
    ("version", "is_ours"), [("0.1.7", True), ("0.2.0", False), ("1.1", False)]
)
async def test_client_of_another_minor_version_is_refused(
    home: Path, version: str, is_ours: bool
) -> None:
    async with serve_in_time(home), connect(home, greets=False) as line:
        if is_ours:
            await line.request("hello", HelloRequest(version), seconds=10)
        else:
            with pytest.raises(VersionMismatch, match=version):
                await line.request("hello", HelloRequest(version), seconds=10)


async def test_bug_in_an_operation_is_logged_and_not_sent_to_the_client(home: Path) -> None:
    bugs: list[tuple[str, Exception]] = []

    async with serve_in_time(home, bugs) as (context, daemon):
        await add_agent(context)

        def broken(agent: object) -> None:
            raise LookupError("secret: hunter2")

        daemon.find_process_state = broken  # type: ignore[method-assign]
        with pytest.raises(RpcRefused) as found:
            await client.call(home, BY_NAME["agent.list"], ListAgentsRequest())
        assert "hunter2" not in str(found.value)
    assert [(method, type(bug)) for method, bug in bugs] == [("agent.list", LookupError)]


async def test_message_of_5_mb_is_refused_and_not_accepted(home: Path) -> None:
    async with serve_in_time(home) as (context, _):
        await add_agent(context)
        with pytest.raises(MessageTooLong) as found:
            await send(home, "x" * 5_000_000)

        assert "5000000" in found.value.message
        assert "1048576" in found.value.message
        assert await context.store.items(include_settled=True) == []


async def test_same_key_over_the_socket_and_in_the_store_is_one_item(home: Path) -> None:
    async with serve_in_time(home) as (context, daemon):
        await add_agent(context)
        elsewhere = await SqliteStore.open(home)
        operation, given = BY_NAME["item.send"], SendRequest(agent="ada", text="once", key="k")
        found: list[ItemDocument] = []

        async def by_socket() -> None:
            found.append(await client.call(home, operation, given))

        async def by_store() -> None:
            found.append(await operation.do(make_context(elsewhere, home, daemon=daemon), given))

        async with anyio.create_task_group() as tasks:
            for way in (by_socket, by_store) * 5:
                tasks.start_soon(way)
        await elsewhere.close()

        assert len(await context.store.items(include_settled=True)) == 1
        assert len(found) == 10
        assert {each.id for each in found} == {found[0].id}


async def test_too_long_line_is_refused_by_client_and_daemon(home: Path) -> None:
    async with serve_in_time(home) as (context, _):
        await add_agent(context)
        with pytest.raises(MessageTooLong):
            await send(home, "x" * LONGEST_LINE_BYTES)
        endless = hello() + b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * (LONGEST_LINE_BYTES + 1)
        answers = await raw(home, 2, endless)

        assert str(LONGEST_LINE_BYTES) in answers[-1]["error"]["message"]
        assert (await send(home, "still here")).status == "queued"


async def test_errors_keep_their_class_across_the_socket(home: Path) -> None:
    async with serve_in_time(home) as (context, _):
        with pytest.raises(NotFound) as found:
            await send(home, "hello")
        assert found.value.message == "no agent 'ada'"
        await add_agent(context)
        with pytest.raises(InvalidUsage, match="empty"):
            await send(home, "  ")


async def test_stream_sends_stored_events_and_then_new_ones(home: Path) -> None:
    async with serve_in_time(home) as (context, daemon):
        await add_agent(context)
        await send(home, "one")
        play = Play(daemon, await start(daemon))
        await play.begin()
        async with client.follow(home, FollowRequest(agent="ada", after=0)) as (as_of, events):
            received = [read(await anext(events))]
            play.say_live(ev.TextDelta("half a "))
            received.append(read(await anext(events)))
            await play.say(ev.TextFinal("half a word"))
            received.append(read(await anext(events)))
        stored = await context.store.events()

        assert as_of == 0
        assert [each["type"] for each in received] == ["run.started", "text.delta", "text.final"]
        assert [each["cursor"] for each in received] == [1, None, 2]
        assert received[2] == json.loads(msgspec.json.encode(to_public(stored[-1])))


async def test_stream_without_a_cursor_starts_with_new_events(home: Path) -> None:
    async with serve_in_time(home) as (context, daemon):
        await add_agent(context)
        await send(home, "one")
        play = Play(daemon, await start(daemon))
        await play.begin()
        await play.say(ev.TextFinal("before"))
        async with client.follow(home, FollowRequest()) as (as_of, events):
            await play.say(ev.TextFinal("after"))
            first = read(await anext(events))

        assert (as_of, first["cursor"], first["data"]["text"]) == (2, 3, "after")


async def test_second_stream_on_a_connection_is_refused(home: Path) -> None:
    async with serve_in_time(home), connect(home) as line:
        await line.request("events.follow", FollowRequest(), seconds=10)
        with pytest.raises(ChangeRefused):
            await line.request("events.follow", FollowRequest(), seconds=10)


@pytest.mark.parametrize(
    "given", [FollowRequest(agent="bob"), FollowRequest(run="run_1"), FollowRequest("ada", "run_")]
)
async def test_stream_of_an_invalid_selection_is_refused(home: Path, given: FollowRequest) -> None:
    async with serve_in_time(home) as (context, _):
        await add_agent(context)
        with pytest.raises(SteadyrunError) as found:
            async with client.follow(home, given):
                pass
        assert found.value.exit_code in {2, 3}


async def test_disconnected_client_gets_no_more_events(home: Path) -> None:
    async with serve_in_time(home) as (_, daemon):
        async with client.follow(home, FollowRequest()):
            while not daemon.bus.has_subscribers:
                await anyio.lowlevel.checkpoint()
        while daemon.bus.has_subscribers:
            await anyio.lowlevel.checkpoint()


async def test_slow_reader_gets_every_stored_event_once_without_blocking_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "MAX_WAITING", 100)
    batches, each, size = 40, 20, 2000

    async with serve_in_time(home) as (context, daemon):
        await add_agent(context)
        await send(home, "one")
        play = Play(daemon, await start(daemon))
        await play.begin()
        async with client.follow(home, FollowRequest(after=0)) as (_, events):
            # All of it is written while the client does not read: far more than the socket holds.
            for number in range(batches):
                for _ in range(each):
                    play.say_live(ev.TextDelta("x" * size))
                await play.say(*(ev.TextFinal(f"{number} " + "x" * size) for _ in range(each)))
            received: list[dict[str, Any]] = []
            while not received or received[-1]["cursor"] != 1 + batches * each:
                received.append(read(await anext(events)))

        cursors = [one["cursor"] for one in received if one["cursor"] is not None]
        deltas = [one for one in received if one["cursor"] is None]
        assert cursors == list(range(1, 2 + batches * each))
        assert len(deltas) < batches * each


async def start(daemon: FakeDaemon) -> Started:
    holder = await daemon.store.join("daemon")
    [started] = await daemon.store.start(holder.id, daemon._opened)
    return started
