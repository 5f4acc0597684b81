"""The daemon's socket: who may call, what a bad call gets, and streams that a slow reader reads."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
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
from tests.support.fake_daemon import Play, SmallDaemon, desk_of, served
from tests.support.require import require

PATIENCE_SECONDS = 60.0
Body = Callable[[OperationContext, SmallDaemon], Awaitable[None]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def with_daemon(home: Path, body: Body, bugs: list[tuple[str, Exception]] | None = None) -> None:
    async def run() -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            async with served(home, bugs=bugs) as (desk, daemon):
                await body(desk, daemon)

    anyio.run(run)


async def hire(desk: OperationContext, name: str = "ada") -> None:
    given = AddAgentRequest(name=name, provider="scripted", home=str(desk.home))
    await BY_NAME["agent.add"].do(desk, given)


async def send(home: Path, text: str) -> ItemDocument:
    found: ItemDocument = await client.call(
        home, BY_NAME["item.send"], SendRequest(agent="ada", text=text)
    )
    return found


async def raw(home: Path, answers: int, *lines: bytes) -> list[dict[str, Any]]:
    """So many answers to these bytes."""

    def talk() -> list[bytes]:
        folder = os.open(home / "daemon", os.O_PATH)
        with socket.socket(socket.AF_UNIX) as end:
            end.settimeout(PATIENCE_SECONDS)
            end.connect(f"/proc/self/fd/{folder}/socket")
            os.close(folder)
            end.sendall(b"".join(lines))
            with end.makefile("rb") as answered:
                return [answered.readline() for _ in range(answers)]

    return [json.loads(line) for line in await anyio.to_thread.run_sync(talk)]


def read(event: msgspec.Raw) -> dict[str, Any]:
    return msgspec.json.decode(event, type=dict[str, Any])


def hello() -> bytes:
    return b'{"jsonrpc":"2.0","id":0,"method":"hello","params":{"version":"0.1.0"}}\n'


def test_only_this_user_can_reach_the_socket(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        folder, end = home / "daemon", home / "daemon" / "socket"

        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(end.stat().st_mode) == 0o600
        assert stat.S_ISSOCK(end.stat().st_mode)

    old = os.umask(0)
    try:
        with_daemon(home, look)
    finally:
        os.umask(old)
    assert not (home / "daemon" / "socket").exists()


def test_a_folder_that_was_open_to_others_is_closed(home: Path) -> None:
    (home / "daemon").mkdir(parents=True)
    (home / "daemon").chmod(0o777)

    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        assert stat.S_IMODE((home / "daemon").stat().st_mode) == 0o700

    with_daemon(home, look)


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


def test_another_user_is_turned_away_even_if_every_file_is_open(home: Path) -> None:
    require("root", os.geteuid() == 0, "only root can become another user")
    answers: list[str] = []

    def ask() -> str:
        command = [sys.executable, "-I", "-c", STRANGER, str(home / "daemon")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)
        (home / "daemon").chmod(0o777)
        (home / "daemon" / "socket").chmod(0o777)
        answers.append(await anyio.to_thread.run_sync(ask))

    with_daemon(home, look)

    [line] = answers[0].splitlines()
    error = json.loads(line)["error"]
    assert (error["data"]["code"], error["data"]["exit"]) == ("not_allowed", 4)
    assert "ada" not in answers[0]


def test_a_home_with_a_very_long_path_works(tmp_path: Path) -> None:
    home = tmp_path.joinpath(*("long" * 20 for _ in range(3))) / "home"
    home.parent.mkdir(parents=True)

    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)
        found = await client.call(home, BY_NAME["agent.list"], ListAgentsRequest())
        assert [agent.name for agent in found.agents] == ["ada"]

    with_daemon(home, look)
    assert len(bytes(home)) > 200


def test_no_daemon_is_a_named_error(home: Path) -> None:
    with pytest.raises(DaemonUnreachable) as found:
        anyio.run(client.call, home, BY_NAME["agent.list"], ListAgentsRequest())
    (home / "daemon").mkdir(parents=True)
    with pytest.raises(DaemonUnreachable, match="No such file"):
        anyio.run(client.call, home, BY_NAME["agent.list"], ListAgentsRequest())

    assert (found.value.exit_code, found.value.hint) == (69, "Start one: steadyrun up")


def test_a_socket_that_a_killed_daemon_left_is_no_daemon_and_no_hindrance(home: Path) -> None:
    (home / "daemon").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        folder = os.open(home / "daemon", os.O_PATH)
        dead.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)

    with pytest.raises(DaemonUnreachable, match="refused"):
        anyio.run(client.call, home, BY_NAME["agent.list"], ListAgentsRequest())

    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await client.call(home, BY_NAME["agent.list"], ListAgentsRequest())

    with_daemon(home, look)


def test_a_daemon_that_does_not_greet_was_not_asked(
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


def test_bad_lines_are_answered_and_the_next_good_one_too(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        answers = await raw(
            home,
            8,
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

        assert by_id[None]["error"]["code"] == -32600
        assert by_id[1]["error"]["code"] == -32601
        assert [by_id[n]["error"]["data"]["code"] for n in (2, 3, 4)] == ["usage"] * 3
        assert by_id[5]["error"]["data"] == {
            "code": "not_found", "message": "no agent 'bob'", "exit": 3, "retryable": False,
            "hint": "`steadyrun agents` lists them.",
        }  # fmt: skip
        assert by_id[6]["result"] == {"agents": []}

    with_daemon(home, look)


def test_client_without_a_greeting_may_only_stop_the_daemon(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        [refused] = await raw(home, 1, b'{"jsonrpc":"2.0","id":1,"method":"agent.list"}\n')
        [stopped] = await raw(
            home, 1, b'{"jsonrpc":"2.0","id":1,"method":"daemon.stop","params":{"drain":1.5}}\n'
        )

        assert refused["error"]["data"]["code"] == "usage"
        assert stopped["result"] == {"stopped": 0, "kept": 0, "queued": 0}
        assert daemon.stopped == [(1.5, False)]

    with_daemon(home, look)


@pytest.mark.parametrize(
    ("version", "is_ours"), [("0.1.7", True), ("0.2.0", False), ("1.1", False)]
)
def test_only_versions_of_one_line_talk(home: Path, version: str, is_ours: bool) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        async with connect(home, greets=False) as line:
            if is_ours:
                await line.request("hello", HelloRequest(version), seconds=10)
            else:
                with pytest.raises(VersionMismatch, match=version):
                    await line.request("hello", HelloRequest(version), seconds=10)

    with_daemon(home, look)


def test_bug_in_an_operation_is_logged_and_not_sent_to_the_client(home: Path) -> None:
    bugs: list[tuple[str, Exception]] = []

    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)

        def broken(agent: object) -> None:
            raise LookupError("secret: hunter2")

        daemon.find_process_state = broken  # type: ignore[method-assign]
        with pytest.raises(RpcRefused) as found:
            await client.call(home, BY_NAME["agent.list"], ListAgentsRequest())
        assert "hunter2" not in str(found.value)

    with_daemon(home, look, bugs)
    assert [(method, type(bug)) for method, bug in bugs] == [("agent.list", LookupError)]


def test_a_message_of_5_mb_is_refused_by_name_and_nothing_is_accepted(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)
        with pytest.raises(MessageTooLong) as found:
            await send(home, "x" * 5_000_000)

        assert "5000000" in found.value.message
        assert "1048576" in found.value.message
        assert await desk.store.items(include_settled=True) == []

    with_daemon(home, look)


def test_one_key_over_the_socket_and_in_the_store_at_once_is_one_item(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)
        elsewhere = await SqliteStore.open(home)
        operation, given = BY_NAME["item.send"], SendRequest(agent="ada", text="once", key="k")
        found: list[ItemDocument] = []

        async def by_socket() -> None:
            found.append(await client.call(home, operation, given))

        async def by_store() -> None:
            found.append(await operation.do(desk_of(elsewhere, home, daemon=daemon), given))

        async with anyio.create_task_group() as tasks:
            for way in (by_socket, by_store) * 5:
                tasks.start_soon(way)
        await elsewhere.close()

        assert len(await desk.store.items(include_settled=True)) == 1
        assert len(found) == 10
        assert {each.id for each in found} == {found[0].id}

    with_daemon(home, look)


def test_a_line_too_long_is_refused_before_it_is_sent_and_by_the_daemon(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)
        with pytest.raises(MessageTooLong):
            await send(home, "x" * LONGEST_LINE_BYTES)
        endless = hello() + b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * (LONGEST_LINE_BYTES + 1)
        answers = await raw(home, 2, endless)

        assert str(LONGEST_LINE_BYTES) in answers[-1]["error"]["message"]
        assert (await send(home, "still here")).status == "queued"

    with_daemon(home, look)


def test_errors_keep_their_class_across_the_socket(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        with pytest.raises(NotFound) as found:
            await send(home, "hello")
        assert found.value.message == "no agent 'ada'"
        await hire(desk)
        with pytest.raises(InvalidUsage, match="empty"):
            await send(home, "  ")

    with_daemon(home, look)


def test_stream_sends_stored_events_and_then_new_ones(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)
        await send(home, "one")
        play = Play(daemon, await start(daemon))
        await play.begin()
        async with client.follow(home, FollowRequest(agent="ada", after=0)) as (as_of, events):
            heard = [read(await anext(events))]
            play.say_live(ev.TextDelta("half a "))
            heard.append(read(await anext(events)))
            await play.say(ev.TextFinal("half a word"))
            heard.append(read(await anext(events)))
        stored = await desk.store.events()

        assert as_of == 0
        assert [each["type"] for each in heard] == ["run.started", "text.delta", "text.final"]
        assert [each["cursor"] for each in heard] == [1, None, 2]
        assert heard[2] == json.loads(msgspec.json.encode(to_public(stored[-1])))

    with_daemon(home, look)


def test_a_stream_without_a_cursor_begins_now(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)
        await send(home, "one")
        play = Play(daemon, await start(daemon))
        await play.begin()
        await play.say(ev.TextFinal("before"))
        async with client.follow(home, FollowRequest()) as (as_of, events):
            await play.say(ev.TextFinal("after"))
            first = read(await anext(events))

        assert (as_of, first["cursor"], first["data"]["text"]) == (2, 3, "after")

    with_daemon(home, look)


def test_a_connection_has_one_stream(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        async with connect(home) as line:
            await line.request("events.follow", FollowRequest(), seconds=10)
            with pytest.raises(ChangeRefused):
                await line.request("events.follow", FollowRequest(), seconds=10)

    with_daemon(home, look)


@pytest.mark.parametrize(
    "given", [FollowRequest(agent="bob"), FollowRequest(run="run_1"), FollowRequest("ada", "run_")]
)
def test_stream_of_an_invalid_selection_is_refused(home: Path, given: FollowRequest) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)
        with pytest.raises(SteadyrunError) as found:
            async with client.follow(home, given):
                pass
        assert found.value.exit_code in {2, 3}

    with_daemon(home, look)


def test_disconnected_client_gets_no_more_events(home: Path) -> None:
    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        async with client.follow(home, FollowRequest()):
            while not daemon.listeners:
                await anyio.lowlevel.checkpoint()
        while daemon.listeners:
            await anyio.lowlevel.checkpoint()

    with_daemon(home, look)


def test_slow_reader_gets_every_stored_event_once_without_blocking_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "MAX_WAITING", 100)
    batches, each, size = 40, 20, 2000

    async def look(desk: OperationContext, daemon: SmallDaemon) -> None:
        await hire(desk)
        await send(home, "one")
        play = Play(daemon, await start(daemon))
        await play.begin()
        async with client.follow(home, FollowRequest(after=0)) as (_, events):
            # All of it is written while the client does not read: far more than the socket holds.
            for number in range(batches):
                for _ in range(each):
                    play.say_live(ev.TextDelta("x" * size))
                await play.say(*(ev.TextFinal(f"{number} " + "x" * size) for _ in range(each)))
            heard: list[dict[str, Any]] = []
            while not heard or heard[-1]["cursor"] != 1 + batches * each:
                heard.append(read(await anext(events)))

        cursors = [one["cursor"] for one in heard if one["cursor"] is not None]
        deltas = [one for one in heard if one["cursor"] is None]
        assert cursors == list(range(1, 2 + batches * each))
        assert len(deltas) < batches * each

    with_daemon(home, look)


async def start(daemon: SmallDaemon) -> Started:
    holder = await daemon.store.join("daemon")
    [started] = await daemon.store.start(holder.id, daemon._opened)
    return started
