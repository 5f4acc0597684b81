"""Does a run of the real Codex survive kill -9: of Codex, of its driver, of its keeper?

Whoever is killed, the record must say what happened, once and in order; what was said to the model
must have reached it once; and nothing may be left running.
"""

import os
import signal
from pathlib import Path

import anyio
import pytest

from steadyrun.dialect import Verdict
from steadyrun.library import Offered, RunHandle
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.anthropic import ServerSteps, answer, text
from steadyrun.testing.model_servers.faults import Hang, StreamGate
from tests.support.codex_harness import (
    ASKING,
    COMPLETED,
    STARTED,
    codex_harness,
    continue_cli,
    is_conversation_in_order,
    request_command,
    run_command,
    stopped_codex_harness,
    wait_for_command,
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
    read_home,
    resume_run,
    run_and_disturb,
    start_driver,
    wait_for_bytes,
    wait_for_offer,
    wait_until_idle,
)
from tests.support.real_cli_harness import count_sent, wait_for_event, wait_for_gate


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is told of a run that says Hello, undisturbed."""
    return undisturbed(tmp_path_factory.mktemp("calm"), [answer(text("Hel", "lo"))])


@pytest.fixture(scope="module")
def calm_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("calm")
    tool = BlockingCommand(folder)
    tool.release()
    return undisturbed(folder, [run_command(tool.command), answer("It is done.")])


def undisturbed(folder: Path, script: ServerSteps) -> list[str]:
    with codex_harness(folder, script) as harness:
        harness.run("go")
        return anyio.run(read_home, harness).normalize_events(folder)


# -- the driving program is killed


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_a_driver_may_be_killed_in_a_stream(tmp_path: Path, calm: list[str], ends: str) -> None:
    gate = StreamGate()
    with codex_harness(tmp_path, [answer(text("Hel", gate, "lo"))]) as harness:
        home = adopt_after_kill(harness, after_event("text.delta"), gate.open, ends=ends)

        check_adopted(home, harness)
        assert home.normalize_events(tmp_path) == calm
        assert home.event_types == [*STARTED, *COMPLETED]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert len(harness.server.main_requests) == 1


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_a_driver_may_be_killed_in_a_command(
    tmp_path: Path, calm_command: list[str], ends: str
) -> None:
    tool = BlockingCommand(tmp_path)
    with codex_harness(tmp_path, [run_command(tool.command), answer("It is done.")]) as harness:
        home = adopt_after_kill(
            harness, after_event("tool.started", tool.wait_until_running), tool.release, ends=ends
        )

        check_adopted(home, harness)
        assert home.normalize_events(tmp_path) == calm_command
        assert home.event_types == [*STARTED, "tool.started", "tool.completed", *COMPLETED]
        assert [run.status for run in home.runs] == ["completed"]
        assert tool.done.read_text() == "once\n"
        assert [ask.outputs[0][-5:] for ask in harness.server.main_requests[1:]] == ["done\n"]


AT_HANDSHAKE, AT_TURN, UNREAD = "before it answers", "before the turn is told", "before it is read"


@pytest.mark.parametrize("moment", [AT_HANDSHAKE, AT_TURN, UNREAD])
def test_a_driver_may_be_killed_on_the_way_to_the_turn(
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


def test_drivers_may_be_killed_before_and_after_an_approval_is_answered(tmp_path: Path) -> None:
    tool = BlockingCommand(tmp_path)
    with codex_harness(tmp_path, [request_command(tool.command), answer("It is done.")]) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness, **ASKING) as first:
                await first.wait_for_event("approval.requested")
                cli = find_cli(harness)
                await first.kill()
            async with start_driver(harness, run=first.run) as second:
                asked = await second.wait_for_event("approval.requested")
                await second.send(allow=asked["approval"])
                await second.wait_for_event("approval.resolved")
                await tool.wait_until_running()
                await second.kill()
            async with harness.library() as library:
                run = await library.run(first.run)
                # What was answered is not asked any more.
                await run.decide(asked["approval"], Verdict(False, "too late"))
                assert find_cli(harness) == cli
                tool.release()
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
        assert tool.done.read_text() == "once\n"


@pytest.mark.parametrize(
    ("is_asked_alone", "is_allowed"),
    [(False, False), (True, True)],
    ids=["open, denied", "asked of nobody, allowed"],
)
def test_the_next_program_answers_what_was_asked(
    tmp_path: Path, is_asked_alone: bool, is_allowed: bool
) -> None:
    gate, done = StreamGate(), tmp_path / "done"
    asking = request_command(f"echo once >> {done}")
    script = [answer(text("Hel", gate, "lo"), *asking.parts), answer("Done.")]
    with codex_harness(tmp_path, script) as harness:

        async def before(driver: Driver) -> None:
            await driver.wait_for_event("text.delta")
            if not is_asked_alone:
                gate.open()
                await driver.wait_for_event("approval.requested")

        async def decides(run: RunHandle) -> None:
            gate.open()
            asked = await wait_for_event(run, lambda event: isinstance(event, ev.ApprovalRequested))
            await run.decide(asked.approval, Verdict(is_allowed))

        home = adopt_after_kill(harness, before, gate.open, then=decides, **ASKING)

        check_adopted(home, harness)
        assert [run.status for run in home.runs] == ["completed"]
        verdict = "allow" if is_allowed else "deny"
        assert [each.verdict for each in home.events_of(ev.ApprovalResolved)] == [verdict]
        assert done.exists() == is_allowed
        assert not is_allowed or done.read_text() == "once\n"


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_a_driver_may_be_killed_with_a_follow_up_that_waits_for_the_streams_end(
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


@pytest.mark.parametrize("is_offered", [True, False], ids=["offered", "only accepted"])
def test_a_driver_may_be_killed_with_a_follow_up_for_a_command(
    tmp_path: Path, is_offered: bool
) -> None:
    tool = BlockingCommand(tmp_path)
    with codex_harness(tmp_path, [run_command(tool.command), answer("That, too.")]) as harness:

        async def steered(driver: Driver) -> None:
            await driver.wait_for_event("tool.started")
            await tool.wait_until_running()
            if is_offered:
                await driver.send(steer="and THAT")
                await driver.wait_for_event("followup.offered")
            else:
                driver.stop()
                await accept_message(harness, driver.run, "and THAT")

        home = adopt_after_kill(harness, steered, tool.release, then=wait_for_offer)

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


def test_what_a_killed_driver_has_offered_is_returned_by_who_ends_the_turn(tmp_path: Path) -> None:
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


def test_a_driver_may_be_killed_just_after_the_turns_end(tmp_path: Path) -> None:
    with codex_harness(tmp_path, [answer("Hello")]) as harness:

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


@pytest.mark.parametrize("prompt", ["go", "x" * 300_000], ids=["short", "long"])
def test_the_driver_of_a_one_shot_may_be_killed_in_a_command(tmp_path: Path, prompt: str) -> None:
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


def test_a_codex_that_is_killed_when_idle_has_done_its_work(tmp_path: Path) -> None:
    gate = StreamGate()
    with codex_harness(tmp_path, [answer(text("Hel", gate, "lo")), answer("Again.")]) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness, "greet") as driver:
                await driver.wait_for_event("text.delta")
                # Its driver would end it as soon as it is idle.
                driver.stop()
                gate.open()
                await wait_until_idle(harness)
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
        assert is_conversation_in_order(harness, "greet", "Hello", "once more")


def test_a_codex_that_is_killed_in_a_stream_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    with codex_harness(
        tmp_path, [answer(text("Hel", StreamGate(), "lo")), answer("Again.")]
    ) as harness:

        async def harm(run: RunHandle) -> None:
            await wait_for_event(run, lambda event: isinstance(event, ev.TextDelta))
            os.kill(find_cli(harness), signal.SIGKILL)

        home = run_and_disturb(harness, harm, again="once more")

        _check_killed(home)
        assert home.event_types[: len(STARTED) + 1] == [*STARTED, "run.failed"]
        assert is_conversation_in_order(harness, "go", "once more")


def test_a_codex_that_is_killed_in_a_command_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    tool = BlockingCommand(tmp_path)
    script = [answer("Look:", *run_command(tool.command).parts), answer("Again.")]
    with codex_harness(tmp_path, script) as harness:

        async def harm(run: RunHandle) -> None:
            await wait_for_command(run, tool)
            os.kill(find_cli(harness), signal.SIGKILL)
            await run.result()
            assert tool.alive == []

        home = run_and_disturb(harness, harm, again="once more")

        _check_killed(home)
        assert [each.error for each in home.events_of(ev.ToolFailed)] == ["still_running"]
        assert is_conversation_in_order(harness, "go", "Look:", "once more")


def test_a_one_shot_that_is_killed_in_a_command_goes_on_with_what_it_knows(tmp_path: Path) -> None:
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


def test_a_killed_codex_gives_back_what_it_had_not_taken(tmp_path: Path) -> None:
    with codex_harness(tmp_path, [request_command("touch here"), answer("Again.")]) as harness:

        async def harm(run: RunHandle) -> None:
            await wait_for_event(run, lambda event: isinstance(event, ev.ApprovalRequested))
            assert isinstance(await run.steer("and THAT"), Offered)
            os.kill(find_cli(harness), signal.SIGKILL)

        home = run_and_disturb(harness, harm, again="once more", **ASKING)

        _check_killed(home)
        told = home.event_types[: home.event_types.index("run.failed")]
        assert told[:6] == [*STARTED, "tool.started", "approval.requested", "followup.offered"]
        assert sorted(told[6:]) == ["approval.resolved", "followup.returned", "tool.failed"]
        [item] = [item for item in home.items if "THAT" in item.text]
        assert (item.status, item.delivery) == ("cancelled", "returned")
        assert [each.verdict for each in home.events_of(ev.ApprovalResolved)] == ["cancelled"]
        assert is_conversation_in_order(harness, "go", "once more")
        assert count_sent(harness.server, "THAT") == 0
        assert not (harness.cwd / "here").exists()


def test_a_codex_that_is_killed_before_it_answers_has_not_begun(tmp_path: Path) -> None:
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
