"""The real Codex on a stage: what its model may want, and a Codex that waits to begin."""

import os
import signal
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.anthropic import ServerSteps, answer, call
from steadyrun.testing.model_servers.content import ModelAnswer
from tests.support.killed_driver import (
    BlockingCommand,
    find_cli,
    read_process_state,
    read_request,
    wait_for,
    wait_for_bytes,
)
from tests.support.real_cli_harness import CODEX, CliHarness, RunRecord, cli_harness, wait_for_event
from tests.support.real_codex import real_codex

ASKING: dict[str, Any] = {"mode": "default"}
STARTED = ["run.started", "token.bound", "stats.updated"]
COMPLETED = ["text.final", "stats.updated", "run.completed"]


def codex_harness(
    folder: Path, script: ServerSteps, **settings: Any
) -> AbstractContextManager[CliHarness]:
    return cli_harness(folder, script, cli=CODEX, **settings)


def run_command(command: str, **more: Any) -> ModelAnswer:
    """The model wants this command to be run."""
    return answer(call("exec_command", cmd=command, yield_time_ms=30_000, **more))


def request_command(command: str) -> ModelAnswer:
    """The model wants a command that must be allowed."""
    return run_command(command, sandbox_permissions="require_escalated", justification="May I?")


def stopped_codex_harness(folder: Path, script: ServerSteps) -> AbstractContextManager[CliHarness]:
    """A Codex that waits until somebody lets it go on."""
    program = folder / "codex"
    program.write_text(f'#!/bin/sh\nkill -STOP $$\nexec {real_codex()} "$@"\n')
    program.chmod(0o755)
    return cli_harness(folder, script, cli=replace(CODEX, program=lambda: program))


async def wait_for_stopped_cli(harness: CliHarness) -> int:
    """It, once it waits and was told to begin."""
    await wait_for_bytes(harness, b"thread/start", "sent")
    cli = find_cli(harness)
    await wait_for(lambda: read_process_state(cli) == "T", "the CLI that waits")
    return cli


def continue_cli(harness: CliHarness) -> None:
    """Let it go on; it may have ended."""
    with suppress(ValueError, ProcessLookupError):
        os.kill(find_cli(harness), signal.SIGCONT)


def is_conversation_in_order(harness: CliHarness, *words: str) -> bool:
    """The last request has the whole conversation, in this order, and each thing once."""
    told = read_request(harness, -1)
    places = [told.find(f'"text":"{word}"') for word in words]
    counts = [told.count(f'"text":"{word}"') for word in words]
    return places == sorted(places) and -1 not in places and set(counts) == {1}


async def wait_for_command(run: RunHandle, tool: BlockingCommand) -> None:
    """Wait until the run is told to be in the command, and is."""
    await wait_for_event(run, lambda event: isinstance(event, ev.ToolStarted))
    await tool.wait_until_running()


def check_event_order(record: RunRecord) -> None:
    """No event is lost or told twice, and the last one is the run's end."""
    assert [seen.seq for seen in record.stored] == list(range(1, len(record.stored) + 1))
    assert len({seen.id for seen in record.stored}) == len(record.stored)
    assert isinstance(record.stored[-1].event, ev.RunEnded)
