"""One real CLI continues with a briefing when the other is limited, and back."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import pytest

from steadyrun.app.runtime import open_runtime
from steadyrun.config import Config, ProviderSettings
from steadyrun.lib.task_group import task_group
from steadyrun.model.agent import Agent
from steadyrun.model.gate import Opened
from steadyrun.model.ids import AgentId
from steadyrun.model.policy import Policy
from steadyrun.runtime.daemon import Daemon
from steadyrun.testing.model_servers.anthropic import answer, call
from steadyrun.testing.model_servers.faults import refuse_rate_limit
from steadyrun.testing.model_servers.model_server import ModelServer
from steadyrun.testing.model_servers.protocol import ServerSteps
from tests.support.daemon_harness import (
    DEFAULT_CAPACITY,
    KEY,
    DaemonHarness,
    capture_log,
    count_most_processes,
)
from tests.support.real_cli_harness import CLAUDE, CODEX, Cli, CliHarness, cli_harness

PATIENCE_SECONDS = 90.0
# How often each asks before it gives up.
TRIES = 3
TOOLS = {
    "claude": call("Bash", command="echo evidence-4711"),
    "codex": call("exec_command", cmd="echo evidence-4711"),
}


@pytest.mark.parametrize(
    ("first", "other"), [(CLAUDE, CODEX), (CODEX, CLAUDE)], ids=lambda cli: cli.name
)
def test_a_limit_moves_the_item_and_the_next_one_comes_back(
    tmp_path: Path, first: Cli, other: Cli
) -> None:
    limits = [refuse_rate_limit(retry_after=0)] * TRIES
    script: ServerSteps = [
        answer("First done."),
        answer(TOOLS[first.name]),
        *limits,
        answer("Back."),
    ]
    with on_two(tmp_path, first, script, other) as (harness, config, beside):

        async def main() -> None:
            async with (
                working(config, harness, other) as (daemon, ada),
                count_most_processes(daemon) as most,
            ):
                await daemon.send_and_wait(ada, "the first request")
                moved = await daemon.send_and_wait(ada, "the second request")
                assert (moved.status, moved.reply) == ("completed", "Second done.")
                asks = len(harness.server.main_requests)
                await daemon.store.update_gate(first.name, Opened())
                back = await daemon.send_and_wait(ada, "the third request")

                assert (back.status, back.reply) == ("completed", "Back.")
                assert len(harness.server.main_requests) == asks + 1
                runs = await daemon.runs(ada)
                assert [(run.provider, run.status) for run in runs] == [
                    (first.name, "completed"),
                    (first.name, "rate_limited"),
                    (other.name, "completed"),
                    (first.name, "completed"),
                ]
                assert runs[3].resume_token == runs[0].resume_token
                notes = [n for n in await daemon.notes(ada) if f" {first.name}" in n]
                assert notes[0].startswith(f"{other.name} is used: {first.name} is not available")
                assert notes[1:] == [f"back with {first.name}"]
                assert most == [1], "never two providers at once"

        anyio.run(main)
        [moved], back = beside.main_requests, harness.server.main_requests[-1]
        assert "[From the record." in moved.user_text
        assert "> the first request" in moved.user_text
        assert "> First done." in moved.user_text
        assert "> Running echo evidence-4711 (ok): " in moved.user_text
        assert moved.user_text.endswith("the second request")
        assert f"{other.name} worked in this time" in back.user_text
        assert "> Second done." in back.user_text
        assert back.user_text.endswith("the third request")
        assert "the first request" in str(back.messages), "it is the conversation that it was"


@contextmanager
def on_two(
    folder: Path, first: Cli, script: ServerSteps, other: Cli
) -> Iterator[tuple[CliHarness, Config, ModelServer]]:
    """A stage with a second CLI, and a model for that alone."""
    with (
        other.server([answer("Second done.")]) as beside,
        cli_harness(folder, script, cli=first) as harness,
    ):
        given = other.environment(harness.user, beside.url)
        env = {name: given[name] for name in given.keys() - {"PATH", "HOME", "LANG"}}
        settings = ProviderSettings(command=(str(other.program()),), env=env)
        config = harness.config
        providers = {**config.settings.providers, other.name: settings}
        both = msgspec.structs.replace(config.settings, providers=providers)
        yield harness, replace(config, settings=both), beside


@asynccontextmanager
async def working(
    config: Config, harness: CliHarness, other: Cli
) -> AsyncIterator[tuple[DaemonHarness, AgentId]]:
    """A daemon with one agent, who has both."""
    with anyio.fail_after(PATIENCE_SECONDS), capture_log() as told:
        async with (
            open_runtime(config, kind="daemon", machine="here") as around,
            task_group() as tasks,
        ):
            daemon = Daemon(around, tasks, capacity=DEFAULT_CAPACITY, key=KEY)
            await daemon.recover()
            tasks.start_soon(daemon.serve)
            running = DaemonHarness(harness.cwd.parent, around.store, daemon, told)
            chain, policy = (harness.cli.name, other.name), Policy(harness.cli.mode)
            agent = Agent(around.ids.make_agent(), "ada", chain, str(harness.cwd), policy=policy)
            await around.store.add_agent(agent)
            yield running, agent.id
            await daemon.shut_down(drain_seconds=10, keep=False)
            tasks.cancel_scope.cancel()
