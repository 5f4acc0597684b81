"""A run of a real CLI survives kill -9 of the CLI, of its driver and of its keeper.

Whichever process is killed, the record has every event once and in order, the model received every
message once, and no process remains.
"""

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.dialect import Verdict
from steadyrun.library import Offered, RunHandle
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.content import answer, make_text
from steadyrun.testing.model_servers.faults import Hang, StreamGate
from tests.support.codex_harness import (
    ASKING,
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
    accept_message,
    adopt_after_kill,
    after_event,
    check_adopted,
    check_home,
    find_cli,
    is_conversation_in_order,
    kill_keepers,
    read_home,
    record_undisturbed,
    resume_run,
    run_and_disturb,
    start_driver,
    wait_for_bytes,
    wait_for_command,
    wait_for_log,
    wait_for_offer,
    wait_until_idle,
)
from tests.support.real_cli_harness import (
    CLAUDE,
    CODEX,
    Cli,
    CliHarness,
    cli_harness,
    count_sent,
    each_cli,
    wait_for_event,
    wait_for_gate,
)


async def wait_for_session_log(harness: CliHarness, words: str) -> None:
    """Wait until Claude Code has these words in its session log; Codex resumes without that."""
    if harness.cli is CLAUDE:
        await wait_for_log(harness, words)


# -- the driver is killed


@each_cli
@pytest.mark.parametrize("when", WHEN_RELEASED)
def test_run_continues_when_its_driver_is_killed_in_a_stream(
    tmp_path: Path, cli: Cli, when: str
) -> None:
    gate = StreamGate()
    with cli_harness(tmp_path, [answer(make_text("Hel", gate, "lo"))], cli=cli) as harness:
        home = adopt_after_kill(harness, after_event("text.delta"), gate.open, ends=when)

        check_adopted(home, harness)
        assert home.event_types == [*STARTED, *COMPLETED]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert len(harness.server.main_requests) == 1
    if cli is CODEX:
        (tmp_path / "calm").mkdir()
        calm = record_undisturbed(tmp_path / "calm", [answer(make_text("Hel", "lo"))], cli)
        assert home.normalize_events(tmp_path) == calm


@each_cli
@pytest.mark.parametrize("when", WHEN_RELEASED)
def test_run_continues_when_its_driver_is_killed_in_a_command(
    tmp_path: Path, cli: Cli, when: str
) -> None:
    command = BlockingCommand(tmp_path)
    script = [answer(cli.run_command(command.command)), answer("It is done.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:
        before = after_event("tool.started", command.wait_until_running)
        home = adopt_after_kill(harness, before, command.release, ends=when)

        check_adopted(home, harness)
        assert home.event_types == [*STARTED, "tool.started", "tool.completed", *COMPLETED]
        assert [run.status for run in home.runs] == ["completed"]
        assert command.done.read_text() == "once\n"
        [output] = [request.outputs[0] for request in harness.server.main_requests[1:]]
        assert output.splitlines()[-1] == "done"
        assert cli is CODEX or output == "done"
    if cli is CODEX:
        (tmp_path / "calm").mkdir()
        calm_command = BlockingCommand(tmp_path / "calm")
        calm_command.release()
        script = [answer(cli.run_command(calm_command.command)), answer("It is done.")]
        calm = record_undisturbed(tmp_path / "calm", script, cli)
        assert home.normalize_events(tmp_path) == calm


@each_cli
def test_run_continues_when_drivers_are_killed_before_and_after_an_approval(
    tmp_path: Path, cli: Cli
) -> None:
    command = BlockingCommand(tmp_path)
    script = [answer(cli.request_command(command.command)), answer("It is done.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness, **ASKING) as first:
                await first.wait_for_event("approval.requested")
                pid = find_cli(harness)
                await first.kill()
            async with start_driver(harness, run=first.run) as second:
                asked = await second.wait_for_event("approval.requested")
                await second.send(allow=asked["approval"])
                await second.wait_for_event("approval.resolved")
                await command.wait_until_running()
                await second.kill()
            async with harness.library() as library:
                run = await library.run(first.run)
                # An answered approval takes no second answer.
                await run.decide(asked["approval"], Verdict(False, "too late"))
                assert find_cli(harness) == pid
                command.release()
                await run.result()
            return await read_home(harness)

        home = anyio.run(main)

        check_adopted(home, harness)
        assert home.event_types == [
            *STARTED, "tool.started", "approval.requested", "approval.resolved",
            "tool.completed", *COMPLETED,
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert [(each.verdict, each.by) for each in home.events_of(ev.ApprovalResolved)] == [
            ("allow", "library")
        ]
        assert command.done.read_text() == "once\n"


@each_cli
@pytest.mark.parametrize(
    ("is_requested_alone", "is_allowed"),
    [(False, False), (True, True)],
    ids=["requested before the kill, denied", "requested without a driver, allowed"],
)
def test_next_program_answers_the_approval_that_is_requested(
    tmp_path: Path, cli: Cli, is_requested_alone: bool, is_allowed: bool
) -> None:
    gate, done = StreamGate(), tmp_path / "done"
    asking = cli.request_command(f"echo once >> {done}")
    script = [answer(make_text("Hel", gate, "lo"), asking), answer("Done.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness, **ASKING) as driver:
                await driver.wait_for_event("text.delta")
                if not is_requested_alone:
                    gate.open()
                    await driver.wait_for_event("approval.requested")
                await driver.kill()
            gate.open()
            await wait_for_bytes(harness, cli.approval_output)
            async with harness.library() as library:
                run = await library.run(driver.run)
                asked = await wait_for_event(run, ev.ApprovalRequested)
                await run.decide(asked.approval, Verdict(is_allowed))
                await run.result()
            return await read_home(harness)

        home = anyio.run(main)

        check_adopted(home, harness)
        assert [run.status for run in home.runs] == ["completed"]
        verdict = "allow" if is_allowed else "deny"
        assert [each.verdict for each in home.events_of(ev.ApprovalResolved)] == [verdict]
        assert done.exists() == is_allowed
        assert not is_allowed or done.read_text() == "once\n"


@each_cli
@pytest.mark.parametrize("when", WHEN_RELEASED)
def test_message_that_waits_for_a_stream_is_delivered_when_its_driver_is_killed(
    tmp_path: Path, cli: Cli, when: str
) -> None:
    """Claude Code answers it in a turn of its own; Codex absorbs it if it may not interrupt."""
    gate = StreamGate()
    script = [answer(make_text("Hel", gate, "lo")), answer("That, too."), answer("Again.")]

    async def steer(driver: Driver) -> None:
        await driver.wait_for_event("text.delta")
        await driver.send(steer="and THAT")
        await driver.wait_for_event("followup.offered")

    options = {"instant_interrupt": False} if cli is CODEX else {}
    with cli_harness(tmp_path, script, cli=cli, options=options) as harness:
        home = adopt_after_kill(harness, steer, gate.open, ends=when)

        check_adopted(home, harness)
        assert [request.user_text for request in harness.server.main_requests] == ["go", "and THAT"]
        assert count_sent(harness.server, "THAT") == 1
        last, delivery = ("completed", "That, too."), "absorbed" if cli is CODEX else "own_turn"
        assert [(item.text, item.delivery) for item in home.items[1:]] == [("and THAT", delivery)]
        ends = [(run.status, run.text) for run in home.runs]
        assert ends == ([last] if cli is CODEX else [("completed", "Hello"), last])
        if cli is CODEX:
            assert home.event_types == [
                *STARTED, "followup.offered", "text.final", "followup.absorbed", *COMPLETED
            ]  # fmt: skip
            anyio.run(resume_run, harness, home.runs[0].id, "once more")
            texts = ("go", "Hello", "and THAT", "That, too.", "once more")
            assert is_conversation_in_order(harness, *texts)


@each_cli
@pytest.mark.parametrize("is_offered", [True, False], ids=["offered", "only accepted"])
def test_message_sent_in_a_command_is_absorbed_when_its_driver_is_killed(
    tmp_path: Path, cli: Cli, is_offered: bool
) -> None:
    command = BlockingCommand(tmp_path)
    script = [answer(cli.run_command(command.command)), answer("That, too.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:

        async def steer(driver: Driver) -> None:
            await driver.wait_for_event("tool.started")
            await command.wait_until_running()
            if is_offered:
                await driver.send(steer="and THAT")
                await driver.wait_for_event("followup.offered")
            else:
                driver.stop()
                await accept_message(harness, driver.run, "and THAT")

        home = adopt_after_kill(harness, steer, command.release, then=wait_for_offer)

        check_adopted(home, harness)
        assert home.event_types == [
            *STARTED, "tool.started", "followup.offered", "tool.completed",
            "followup.absorbed", *COMPLETED,
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert [(item.status, item.delivery) for item in home.items[1:]] == [
            ("completed", "absorbed")
        ]
        assert len(harness.server.main_requests) == 2
        assert count_sent(harness.server, "THAT") == 1


@each_cli
def test_run_is_recorded_once_when_its_driver_is_killed_after_the_turn(
    tmp_path: Path, cli: Cli
) -> None:
    with cli_harness(tmp_path, [answer("Hello")], cli=cli) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness) as driver:
                await driver.wait_for_event("run.completed")
                await driver.kill()
            async with harness.library() as library:
                await (await library.run(driver.run)).result()
            return await read_home(harness)

        home = anyio.run(main)

        check_adopted(home, harness)
        assert home.event_types == [*STARTED, *COMPLETED]
        assert len(harness.server.main_requests) == 1


# -- the driver of Codex is killed


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The events of a run of Codex that answers Hello, undisturbed."""
    script = [answer(make_text("Hel", "lo"))]
    return record_undisturbed(tmp_path_factory.mktemp("calm"), script, CODEX)


AT_HANDSHAKE, AT_TURN, UNREAD = "at the handshake", "before turn/start", "before it is read"


@pytest.mark.parametrize("moment", [AT_HANDSHAKE, AT_TURN, UNREAD])
def test_run_completes_when_its_driver_is_killed_before_the_turn_starts(
    tmp_path: Path, calm: list[str], moment: str
) -> None:
    with stopped_codex_harness(tmp_path, [answer("Hello")]) as harness:

        async def wait_for_moment(driver: Driver) -> None:
            codex = await wait_for_stopped_cli(harness)
            if moment == AT_HANDSHAKE:
                return
            driver.stop()
            os.kill(codex, signal.SIGCONT)
            await wait_for_bytes(harness, b'"id":"thread:')
            if moment == AT_TURN:
                return
            os.kill(codex, signal.SIGSTOP)
            driver.resume()
            await wait_for_bytes(harness, b"turn/start", "sent")

        home = adopt_after_kill(harness, wait_for_moment, lambda: continue_cli(harness))

        check_adopted(home, harness)
        assert home.normalize_events(tmp_path) == calm
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert [request.user_text for request in harness.server.main_requests] == ["go"]


def test_message_of_a_killed_driver_is_returned_when_the_turn_is_cancelled(tmp_path: Path) -> None:
    gate = StreamGate()
    with codex_harness(tmp_path, [Hang(gate)]) as harness:

        async def steer(driver: Driver) -> None:
            await driver.wait_for_event("token.bound")
            await wait_for_gate(gate)
            await driver.send(steer="and THAT")
            await driver.wait_for_event("followup.offered")

        async def cancel(run: RunHandle) -> None:
            await run.cancel()

        home = adopt_after_kill(harness, steer, gate.open, then=cancel)

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
    command = BlockingCommand(tmp_path)
    script = [run_command(command.command), answer("It is done.")]
    with codex_harness(tmp_path, script, options={"one_shot": True}) as harness:
        before = after_event("tool.started", command.wait_until_running)
        home = adopt_after_kill(harness, before, command.release, prompt=prompt)

        check_adopted(home, harness)
        assert [each for each in home.event_types if each.startswith(("run", "to", "te"))] == [
            "run.started", "token.bound", "tool.started", "tool.completed",
            "text.final", "run.completed",
        ]  # fmt: skip
        assert [(run.status, run.text) for run in home.runs] == [("completed", "It is done.")]
        assert command.done.read_text() == "once\n"
        assert len(harness.server.main_requests) == 2


# -- the CLI is killed


def test_codex_killed_before_the_handshake_leaves_no_resume_token(tmp_path: Path) -> None:
    with stopped_codex_harness(tmp_path, []) as harness:

        async def kill(_: RunHandle) -> None:
            os.kill(await wait_for_stopped_cli(harness), signal.SIGKILL)

        home = run_and_disturb(harness, kill)

        assert home.event_types == ["run.started", "run.failed"]
        [run] = home.runs
        assert run.error is not None
        assert (run.error.code, run.resume_token) == ("exited", None)


@each_cli
def test_run_completes_when_its_cli_is_killed_after_the_turn(tmp_path: Path, cli: Cli) -> None:
    gate = StreamGate()
    script = [answer(make_text("Hel", gate, "lo")), answer("Again.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness, "greet") as driver:
                await driver.wait_for_event("text.delta")
                # The driver would end the CLI as soon as it is idle.
                driver.stop()
                gate.open()
                await wait_until_idle(harness)
                await wait_for_session_log(harness, "Hello")
                os.kill(find_cli(harness), signal.SIGKILL)
                driver.resume()
                await driver.wait_for_end()
            await resume_run(harness, driver.run, "once more")
            return await read_home(harness)

        home = anyio.run(main)

        check_home(home, harness)
        assert [(run.status, run.text, run.error) for run in home.runs] == [
            ("completed", "Hello", None),
            ("completed", "Again.", None),
        ]
        _check_resumed(harness, home, "greet", "Hello", "once more")


@each_cli
def test_conversation_resumes_when_the_cli_is_killed_in_a_stream(tmp_path: Path, cli: Cli) -> None:
    script = [answer(make_text("Hel", StreamGate(), "lo")), answer("Again.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:

        async def kill(run: RunHandle) -> None:
            await wait_for_event(run, ev.TextDelta)
            await wait_for_session_log(harness, "go")
            os.kill(find_cli(harness), signal.SIGKILL)

        home = run_and_disturb(harness, kill, again="once more")

        _check_killed(home)
        assert home.event_types[: len(STARTED) + 1] == [*STARTED, "run.failed"]
        _check_resumed(harness, home, "go", "once more")


@pytest.mark.parametrize(
    ("cli", "options"),
    [(CLAUDE, {}), (CODEX, {}), (CODEX, {"one_shot": True})],
    ids=["claude", "codex", "codex one shot"],
)
def test_conversation_resumes_when_the_cli_is_killed_in_a_command(
    tmp_path: Path, cli: Cli, options: dict[str, Any]
) -> None:
    command = BlockingCommand(tmp_path)
    script = [answer("Look:", cli.run_command(command.command)), answer("Again.")]
    with cli_harness(tmp_path, script, cli=cli, options=options) as harness:

        async def kill(run: RunHandle) -> None:
            await wait_for_command(run, command)
            await wait_for_session_log(harness, "tool_use")
            os.kill(find_cli(harness), signal.SIGKILL)
            await run.result()
            assert command.alive == []

        home = run_and_disturb(harness, kill, again="once more")

        _check_killed(home)
        assert [each.error for each in home.events_of(ev.ToolFailed)] == ["still_running"]
        _check_resumed(harness, home, "go", "Look:", "once more")


@each_cli
def test_killed_cli_returns_the_message_that_it_had_not_absorbed(tmp_path: Path, cli: Cli) -> None:
    script = [answer(cli.request_command("touch here")), answer("Again.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:

        async def kill(run: RunHandle) -> None:
            await wait_for_event(run, ev.ApprovalRequested)
            assert isinstance(await run.steer("and THAT"), Offered)
            await wait_for_session_log(harness, "tool_use")
            os.kill(find_cli(harness), signal.SIGKILL)

        home = run_and_disturb(harness, kill, again="once more", **ASKING)

        _check_killed(home)
        types = home.event_types[: home.event_types.index("run.failed")]
        assert types[:6] == [*STARTED, "tool.started", "approval.requested", "followup.offered"]
        last = ["approval.resolved", "followup.returned", "tool.failed"]
        assert (types[6:] if cli is CLAUDE else sorted(types[6:])) == last
        [item] = [item for item in home.items if "THAT" in item.text]
        assert (item.status, item.delivery) == ("cancelled", "returned")
        assert [each.verdict for each in home.events_of(ev.ApprovalResolved)] == ["cancelled"]
        assert is_conversation_in_order(harness, "go", "once more")
        assert count_sent(harness.server, "THAT") == 0
        assert not (harness.cwd / "here").exists()


# -- the keeper is killed


@each_cli
@pytest.mark.parametrize("names", ["keeper", "keeper and outer"])
def test_killed_keeper_ends_the_cli_and_its_commands(tmp_path: Path, cli: Cli, names: str) -> None:
    command = BlockingCommand(tmp_path)
    script = [answer(cli.run_command(command.command)), answer("Never.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:

        async def kill(run: RunHandle) -> None:
            await wait_for_command(run, command)
            kill_keepers(harness, names)
            await run.result()
            assert command.alive == []

        _check_lost(run_and_disturb(harness, kill), harness)


@each_cli
def test_next_program_ends_what_a_killed_driver_and_killed_keepers_leave(
    tmp_path: Path, cli: Cli
) -> None:
    command = BlockingCommand(tmp_path)
    script = [answer(cli.run_command(command.command)), answer("Never.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness) as driver:
                await driver.wait_for_event("tool.started")
                await command.wait_until_running()
                await driver.kill()
            kill_keepers(harness, "keeper and outer")
            # Codex ends with its input, and ends what it can reach.
            assert len(command.alive) == 2 if cli is CLAUDE else command.alive != []
            async with harness.library() as library:
                await (await library.run(driver.run)).result()
            assert command.alive == []
            return await read_home(harness)

        home = anyio.run(main)

        check_home(home, harness)
        _check_lost(home, harness)


def _check_killed(home: HomeRecord) -> None:
    first, second = home.runs
    assert first.status == "failed"
    assert first.error is not None
    assert (first.error.code, first.error.retryable) == ("exited", True)
    assert "signal 9" in first.error.message
    assert (second.status, second.text) == ("completed", "Again.")
    assert first.resume_token == second.resume_token


def _check_resumed(harness: CliHarness, home: HomeRecord, *words: str) -> None:
    """The second run has the whole conversation of the first, in this order."""
    assert len(harness.server.main_requests) == 2
    assert is_conversation_in_order(harness, *words)
    assert home.runs[0].resume_token == home.runs[1].resume_token


def _check_lost(home: HomeRecord, harness: CliHarness) -> None:
    assert home.event_types == [*STARTED, "tool.started", "tool.failed", "run.failed"]
    assert [(run.status, run.stop_reason) for run in home.runs] == [("failed", "keeper_lost")]
    assert [each.error for each in home.events_of(ev.ToolFailed)] == ["still_running"]
    assert len(harness.server.main_requests) == 1
