"""A run of the real Codex survives kill -9 of Codex and of its driver.

These are the cases that only Codex has; the others are in test_kills_real.py.
"""

import os
import signal
from pathlib import Path

import anyio
import pytest

from steadyrun.library import RunHandle
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.anthropic import answer, text
from steadyrun.testing.model_servers.faults import Hang, StreamGate
from tests.support.codex_harness import (
    COMPLETED,
    STARTED,
    codex_harness,
    continue_cli,
    run_command,
    stopped_codex_harness,
    wait_for_stopped_cli,
)
from tests.support.killed_driver import (
    WHEN_RELEASED,
    BlockingCommand,
    Driver,
    HomeRecord,
    adopt_after_kill,
    after_event,
    check_adopted,
    find_cli,
    is_conversation_in_order,
    record_undisturbed,
    resume_run,
    run_and_disturb,
    wait_for_bytes,
    wait_for_command,
)
from tests.support.real_cli_harness import CODEX, wait_for_gate


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The events of a run that answers Hello, undisturbed."""
    script = [answer(text("Hel", "lo"))]
    return record_undisturbed(tmp_path_factory.mktemp("calm"), script, CODEX)


# -- the driver is killed


AT_HANDSHAKE, AT_TURN, UNREAD = "at the handshake", "before turn/start", "before it is read"


@pytest.mark.parametrize("moment", [AT_HANDSHAKE, AT_TURN, UNREAD])
def test_run_completes_when_its_driver_is_killed_before_the_turn_starts(
    tmp_path: Path, calm: list[str], moment: str
) -> None:
    with stopped_codex_harness(tmp_path, [answer("Hello")]) as harness:

        async def before(driver: Driver) -> None:
            cli = await wait_for_stopped_cli(harness)
            if moment == AT_HANDSHAKE:
                return
            driver.stop()
            os.kill(cli, signal.SIGCONT)
            await wait_for_bytes(harness, b'"id":"thread:')
            if moment == AT_TURN:
                return
            os.kill(cli, signal.SIGSTOP)
            driver.resume()
            await wait_for_bytes(harness, b"turn/start", "sent")

        home = adopt_after_kill(harness, before, lambda: continue_cli(harness))

        check_adopted(home, harness)
        assert home.normalize_events(tmp_path) == calm
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert [ask.user_text for ask in harness.server.main_requests] == ["go"]


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_message_that_waits_for_the_stream_is_absorbed_when_its_driver_is_killed(
    tmp_path: Path, ends: str
) -> None:
    gate = StreamGate()
    script = [answer(text("Hel", gate, "lo")), answer("That, too."), answer("Again.")]

    async def steered(driver: Driver) -> None:
        await driver.wait_for_event("text.delta")
        await driver.send(steer="and THAT")
        await driver.wait_for_event("followup.offered")

    with codex_harness(tmp_path, script, options={"instant_interrupt": False}) as harness:
        home = adopt_after_kill(harness, steered, gate.open, ends=ends)

        check_adopted(home, harness)
        assert home.event_types == [
            *STARTED, "followup.offered", "text.final", "followup.absorbed", *COMPLETED
        ]  # fmt: skip
        assert [(run.status, run.text) for run in home.runs] == [("completed", "That, too.")]
        assert [(item.text, item.delivery) for item in home.items[1:]] == [("and THAT", "absorbed")]
        assert [ask.user_text for ask in harness.server.main_requests] == ["go", "and THAT"]
        anyio.run(resume_run, harness, home.runs[0].id, "once more")
        assert is_conversation_in_order(
            harness, "go", "Hello", "and THAT", "That, too.", "once more"
        )


def test_message_of_a_killed_driver_is_returned_when_the_turn_is_cancelled(tmp_path: Path) -> None:
    gate = StreamGate()
    with codex_harness(tmp_path, [Hang(gate)]) as harness:

        async def steered(driver: Driver) -> None:
            await driver.wait_for_event("token.bound")
            await wait_for_gate(gate)
            await driver.send(steer="and THAT")
            await driver.wait_for_event("followup.offered")

        async def ends(run: RunHandle) -> None:
            await run.cancel()

        home = adopt_after_kill(harness, steered, gate.open, then=ends)

        check_adopted(home, harness)
        assert home.event_types == [
            *STARTED, "followup.offered", "stats.updated", "followup.returned", "run.cancelled"
        ]  # fmt: skip
        assert [(item.status, item.delivery) for item in home.items[1:]] == [
            ("cancelled", "returned")
        ]


@pytest.mark.parametrize("prompt", ["go", "x" * 300_000], ids=["short", "long"])
def test_one_shot_run_continues_when_its_driver_is_killed_in_a_command(
    tmp_path: Path, prompt: str
) -> None:
    tool = BlockingCommand(tmp_path)
    script = [run_command(tool.command), answer("It is done.")]
    with codex_harness(tmp_path, script, options={"one_shot": True}) as harness:
        home = adopt_after_kill(
            harness,
            after_event("tool.started", tool.wait_until_running),
            tool.release,
            prompt=prompt,
        )

        check_adopted(home, harness)
        assert [each for each in home.event_types if each.startswith(("run", "to", "te"))] == [
            "run.started", "token.bound", "tool.started", "tool.completed",
            "text.final", "run.completed",
        ]  # fmt: skip
        assert [(run.status, run.text) for run in home.runs] == [("completed", "It is done.")]
        assert tool.done.read_text() == "once\n"
        assert len(harness.server.main_requests) == 2


# -- Codex is killed


def test_conversation_resumes_when_a_one_shot_codex_is_killed_in_a_command(tmp_path: Path) -> None:
    tool = BlockingCommand(tmp_path)
    script = [answer("Look:", *run_command(tool.command).parts), answer("Again.")]
    with codex_harness(tmp_path, script, options={"one_shot": True}) as harness:

        async def harm(run: RunHandle) -> None:
            await wait_for_command(run, tool)
            os.kill(find_cli(harness), signal.SIGKILL)
            await run.result()
            assert tool.alive == []

        home = run_and_disturb(harness, harm, again="once more")

        _check_killed(home)
        assert [each.error for each in home.events_of(ev.ToolFailed)] == ["still_running"]
        assert is_conversation_in_order(harness, "go", "Look:", "once more")


def test_codex_killed_before_the_handshake_leaves_no_resume_token(tmp_path: Path) -> None:
    with stopped_codex_harness(tmp_path, []) as harness:

        async def harm(_: RunHandle) -> None:
            os.kill(await wait_for_stopped_cli(harness), signal.SIGKILL)

        home = run_and_disturb(harness, harm)

        assert home.event_types == ["run.started", "run.failed"]
        [run] = home.runs
        assert run.error is not None
        assert (run.error.code, run.resume_token) == ("exited", None)


def _check_killed(home: HomeRecord) -> None:
    first, second = home.runs
    assert first.status == "failed"
    assert first.error is not None
    assert (first.error.code, first.error.retryable) == ("exited", True)
    assert "signal 9" in first.error.message
    assert (second.status, second.text) == ("completed", "Again.")
    assert first.resume_token == second.resume_token
