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
from tests.support.killed_driver import Tool, cli_of, state_of, wait_for, wait_for_words, words_of
from tests.support.real_cli_stage import CODEX, Played, Stage, staged, until
from tests.support.real_codex import real_codex

ASKING: dict[str, Any] = {"mode": "default"}
BEGUN = ["run.started", "token.bound", "stats.updated"]
DONE = ["text.final", "stats.updated", "run.completed"]


def on_stage(folder: Path, script: ServerSteps, **settings: Any) -> AbstractContextManager[Stage]:
    return staged(folder, script, cli=CODEX, **settings)


def runs(command: str, **more: Any) -> ModelAnswer:
    """The model wants this command to be run."""
    return answer(call("exec_command", cmd=command, yield_time_ms=30_000, **more))


def asks_for(command: str) -> ModelAnswer:
    """The model wants a command that must be allowed."""
    return runs(command, sandbox_permissions="require_escalated", justification="May I?")


def held(folder: Path, script: ServerSteps) -> AbstractContextManager[Stage]:
    """A Codex that waits until somebody lets it go on."""
    program = folder / "codex"
    program.write_text(f'#!/bin/sh\nkill -STOP $$\nexec {real_codex()} "$@"\n')
    program.chmod(0o755)
    return staged(folder, script, cli=replace(CODEX, program=lambda: program))


async def held_cli(stage: Stage) -> int:
    """It, once it waits and was told to begin."""
    await wait_for_words(stage, b"thread/start", "sent")
    cli = cli_of(stage)
    await wait_for(lambda: state_of(cli) == "T", "the CLI that waits")
    return cli


def go_on(stage: Stage) -> None:
    """Let it go on; it may have ended."""
    with suppress(ValueError, ProcessLookupError):
        os.kill(cli_of(stage), signal.SIGCONT)


def words_in_order(stage: Stage, *words: str) -> bool:
    """The last request has the whole conversation, in this order, and each thing once."""
    told = words_of(stage, -1)
    places = [told.find(f'"text":"{word}"') for word in words]
    counts = [told.count(f'"text":"{word}"') for word in words]
    return places == sorted(places) and -1 not in places and set(counts) == {1}


async def in_command(run: RunHandle, tool: Tool) -> None:
    """Wait until the run is told to be in the command, and is."""
    await until(run, lambda event: isinstance(event, ev.ToolStarted))
    await tool.runs()


def in_order(record: Played) -> None:
    """No event is lost or told twice, and the last one is the run's end."""
    assert [seen.seq for seen in record.stored] == list(range(1, len(record.stored) + 1))
    assert len({seen.id for seen in record.stored}) == len(record.stored)
    assert isinstance(record.stored[-1].event, ev.RunEnded)
