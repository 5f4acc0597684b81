"""The second process of `pipeline`, `latency` and `big_lines`: drives the fake agent once.

Each contender is a program of its own, so that a round does not inherit the memory of an earlier
one. It gets its task as one document and prints its results as another. CPU time counts from the
request of the run to its last event, all threads, no children. Wall time counts from the first line
that the agent prints to the last event that the subscriber has.
"""

import fcntl
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
from msgspec import Struct

from bench import agent_lines
from bench.agent_lines import Speech
from bench.measure import Failed, expect, make_scratch

Name = Literal["ours", "sdk", "raw"]

_LIMIT_SECONDS = 120.0
_READ_BYTES = _PIPE_BYTES = 1 << 20
_STAMP_DIGITS = 20


class Task(Struct, frozen=True):
    """The task: what the agent prints, and how. `max_buffer` is the SDK's limit for one line."""

    lines: str
    count: int
    pace_seconds: float = 0.0
    is_stamped: bool = False
    max_buffer: int | None = None


class Measured(Struct, frozen=True):
    """The results of a round, in seconds.

    `delays` are from print to subscriber, if lines are stamped; `events` is the number of lines
    that arrived.
    """

    cpu: float
    wall: float = 0.0
    events: int = 0
    delays: list[float] = []


def drive(name: Name, order: Task) -> Measured:
    """Run a contender in a process of its own."""
    command = [sys.executable, "-m", "bench.contender", name]
    done = subprocess.run(
        command, input=msgspec.json.encode(order), capture_output=True, check=False
    )
    if done.returncode != 0:
        raise Failed(f"{name}: {done.stderr.decode(errors='replace').strip()[-2000:]}")
    return msgspec.json.decode(done.stdout, type=Measured)


class _Stopwatch:
    """Notes the times of a round. It only counts an event, unless lines are stamped."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.events = 0
        self._cpu = time.process_time()

    def stamp(self, text: str) -> None:
        self.delays.append((time.monotonic_ns() - int(text[:_STAMP_DIGITS])) / 1e9)

    def stop(self) -> None:
        self._cpu, self._end = time.process_time() - self._cpu, time.monotonic_ns()

    def seen(self, begun: str | None) -> Measured:
        wall = (self._end - int(begun)) / 1e9 if begun else 0.0
        return Measured(self._cpu, wall, self.events, self.delays)


# -- steadyrun


async def _ours(order: Task) -> Measured:
    # Imported here: the other contenders must not load it.
    from bench import contender_ours  # noqa: PLC0415

    with make_scratch() as home, anyio.fail_after(_LIMIT_SECONDS):
        measured: Measured = await contender_ours.drive(home, order, _Stopwatch)
    return measured


# -- the SDK


async def _sdk(order: Task) -> Measured:
    # Loaded by name: type checking must not depend on the requirements of the benchmarks.
    sdk: Any = importlib.import_module("claude_agent_sdk")
    with make_scratch() as folder, anyio.fail_after(_LIMIT_SECONDS):
        options = sdk.ClaudeAgentOptions(
            cli_path=_program(folder, order),
            include_partial_messages=True,
            max_buffer_size=order.max_buffer,
        )
        watch, begun = _Stopwatch(), None
        async for message in sdk.query(prompt="Go.", options=options):
            watch.events += 1
            kind = type(message)
            if kind is sdk.ResultMessage:
                watch.stop()
                begun = message.result
            elif order.is_stamped and kind is sdk.AssistantMessage:
                watch.stamp(message.content[0].text)
    # The first and the last message are not lines of the agent.
    watch.events -= 2
    expect(watch.events == order.count, f"{watch.events} of {order.count} lines arrived")
    return watch.seen(begun)


def _program(folder: Path, order: Task) -> Path:
    """The agent as one executable file: the SDK accepts nothing else."""
    path = folder / "agent"
    command = agent_lines.build_command("claude", Path(order.lines), order.pace_seconds)
    path.write_text(f"#!/bin/sh\nexec {' '.join(command)}\n")
    path.chmod(0o700)
    return path


# -- the limit


def _raw(order: Task) -> Measured:
    """Read and decode with types, and nothing else: the least possible work in Python."""
    from steadyrun.providers.scripted.frames import decode_output  # noqa: PLC0415

    speech: Speech = "raw"
    command = agent_lines.build_command(speech, Path(order.lines))
    watch, rest = _Stopwatch(), b""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
        assert agent.stdout
        descriptor = agent.stdout.fileno()
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while chunk := os.read(descriptor, _READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                decode_output(line)
            watch.events += len(lines)
        watch.stop()
    expect(watch.events == order.count, f"{watch.events} of {order.count} lines arrived")
    return watch.seen(None)


_CONTENDERS: dict[str, Callable[[Task], Measured]] = {
    "ours": lambda order: anyio.run(_ours, order),
    "sdk": lambda order: anyio.run(_sdk, order),
    "raw": _raw,
}


if __name__ == "__main__":
    told = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    found = _CONTENDERS[sys.argv[1]](told)
    sys.stdout.buffer.write(msgspec.json.encode(found))
