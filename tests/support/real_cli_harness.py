"""A real CLI in a home of its own, with a working directory and a simulated model.

with cli_harness(tmp_path, [answer("42")], cli=CODEX) as harness:
    record = harness.run("What is six times seven?")
"""

import base64
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
import pytest

import steadyrun
from steadyrun.config import Config, ProviderSettings, load
from steadyrun.dialect import Dialect, LaunchRequest, Turn, TurnEnded, Verdict
from steadyrun.driver import JournalBatch
from steadyrun.drivers.keeper_client import read_sent
from steadyrun.drivers.launcher import KeeperLauncher, ProviderSetup
from steadyrun.drivers.process_driver import ProcessDriver
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.library import Offered, RunHandle, Steadyrun
from steadyrun.model import event as ev
from steadyrun.model.event import Emitted, ErrorFact, StoredEvent
from steadyrun.model.ids import AgentId, HolderId, ProcessId
from steadyrun.model.item import Item
from steadyrun.model.policy import Mode
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.providers.claude.dialect import Claude
from steadyrun.providers.codex.dialect import Codex
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.model_servers.content import CallBlock, ModelAnswer, answer, call, make_text
from steadyrun.testing.model_servers.faults import StreamGate
from steadyrun.testing.model_servers.model_server import (
    MessagesServer,
    ModelServer,
    ResponsesServer,
)
from steadyrun.testing.model_servers.protocol import ModelRequest, ServerSteps
from tests.children.keeper_driver import eventually, is_locked
from tests.support.real_cli import claude_environment, descendants, real_claude
from tests.support.real_codex import codex_environment, codex_home, real_codex

TIMEOUT_SECONDS = 60.0
ALL = 1_000_000
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)

Event = TypeVar("Event")
During = Callable[[RunHandle], Awaitable[None]]


@dataclass(frozen=True)
class RunRecord:
    """A run, and the events and items of its agent."""

    run: Run
    stored: list[StoredEvent]
    items: list[Item]

    @property
    def error(self) -> ErrorFact:
        """The error of the run, which has one."""
        assert self.run.error is not None
        return self.run.error

    def events_of(self, kind: type[Event]) -> list[Event]:
        return [seen.event for seen in self.stored if isinstance(seen.event, kind)]


@dataclass(frozen=True)
class Cli:
    """A real CLI: its program, its environment, the server of its model, how its model calls tools.

    In `mode` it requests no approval. `approval_output` is part of what it prints when it does.
    `command_tool` is the name of the tool that runs a command.
    """

    name: str
    dialect: Callable[[], Dialect]
    program: Callable[[], Path]
    environment: Callable[[Path, str], dict[str, str]]
    server: type[ModelServer]
    mode: Mode
    run_command: Callable[[str], CallBlock]
    request_command: Callable[[str], CallBlock]
    command_tool: str
    approval_output: bytes


def _codex(folder: Path, url: str) -> dict[str, str]:
    codex_home(folder, url)
    return codex_environment(folder)


def _call_bash(command: str) -> CallBlock:
    return call("Bash", command=command)


def _call_exec_command(command: str, **more: str) -> CallBlock:
    return call("exec_command", cmd=command, yield_time_ms=30_000, **more)


def _call_escalated_command(command: str) -> CallBlock:
    more = {"sandbox_permissions": "require_escalated", "justification": "may I?"}
    return _call_exec_command(command, **more)


CLAUDE = Cli(
    "claude",
    Claude,
    real_claude,
    claude_environment,
    MessagesServer,
    "full_auto",
    _call_bash,
    _call_bash,
    "Bash",
    b"can_use_tool",
)
CODEX = Cli(
    "codex",
    Codex,
    real_codex,
    _codex,
    ResponsesServer,
    "dangerously_skip_permissions",
    _call_exec_command,
    _call_escalated_command,
    "commandExecution",
    b"requestApproval",
)
each_cli = pytest.mark.parametrize("cli", [CLAUDE, CODEX], ids=lambda cli: cli.name)
# Codex as a server for many turns, and as a process for one turn.
each_codex = pytest.mark.parametrize(
    "options", [{}, {"one_shot": True}], ids=["app server", "one shot"]
)


class CliHarness:
    """A home with a real CLI as its provider."""

    def __init__(
        self, folder: Path, server: ModelServer, settings: ProviderSettings, cli: Cli = CLAUDE
    ) -> None:
        self.server, self.cli = server, cli
        self.home, self.cwd = folder / "steadyrun", folder / "work"
        self.cwd.mkdir(exist_ok=True)
        self.user = folder / "user"
        self.user.mkdir(exist_ok=True)
        self._settings = settings

    @property
    def config(self) -> Config:
        given = self.cli.environment(self.user, self.server.url)
        environ = {key: given.pop(key) for key in ("PATH", "HOME", "LANG")}
        config = load(home=self.home, cwd=self.cwd, environ=environ)
        settings = msgspec.structs.replace(
            self._settings,
            command=(str(self.cli.program()),),
            env={**given, **self._settings.env},
        )
        both = msgspec.structs.replace(config.settings, providers={self.cli.name: settings})
        return replace(config, settings=both)

    @asynccontextmanager
    async def library(self) -> AsyncIterator[Steadyrun]:
        with anyio.fail_after(TIMEOUT_SECONDS):
            async with steadyrun.open(self.config) as library:
                yield library

    async def start(self, library: Steadyrun, prompt: str, **wishes: Any) -> RunHandle:
        wishes.setdefault("mode", self.cli.mode)
        return await library.start(prompt, provider=self.cli.name, cwd=self.cwd, **wishes)

    def run(self, prompt: str, during: During | None = None, **wishes: Any) -> RunRecord:
        """Run a prompt to its end. `during` is awaited with the run after its start."""

        async def main() -> RunRecord:
            async with self.library() as library:
                run = await self.start(library, prompt, **wishes)
                if during is not None:
                    await during(run)
                return await self.read_record(await run.result())

        return anyio.run(main)

    async def read_record(self, run: Run) -> RunRecord:
        """The record of the run's home, from the store itself."""
        store = await SqliteStore.open(self.home)
        try:
            run = await store.run(run.id)
            items = await store.items(run.agent, include_settled=True)
            stored = await store.events(agent=run.agent, limit=ALL, newest=True)
        finally:
            await store.close()
        return RunRecord(run, stored, sorted(items, key=lambda item: item.seq))


def replace_program(cli: Cli, folder: Path, script: str) -> Cli:
    """The CLI with a shell script in place of its program."""
    program = folder / cli.name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return replace(cli, program=lambda: program)


def replace_environment(cli: Cli, without: str, **more: str) -> Cli:
    """The CLI without a variable, and with others."""

    def environment(folder: Path, url: str) -> dict[str, str]:
        given = cli.environment(folder, url)
        return {name: value for name, value in given.items() if name != without} | more

    return replace(cli, environment=environment)


@contextmanager
def cli_harness(
    folder: Path, script: ServerSteps, *, cli: Cli = CLAUDE, **settings: Any
) -> Iterator[CliHarness]:
    """A home whose model plays `script`; no process of it may be left running at the end."""
    cli.program()
    with cli.server(script) as server:
        yield CliHarness(folder, server, ProviderSettings(**settings), cli)
    # A keeper reports the end of its CLI shortly before it exits itself.
    eventually(lambda: not find_processes_of(folder), "the end of all that was started")


def find_processes_of(folder: Path) -> list[str]:
    """Processes that still have to do with a folder: in their arguments, environment or place."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(process / name).read_bytes() for name in ("cmdline", "environ")]
            texts.append(str((process / "cwd").readlink()).encode())
        except OSError:
            continue
        if any(str(folder).encode() in text for text in texts):
            found.append(f"{process.name} {texts[0][:200]!r}")
    return found


async def wait_for_event(run: RunHandle, kind: type[Event]) -> Event:
    """The first event of this kind, stored or live."""
    async for seen in run.events():
        if isinstance(seen.event, kind):
            return seen.event
    raise AssertionError(f"the run ended without a {kind.__name__}")


def list_process_tree(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *descendants(pid)]


async def wait_for_gate(gate: StreamGate) -> None:
    """Wait until an answer has come to the gate."""
    await anyio.to_thread.run_sync(gate.wait_until_reached)


def count_sent(server: ModelServer, words: str) -> int:
    """How often the longest request to the model has these words."""
    return max((_to_json(ask).count(words) for ask in server.main_requests), default=0)


def _to_json(ask: ModelRequest) -> str:
    return json.dumps(list(ask.messages), ensure_ascii=False)


# -- the content of a record


def followup_outcomes(record: RunRecord) -> dict[str, tuple[str, str]]:
    """The delivery and the status of each follow-up."""
    followups = [item for item in record.items if item.kind == "message"]
    return {item.text: (item.delivery, item.status) for item in followups}


def reply_texts(record: RunRecord) -> list[str | None]:
    """The reply of each completed run, in order."""
    return [end.text for end in record.events_of(ev.RunCompleted)]


def approval_outcomes(record: RunRecord) -> list[tuple[str, str]]:
    return [(each.verdict, each.by) for each in record.events_of(ev.ApprovalResolved)]


def final_texts(record: RunRecord) -> list[str]:
    """The texts that the model has completed, of all runs."""
    return [each.text for each in record.events_of(ev.TextFinal)]


def list_names(folder: Path) -> list[str]:
    """The sorted names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def build_waiting_command(folder: Path) -> str:
    """A command that makes `folder/begun` and lasts until there is `folder/go`."""
    begun, go = folder / "begun", folder / "go"
    return f"touch {begun}; until [ -e {go} ]; do sleep 0.02; done; echo it ended"


async def wait_for_file(path: Path) -> None:
    await anyio.to_thread.run_sync(eventually, path.exists, f"{path.name}")


async def wait_for_output(harness: CliHarness, words: bytes) -> None:
    """The only process of the home has printed this."""
    [journal] = harness.home.glob("processes/*/journal")
    await anyio.to_thread.run_sync(eventually, lambda: words in journal.read_bytes(), str(words))


async def steer_and_wait(harness: CliHarness, run: RunHandle, *words: str) -> None:
    """Offer these messages to a turn. Codex has accepted each; Claude Code does not answer."""
    for word in words:
        offered = await run.steer(word)
        assert isinstance(offered, Offered)
        if harness.cli.name == CODEX.name:
            await wait_for_output(harness, f'"offer:{offered.item}"'.encode())


# -- approvals


def run_with_verdicts(harness: CliHarness, verdicts: Sequence[Verdict], **wishes: Any) -> RunRecord:
    """Run a prompt in the default mode and answer its approvals with these verdicts, in order."""

    async def decide(run: RunHandle) -> None:
        left = list(verdicts)
        async for seen in run.events():
            if isinstance(seen.event, ev.ApprovalRequested):
                await run.decide(seen.event.approval, left.pop(0))
        assert left == []

    return harness.run("work", decide, mode="default", **wishes)


# -- the end of a turn


def after_reads(count: int) -> During:
    """A moment after this many reads of the store."""

    async def moment(run: RunHandle) -> None:
        for _ in range(count):
            await run._store.run(run.id)

    return moment


def after_event(kind: type[ev.Event]) -> During:
    async def moment(run: RunHandle) -> None:
        await wait_for_event(run, kind)

    return moment


# When to steer, from the last piece of an answer on.
MOMENTS: tuple[During, ...] = (
    *(after_reads(count) for count in (0, 2, 5, 9, 14, 20)),
    after_event(ev.TextFinal),
    after_event(ev.RunCompleted),
)


class GatedModel:
    """A model that answers every message in two pieces, with a gate between them."""

    def __init__(self) -> None:
        self._gates: dict[str, StreamGate] = {}

    def gate(self, word: str) -> StreamGate:
        return self._gates.setdefault(word, StreamGate())

    def __call__(self, ask: ModelRequest) -> ModelAnswer:
        return answer(make_text("I heard ", self.gate(ask.user_text), "you."))


# -- many turns on one process


class EventSink:
    """Collects the output of a driver."""

    def __init__(self) -> None:
        self.ends: list[TurnEnded] = []
        self.events: list[Any] = []
        self._changed = anyio.Event()

    async def receive(self, batch: JournalBatch) -> None:
        self.ends += [each for each in batch.output if isinstance(each, TurnEnded)]
        self.events += [each.event for each in batch.output if isinstance(each, Emitted)]
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_for_end(self, count: int) -> TurnEnded:
        await self.wait_until(lambda: len(self.ends) >= count)
        return self.ends[-1]

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait for a condition that only more output can change."""
        while not is_true():
            await self._changed.wait()


@asynccontextmanager
async def drive_warm_process(
    harness: CliHarness, turn: Turn, sink: EventSink, **request: Any
) -> AsyncIterator[ProcessDriver]:
    """A driver of one process that is not ended after its turn. Its first turn is `turn`."""
    cli, process = harness.cli, build_warm_process(harness)
    first = LaunchRequest(turn, str(harness.cwd), **{"mode": cli.mode, **request})

    def env() -> dict[str, str]:
        return cli.environment(harness.user, harness.server.url)

    setup = ProviderSetup(cli.dialect, env, (str(cli.program()),))
    with FileWatches() as watches, anyio.fail_after(TIMEOUT_SECONDS):
        clock = SystemClock()
        drivers = KeeperLauncher(harness.home, {cli.name: setup}, clock=clock, watches=watches)
        await drivers.launch(process, first)
        async with (
            drivers.drive(process, holder=HolderId("warm"), fence=1, sink=sink.receive) as driver,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(driver.follow)
            yield driver
            tasks.cancel_scope.cancel()


def run_turns(harness: CliHarness, turns: Sequence[Turn], **request: Any) -> EventSink:
    """Send turns to one process, each after the end of the one before it."""
    sink = EventSink()

    async def main() -> None:
        async with drive_warm_process(harness, turns[0], sink, **request) as driver:
            for number, turn in enumerate(turns, 1):
                await driver.begin(turn)
                await sink.wait_for_end(number)
            await close_and_wait(driver, harness)

    anyio.run(main)
    return sink


def build_warm_process(harness: CliHarness) -> Process:
    return Process(
        ProcessId(f"proc_{harness.cli.name}_{os.getpid()}"),
        AgentId("agent_warm"),
        harness.cli.name,
        "here",
        "processes/warm",
        datetime(2026, 1, 1, tzinfo=UTC),
    )


async def close_and_wait(driver: ProcessDriver, harness: CliHarness) -> None:
    """Close the process and wait for its end."""
    await driver.close()
    directory = harness.home / build_warm_process(harness).keeper
    await anyio.to_thread.run_sync(
        eventually, lambda: not is_locked(directory), "the end of the process"
    )


def read_sent_keys(harness: CliHarness) -> list[str]:
    frames = read_sent(harness.home / build_warm_process(harness).keeper, after=0)
    return [frame.key for frame in sorted(frames, key=lambda frame: frame.number)]
