"""One real CLI continues with a briefing when the other is limited, and back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import pytest

from steadyrun.config import Config, ProviderSettings
from steadyrun.model.gate import Opened
from steadyrun.testing.model_servers.content import answer
from steadyrun.testing.model_servers.faults import refuse_rate_limit
from steadyrun.testing.model_servers.model_server import ModelServer
from steadyrun.testing.model_servers.protocol import ServerSteps
from tests.support.daemon_harness import (
    count_most_processes,
)
from tests.support.real_agents import real_agent
from tests.support.real_cli_harness import CLAUDE, CODEX, Cli, CliHarness, cli_harness

# How often each asks before it gives up.
TRIES = 3
COMMAND = "echo evidence-4711"


@pytest.mark.parametrize(
    ("first", "other"), [(CLAUDE, CODEX), (CODEX, CLAUDE)], ids=lambda cli: cli.name
)
def test_rate_limited_item_moves_to_the_other_cli_and_the_next_returns(
    tmp_path: Path, first: Cli, other: Cli
) -> None:
    limits = [refuse_rate_limit(retry_after=0)] * TRIES
    script: ServerSteps = [
        answer("First done."),
        answer(first.run_command(COMMAND)),
        *limits,
        answer("Back."),
    ]
    with on_two(tmp_path, first, script, other) as (harness, config, beside):

        async def main() -> None:
            async with (
                real_agent(harness, config=config, others=(other.name,)) as (daemon, ada),
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
    """A harness with a second CLI, which has a model server of its own."""
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
