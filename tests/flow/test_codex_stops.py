"""No process of the real Codex remains when it or its commands do not react to signals."""

import os
import signal
from pathlib import Path

import pytest

import steadyrun
from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.content import answer, make_text
from steadyrun.testing.model_servers.faults import StreamGate
from tests.support.codex_harness import (
    COMPLETED,
    STARTED,
    codex_harness,
    run_command,
    stopped_codex_harness,
    wait_for_stopped_cli,
)
from tests.support.fast_clock import AdjustableClock, library_with_clock, with_timeouts
from tests.support.killed_driver import (
    BlockingCommand,
    find_cli,
    kill_keepers,
    read_process_state,
    run_and_disturb,
    wait_for_command,
)
from tests.support.real_cli_harness import wait_for_event

# -- the keeper is killed


def test_run_completes_when_only_the_outer_process_of_the_keeper_is_killed(tmp_path: Path) -> None:
    tool = BlockingCommand(tmp_path)
    with codex_harness(tmp_path, [run_command(tool.command), answer("It is done.")]) as harness:

        async def disturb(run: RunHandle) -> None:
            await wait_for_command(run, tool)
            kill_keepers(harness, "outer")
            tool.release()

        home = run_and_disturb(harness, disturb)

        assert home.event_types == [*STARTED, "tool.started", "tool.completed", *COMPLETED]


# -- Codex does not react, or its commands do not


def test_codex_stopped_before_the_handshake_fails_as_hang(tmp_path: Path) -> None:
    clock = AdjustableClock()
    with stopped_codex_harness(tmp_path, []) as harness:

        async def disturb(_: RunHandle) -> None:
            await wait_for_stopped_cli(harness)
            clock.seconds = 61

        home = run_and_disturb(harness, disturb, library_with_clock(harness.config, clock))

        assert [(run.status, run.stop_reason) for run in home.runs] == [("failed", "hang")]


def test_codex_stopped_in_a_stream_times_out_as_idle(tmp_path: Path) -> None:
    clock = AdjustableClock()
    with codex_harness(tmp_path, [answer(make_text("Hel", StreamGate(), "lo"))]) as harness:

        async def disturb(run: RunHandle) -> None:
            await wait_for_event(run, ev.TextDelta)
            os.kill(find_cli(harness), signal.SIGSTOP)
            clock.seconds = 121

        config = with_timeouts(harness.config, idle_seconds=120.0, interrupt_seconds=0.1)
        home = run_and_disturb(harness, disturb, library_with_clock(config, clock))

        assert [(run.status, run.stop_reason) for run in home.runs] == [
            ("timed_out", "idle_timeout")
        ]


@pytest.mark.parametrize("is_stopped", [False, True], ids=["obedient", "stopped"])
def test_cancel_ends_a_command_that_ignores_signals(tmp_path: Path, is_stopped: bool) -> None:
    tool = BlockingCommand(tmp_path)
    with codex_harness(tmp_path, [run_command(f"trap '' TERM INT HUP; {tool.command}")]) as harness:

        async def disturb(run: RunHandle) -> None:
            await wait_for_command(run, tool)
            if is_stopped:
                os.kill(find_cli(harness), signal.SIGSTOP)
            await run.cancel("enough")
            await run.result()
            assert tool.alive == []

        config = with_timeouts(harness.config, interrupt_seconds=0.1 if is_stopped else 30.0)
        home = run_and_disturb(harness, disturb, steadyrun.open(config))

        assert [(run.status, run.stop_reason) for run in home.runs] == [("cancelled", "user_stop")]
        assert [each.error for each in home.events_of(ev.ToolFailed)] == ["still_running"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_signal_to_codex_fails_the_run_and_ends_its_command(
    tmp_path: Path, number: signal.Signals
) -> None:
    tool = BlockingCommand(tmp_path)
    with codex_harness(tmp_path, [run_command(tool.command)]) as harness:

        async def disturb(run: RunHandle) -> None:
            await wait_for_command(run, tool)
            os.kill(find_cli(harness), number)
            await run.result()
            assert tool.alive == []

        home = run_and_disturb(harness, disturb)

        assert home.event_types == [*STARTED, "tool.started", "tool.failed", "run.failed"]
        [run] = home.runs
        assert run.error is not None
        assert (run.error.code, run.error.retryable) == ("exited", True)


def test_mcp_server_that_ignores_signals_ends_with_the_run(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    does = f"trap '' TERM INT HUP; echo $$ >> {pids}; while :; do sleep 600; done"
    server = {"command": "/usr/bin/setsid", "args": ["-f", "/bin/sh", "-c", does]}
    options = {"mcp_servers": {"stubborn": {**server, "startup_timeout_sec": 1}}}
    with codex_harness(tmp_path, [answer("Done.")], options=options) as harness:
        assert harness.run("go").run.text == "Done."
        assert {read_process_state(int(pid)) for pid in pids.read_text().split()} <= {"Z", "X"}


def test_background_process_of_a_command_ends_with_the_run(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = f"setsid sh -c 'echo $$ >> {pids}; exec sleep 600' & until test -s {pids}; do :; done"
    with codex_harness(tmp_path, [run_command(command), answer("Done.")]) as harness:
        assert harness.run("go").run.text == "Done."
        assert read_process_state(int(pids.read_text())) in {"Z", "X"}
