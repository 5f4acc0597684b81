"""The second processes of `warm`: each has one agent, and sends it a turn for each line it reads.

It prints how long the turn took to reach the agent: from the call that sends it to the moment at
which the agent has read it, which is in the agent's result. After the last line it checks its work.
"""

import importlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from bench import agent_lines
from bench.measure import expect, make_scratch

Turn = Callable[[], Awaitable[int]]

_LIMIT_SECONDS = 600.0
_ASK = b'{"type":"turn","key":"%d","text":"Go."}\n'


def _build_agent(speech: agent_lines.Speech, folder: Path) -> tuple[str, ...]:
    """An agent that prints only its end, and when it had read its input."""
    nothing = folder / "no.lines"
    nothing.touch()
    return agent_lines.build_command(speech, nothing)


# -- steadyrun


@asynccontextmanager
async def _ours(folder: Path) -> AsyncIterator[Turn]:
    """The whole path: one synced commit stores the message, another one starts its run."""
    # Imported here: the other contenders must not load it.
    from bench import contender_ours, daemon_process  # noqa: PLC0415
    from steadyrun.model.item import Message  # noqa: PLC0415
    from steadyrun.runtime.process_pool import Capacity  # noqa: PLC0415

    home, turns = folder / "home", 0
    config = contender_ours.write_config(home, _build_agent("scripted", folder))
    async with daemon_process.run_daemon(config, Capacity()) as daemon:
        store = daemon.direct_runs.deps.store
        [agent] = await daemon_process.add_agents(daemon, home / "agents", 1)

        async def turn() -> int:
            nonlocal turns
            begin = time.monotonic_ns()
            item = await daemon_process.send_and_wait(daemon, agent, Message(agent.id, "Go."))
            expect(item.status == "completed", f"an item is {item.status}: {item.error}")
            turns += 1
            return int(item.reply or 0) - begin

        yield turn
        done = await store.items(agent.id, include_settled=True, limit=turns + 1)
        completed = sum(item.status == "completed" for item in done)
        expect(completed == turns, f"{completed} of {turns} items are completed")
    _check_frames(home, turns)


def _check_frames(home: Path, turns: int) -> None:
    """Check that one process got every turn, once."""
    from steadyrun.drivers.keeper_client import read_sent  # noqa: PLC0415

    processes = list((home / "processes").iterdir())
    expect(len(processes) == 1, f"{len(processes)} processes instead of a warm one")
    keys = [frame.key for frame in read_sent(processes[0], after=0)]
    begun = sum(key.startswith("begin:") for key in keys)
    expect(begun == turns == len(set(keys)) - 1, f"{begun} turns were sent instead of {turns}")


@asynccontextmanager
async def _frame(folder: Path) -> AsyncIterator[Turn]:
    """A keeper and its frame, as a driver sends it; no store, no runtime."""
    from steadyrun.drivers import keeper_client  # noqa: PLC0415
    from steadyrun.lib.file_follower import FileWatches, JournalFollower  # noqa: PLC0415
    from steadyrun.model.ids import HolderId  # noqa: PLC0415

    directory, turns, holder = folder / "process", 0, HolderId("hld_bench")
    spec = keeper_client.KeeperSpec(
        "prc_bench", str(directory), _build_agent("scripted", folder), "/", {}, "pipe", (),
        keeper_client.KeeperLimits(),
    )  # fmt: skip
    await keeper_client.start(spec)
    with FileWatches() as watches:
        follower = JournalFollower(watches, directory / "journal")
        with closing(await keeper_client.connect(directory, holder, "agt_bench", 1)) as link:

            async def turn() -> int:
                nonlocal turns
                turns += 1
                begin, output = time.monotonic_ns(), b""
                await link.send_frame(f"begin:{turns}", follower.offset, (_ASK % turns).rstrip())
                while b'"ended"' not in output:
                    output += await follower.read()
                return _read_at(output) - begin

            with follower:
                yield turn
            await link.stop("shutdown")
        await keeper_client.wait_until_gone(directory)


# -- the SDK


@asynccontextmanager
async def _sdk(folder: Path, commit: Callable[[], None] | None = None) -> AsyncIterator[Turn]:
    sdk: Any = importlib.import_module("claude_agent_sdk")
    program = folder / "agent"
    program.write_text(f"#!/bin/sh\nexec {' '.join(_build_agent('claude', folder))}\n")
    program.chmod(0o700)
    async with sdk.ClaudeSDKClient(sdk.ClaudeAgentOptions(cli_path=program)) as client:

        async def turn() -> int:
            begin = time.monotonic_ns()
            if commit:
                commit()
            await client.query("Go.")
            result = [
                message.result
                async for message in client.receive_response()
                if isinstance(message, sdk.ResultMessage)
            ]
            return int(result[0]) - begin

        yield turn


@asynccontextmanager
async def _sdk_and(folder: Path, synchronous: str) -> AsyncIterator[Turn]:
    """The message is first stored in the simplest way: one row, one commit, inline."""
    turns = 0
    connection = sqlite3.connect(folder / "messages.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")

    def commit() -> None:
        nonlocal turns
        turns += 1
        connection.execute("INSERT INTO messages (text) VALUES ('Go.')")

    async with _sdk(folder, commit) as turn:
        yield turn
    [stored] = connection.execute("SELECT count(*) FROM messages").fetchone()
    expect(stored == turns, f"{stored} of {turns} messages are stored")


# -- the limit


@asynccontextmanager
async def _raw(folder: Path) -> AsyncIterator[Turn]:
    """A pipe to the agent, and nothing else."""
    pipe, turns = subprocess.PIPE, 0
    command = _build_agent("scripted", folder)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as agent:  # noqa: ASYNC220 (idle)
        assert agent.stdin
        assert agent.stdout
        to, of = agent.stdin.fileno(), agent.stdout

        async def turn() -> int:
            nonlocal turns
            turns += 1
            begin = time.monotonic_ns()
            os.write(to, _ASK % turns)
            while b'"ended"' not in (line := of.readline()):
                pass
            return _read_at(line) - begin

        yield turn
        agent.stdin.close()


def _read_at(output: bytes) -> int:
    return int(output.rpartition(b'"result":"')[2].partition(b'"')[0])


WAYS: dict[str, Callable[[Path], Any]] = {
    "ours": _ours,
    "sdk": _sdk,
    "sdk, commit": lambda folder: _sdk_and(folder, "NORMAL"),
    "sdk, synced": lambda folder: _sdk_and(folder, "FULL"),
    "frame": _frame,
    "raw": _raw,
}


async def main(way: str) -> None:
    with make_scratch() as folder, anyio.fail_after(_LIMIT_SECONDS):
        async with WAYS[way](folder) as turn:
            while await anyio.to_thread.run_sync(sys.stdin.readline):
                print(await turn(), flush=True)
    print("checked", flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
