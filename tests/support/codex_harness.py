"""The harness of the real Codex: commands that its model runs, and a Codex that starts stopped."""

import os
import signal
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyrun.model import event as ev
from steadyrun.testing.model_servers.content import ModelAnswer, answer
from steadyrun.testing.model_servers.protocol import ServerSteps
from tests.support.killed_driver import (
    find_cli,
    read_process_state,
    wait_for,
    wait_for_bytes,
)
from tests.support.real_cli_harness import CODEX, CliHarness, RunRecord, cli_harness
from tests.support.real_codex import real_codex

ASKING: dict[str, Any] = {"mode": "default"}
STARTED = ["run.started", "token.bound", "stats.updated"]
COMPLETED = ["text.final", "stats.updated", "run.completed"]


def codex_harness(
    folder: Path, script: ServerSteps, **settings: Any
) -> AbstractContextManager[CliHarness]:
    return cli_harness(folder, script, cli=CODEX, **settings)


def run_command(command: str) -> ModelAnswer:
    """The model runs this command."""
    return answer(CODEX.run_command(command))


def request_command(command: str) -> ModelAnswer:
    """The model runs a command that must be approved."""
    return answer(CODEX.request_command(command))


def stopped_codex_harness(folder: Path, script: ServerSteps) -> AbstractContextManager[CliHarness]:
    """A Codex that is stopped until the test continues it."""
    program = folder / "codex"
    program.write_text(f'#!/bin/sh\nkill -STOP $$\nexec {real_codex()} "$@"\n')
    program.chmod(0o755)
    return cli_harness(folder, script, cli=replace(CODEX, program=lambda: program))


async def wait_for_stopped_cli(harness: CliHarness) -> int:
    """The stopped Codex, after the handshake was sent to it."""
    await wait_for_bytes(harness, b"thread/start", "sent")
    cli = find_cli(harness)
    await wait_for(lambda: read_process_state(cli) == "T", "the CLI that waits")
    return cli


def continue_cli(harness: CliHarness) -> None:
    """Let it go on; it may have ended."""
    with suppress(ValueError, ProcessLookupError):
        os.kill(find_cli(harness), signal.SIGCONT)


def check_event_order(record: RunRecord) -> None:
    """No event is missing or stored twice, and the last one is the run's end."""
    assert [seen.seq for seen in record.stored] == list(range(1, len(record.stored) + 1))
    assert len({seen.id for seen in record.stored}) == len(record.stored)
    assert isinstance(record.stored[-1].event, ev.RunEnded)
