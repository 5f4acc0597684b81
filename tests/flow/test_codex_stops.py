"""Is anything left of the real Codex when its keeper is killed, when it does not react, or when its
commands do not?"""

import os
import signal
from pathlib import Path

import anyio
import pytest

import steadyrun
from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.anthropic import answer, text
from steadyrun.testing.model_servers.faults import StreamGate
from tests.support.codex_stage import BEGUN, DONE, held, held_cli, in_command, on_stage, runs
from tests.support.fast_clock import Ahead, library_ahead, with_clocks
from tests.support.killed_driver import (
    Home,
    Tool,
    check,
    cli_of,
    driven,
    harmed,
    kill_keepers,
    read,
    state_of,
)
from tests.support.real_cli_stage import until

# -- the keeper is killed


@pytest.mark.parametrize("victims", ["keeper", "keeper and outer"])
def test_a_killed_keeper_takes_all_with_it(tmp_path: Path, victims: str) -> None:
    tool = Tool(tmp_path)
    with on_stage(tmp_path, [runs(tool.command)]) as stage:

        async def harm(run: RunHandle) -> None:
            await in_command(run, tool)
            kill_keepers(stage, victims)
            await run.result()
            assert tool.alive == []

        _check_lost(harmed(stage, harm))


def test_a_keeper_needs_nobody_to_watch_it(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    with on_stage(tmp_path, [runs(tool.command), answer("It is done.")]) as stage:

        async def harm(run: RunHandle) -> None:
            await in_command(run, tool)
            kill_keepers(stage, "outer")
            tool.go()

        home = harmed(stage, harm)

        assert home.outline == [*BEGUN, "tool.started", "tool.completed", *DONE]


def test_the_next_program_ends_what_driver_and_keepers_have_left(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    with on_stage(tmp_path, [runs(tool.command)]) as stage:

        async def main() -> Home:
            async with driven(stage) as driver:
                await driver.hear("tool.started")
                await tool.runs()
                await driver.kill()
            kill_keepers(stage, "keeper and outer")
            # Codex ends with its input, and takes with it what it can reach.
            assert tool.alive != []
            async with stage.library() as library:
                await (await library.run(driver.run)).result()
            assert tool.alive == []
            return await read(stage)

        home = anyio.run(main)

        check(home, stage)
        _check_lost(home)


# -- Codex does not react, or its commands do not


def test_a_codex_that_is_stopped_before_it_answers_is_given_up(tmp_path: Path) -> None:
    clock = Ahead()
    with held(tmp_path, []) as stage:

        async def harm(_: RunHandle) -> None:
            await held_cli(stage)
            clock.seconds = 61

        home = harmed(stage, harm, library_ahead(stage.config, clock))

        assert [(run.status, run.stop_reason) for run in home.runs] == [("failed", "hang")]


def test_a_codex_that_is_stopped_in_a_stream_is_given_up(tmp_path: Path) -> None:
    clock = Ahead()
    with on_stage(tmp_path, [answer(text("Hel", StreamGate(), "lo"))]) as stage:

        async def harm(run: RunHandle) -> None:
            await until(run, lambda event: isinstance(event, ev.TextDelta))
            os.kill(cli_of(stage), signal.SIGSTOP)
            clock.seconds = 121

        config = with_clocks(stage.config, idle_seconds=120.0, interrupt_seconds=0.1)
        home = harmed(stage, harm, library_ahead(config, clock))

        assert [(run.status, run.stop_reason) for run in home.runs] == [
            ("timed_out", "idle_timeout")
        ]


@pytest.mark.parametrize("is_stopped", [False, True], ids=["obedient", "stopped"])
def test_nothing_is_left_of_a_command_that_ignores_signals(
    tmp_path: Path, is_stopped: bool
) -> None:
    tool = Tool(tmp_path)
    with on_stage(tmp_path, [runs(f"trap '' TERM INT HUP; {tool.command}")]) as stage:

        async def harm(run: RunHandle) -> None:
            await in_command(run, tool)
            if is_stopped:
                os.kill(cli_of(stage), signal.SIGSTOP)
            await run.cancel("enough")
            await run.result()
            assert tool.alive == []

        config = with_clocks(stage.config, interrupt_seconds=0.1 if is_stopped else 30.0)
        home = harmed(stage, harm, steadyrun.open(config))

        assert [(run.status, run.stop_reason) for run in home.runs] == [("cancelled", "user_stop")]
        assert [each.error for each in home.of(ev.ToolFailed)] == ["still_running"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_nothing_is_left_of_a_codex_that_is_ended_from_outside(
    tmp_path: Path, number: signal.Signals
) -> None:
    tool = Tool(tmp_path)
    with on_stage(tmp_path, [runs(tool.command)]) as stage:

        async def harm(run: RunHandle) -> None:
            await in_command(run, tool)
            os.kill(cli_of(stage), number)
            await run.result()
            assert tool.alive == []

        home = harmed(stage, harm)

        assert home.outline == [*BEGUN, "tool.started", "tool.failed", "run.failed"]
        [run] = home.runs
        assert run.error is not None
        assert (run.error.code, run.error.retryable) == ("exited", True)


def test_nothing_is_left_of_a_server_that_codex_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    does = f"trap '' TERM INT HUP; echo $$ >> {pids}; while :; do sleep 600; done"
    server = {"command": "/usr/bin/setsid", "args": ["-f", "/bin/sh", "-c", does]}
    options = {"mcp_servers": {"stubborn": {**server, "startup_timeout_sec": 1}}}
    with on_stage(tmp_path, [answer("Done.")], options=options) as stage:
        assert stage.played("go").run.text == "Done."
        assert {state_of(int(pid)) for pid in pids.read_text().split()} <= {"Z", "X"}


def test_nothing_is_left_of_a_turn_that_has_ended_well(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = f"setsid sh -c 'echo $$ >> {pids}; exec sleep 600' & until test -s {pids}; do :; done"
    with on_stage(tmp_path, [runs(command), answer("Done.")]) as stage:
        assert stage.played("go").run.text == "Done."
        assert state_of(int(pids.read_text())) in {"Z", "X"}


def _check_lost(home: Home) -> None:
    assert home.outline == [*BEGUN, "tool.started", "tool.failed", "run.failed"]
    assert [(run.status, run.stop_reason) for run in home.runs] == [("failed", "keeper_lost")]
    assert [each.error for each in home.of(ev.ToolFailed)] == ["still_running"]
