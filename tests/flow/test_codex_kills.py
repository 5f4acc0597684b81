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
from tests.support.codex_stage import (
    ASKING,
    BEGUN,
    DONE,
    asks_for,
    go_on,
    held,
    held_cli,
    in_command,
    on_stage,
    runs,
    words_in_order,
)
from tests.support.killed_driver import (
    ENDS,
    Driver,
    Home,
    Tool,
    accept,
    adopted,
    check,
    check_adopted,
    cli_of,
    driven,
    harmed,
    hears,
    offered,
    read,
    resume,
    wait_for_words,
    wait_until_idle,
)
from tests.support.real_cli_stage import reached, times_told, until


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is told of a run that says Hello, undisturbed."""
    return undisturbed(tmp_path_factory.mktemp("calm"), [answer(text("Hel", "lo"))])


@pytest.fixture(scope="module")
def calm_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("calm")
    tool = Tool(folder)
    tool.go()
    return undisturbed(folder, [runs(tool.command), answer("It is done.")])


def undisturbed(folder: Path, script: ServerSteps) -> list[str]:
    with on_stage(folder, script) as stage:
        stage.played("go")
        return anyio.run(read, stage).story(folder)


# -- the driving program is killed


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_in_a_stream(tmp_path: Path, calm: list[str], ends: str) -> None:
    gate = StreamGate()
    with on_stage(tmp_path, [answer(text("Hel", gate, "lo"))]) as stage:
        home = adopted(stage, hears("text.delta"), gate.open, ends=ends)

        check_adopted(home, stage)
        assert home.story(tmp_path) == calm
        assert home.outline == [*BEGUN, *DONE]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert len(stage.server.main_requests) == 1


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_in_a_command(
    tmp_path: Path, calm_command: list[str], ends: str
) -> None:
    tool = Tool(tmp_path)
    with on_stage(tmp_path, [runs(tool.command), answer("It is done.")]) as stage:
        home = adopted(stage, hears("tool.started", tool.runs), tool.go, ends=ends)

        check_adopted(home, stage)
        assert home.story(tmp_path) == calm_command
        assert home.outline == [*BEGUN, "tool.started", "tool.completed", *DONE]
        assert [run.status for run in home.runs] == ["completed"]
        assert tool.done.read_text() == "once\n"
        assert [ask.outputs[0][-5:] for ask in stage.server.main_requests[1:]] == ["done\n"]


AT_HANDSHAKE, AT_TURN, UNREAD = "before it answers", "before the turn is told", "before it is read"


@pytest.mark.parametrize("moment", [AT_HANDSHAKE, AT_TURN, UNREAD])
def test_a_driver_may_be_killed_on_the_way_to_the_turn(
    tmp_path: Path, calm: list[str], moment: str
) -> None:
    with held(tmp_path, [answer("Hello")]) as stage:

        async def before(driver: Driver) -> None:
            cli = await held_cli(stage)
            if moment == AT_HANDSHAKE:
                return
            driver.stop()
            os.kill(cli, signal.SIGCONT)
            await wait_for_words(stage, b'"id":"thread:')
            if moment == AT_TURN:
                return
            os.kill(cli, signal.SIGSTOP)
            driver.go_on()
            await wait_for_words(stage, b"turn/start", "sent")

        home = adopted(stage, before, lambda: go_on(stage))

        check_adopted(home, stage)
        assert home.story(tmp_path) == calm
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert [ask.user_text for ask in stage.server.main_requests] == ["go"]


def test_drivers_may_be_killed_before_and_after_an_approval_is_answered(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    with on_stage(tmp_path, [asks_for(tool.command), answer("It is done.")]) as stage:

        async def main() -> Home:
            async with driven(stage, **ASKING) as first:
                await first.hear("approval.requested")
                cli = cli_of(stage)
                await first.kill()
            async with driven(stage, run=first.run) as second:
                asked = await second.hear("approval.requested")
                await second.wish(allow=asked["approval"])
                await second.hear("approval.resolved")
                await tool.runs()
                await second.kill()
            async with stage.library() as library:
                run = await library.run(first.run)
                # What was answered is not asked any more.
                await run.decide(asked["approval"], Verdict(False, "too late"))
                assert cli_of(stage) == cli
                tool.go()
                await run.result()
            return await read(stage)

        home = anyio.run(main)

        check_adopted(home, stage)
        assert home.outline == [
            *BEGUN, "tool.started", "approval.requested", "approval.resolved",
            "tool.completed", *DONE,
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert [(each.verdict, each.by) for each in home.of(ev.ApprovalResolved)] == [
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
    asking = asks_for(f"echo once >> {done}")
    script = [answer(text("Hel", gate, "lo"), *asking.parts), answer("Done.")]
    with on_stage(tmp_path, script) as stage:

        async def before(driver: Driver) -> None:
            await driver.hear("text.delta")
            if not is_asked_alone:
                gate.open()
                await driver.hear("approval.requested")

        async def decides(run: RunHandle) -> None:
            gate.open()
            asked = await until(run, lambda event: isinstance(event, ev.ApprovalRequested))
            await run.decide(asked.approval, Verdict(is_allowed))

        home = adopted(stage, before, gate.open, then=decides, **ASKING)

        check_adopted(home, stage)
        assert [run.status for run in home.runs] == ["completed"]
        verdict = "allow" if is_allowed else "deny"
        assert [each.verdict for each in home.of(ev.ApprovalResolved)] == [verdict]
        assert done.exists() == is_allowed
        assert not is_allowed or done.read_text() == "once\n"


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_with_a_follow_up_that_waits_for_the_streams_end(
    tmp_path: Path, ends: str
) -> None:
    gate = StreamGate()
    script = [answer(text("Hel", gate, "lo")), answer("That, too."), answer("Again.")]

    async def steered(driver: Driver) -> None:
        await driver.hear("text.delta")
        await driver.wish(steer="and THAT")
        await driver.hear("followup.offered")

    with on_stage(tmp_path, script, options={"instant_interrupt": False}) as stage:
        home = adopted(stage, steered, gate.open, ends=ends)

        check_adopted(home, stage)
        assert home.outline == [
            *BEGUN, "followup.offered", "text.final", "followup.absorbed", *DONE
        ]  # fmt: skip
        assert [(run.status, run.text) for run in home.runs] == [("completed", "That, too.")]
        assert [(item.text, item.delivery) for item in home.items[1:]] == [("and THAT", "absorbed")]
        assert [ask.user_text for ask in stage.server.main_requests] == ["go", "and THAT"]
        anyio.run(resume, stage, home.runs[0].id, "once more")
        assert words_in_order(stage, "go", "Hello", "and THAT", "That, too.", "once more")


@pytest.mark.parametrize("is_offered", [True, False], ids=["offered", "only accepted"])
def test_a_driver_may_be_killed_with_a_follow_up_for_a_command(
    tmp_path: Path, is_offered: bool
) -> None:
    tool = Tool(tmp_path)
    with on_stage(tmp_path, [runs(tool.command), answer("That, too.")]) as stage:

        async def steered(driver: Driver) -> None:
            await driver.hear("tool.started")
            await tool.runs()
            if is_offered:
                await driver.wish(steer="and THAT")
                await driver.hear("followup.offered")
            else:
                driver.stop()
                await accept(stage, driver.run, "and THAT")

        home = adopted(stage, steered, tool.go, then=offered)

        check_adopted(home, stage)
        assert home.outline == [
            *BEGUN, "tool.started", "followup.offered", "tool.completed",
            "followup.absorbed", *DONE,
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert [(item.status, item.delivery) for item in home.items[1:]] == [
            ("completed", "absorbed")
        ]
        assert len(stage.server.main_requests) == 2
        assert times_told(stage.server, "THAT") == 1


def test_what_a_killed_driver_has_offered_is_returned_by_who_ends_the_turn(tmp_path: Path) -> None:
    gate = StreamGate()
    with on_stage(tmp_path, [Hang(gate)]) as stage:

        async def steered(driver: Driver) -> None:
            await driver.hear("token.bound")
            await reached(gate)
            await driver.wish(steer="and THAT")
            await driver.hear("followup.offered")

        async def ends(run: RunHandle) -> None:
            await run.cancel()

        home = adopted(stage, steered, gate.open, then=ends)

        check_adopted(home, stage)
        assert home.outline == [
            *BEGUN, "followup.offered", "stats.updated", "followup.returned", "run.cancelled"
        ]  # fmt: skip
        assert [(item.status, item.delivery) for item in home.items[1:]] == [
            ("cancelled", "returned")
        ]


def test_a_driver_may_be_killed_just_after_the_turns_end(tmp_path: Path) -> None:
    with on_stage(tmp_path, [answer("Hello")]) as stage:

        async def main() -> Home:
            async with driven(stage) as driver:
                await driver.hear("run.completed")
                await driver.kill()
            async with stage.library() as library:
                await (await library.run(driver.run)).result()
            return await read(stage)

        home = anyio.run(main)

        check_adopted(home, stage)
        assert home.outline == [*BEGUN, *DONE]
        assert len(stage.server.main_requests) == 1


@pytest.mark.parametrize("prompt", ["go", "x" * 300_000], ids=["short", "long"])
def test_the_driver_of_a_one_shot_may_be_killed_in_a_command(tmp_path: Path, prompt: str) -> None:
    tool = Tool(tmp_path)
    script = [runs(tool.command), answer("It is done.")]
    with on_stage(tmp_path, script, options={"one_shot": True}) as stage:
        home = adopted(stage, hears("tool.started", tool.runs), tool.go, prompt=prompt)

        check_adopted(home, stage)
        assert [each for each in home.outline if each.startswith(("run", "to", "te"))] == [
            "run.started", "token.bound", "tool.started", "tool.completed",
            "text.final", "run.completed",
        ]  # fmt: skip
        assert [(run.status, run.text) for run in home.runs] == [("completed", "It is done.")]
        assert tool.done.read_text() == "once\n"
        assert len(stage.server.main_requests) == 2


# -- Codex is killed


def test_a_codex_that_is_killed_when_idle_has_done_its_work(tmp_path: Path) -> None:
    gate = StreamGate()
    with on_stage(tmp_path, [answer(text("Hel", gate, "lo")), answer("Again.")]) as stage:

        async def main() -> Home:
            async with driven(stage, "greet") as driver:
                await driver.hear("text.delta")
                # Its driver would end it as soon as it is idle.
                driver.stop()
                gate.open()
                await wait_until_idle(stage)
                os.kill(cli_of(stage), signal.SIGKILL)
                driver.go_on()
                await driver.end()
            await resume(stage, driver.run, "once more")
            return await read(stage)

        home = anyio.run(main)

        check(home, stage)
        assert [(run.status, run.text, run.error) for run in home.runs] == [
            ("completed", "Hello", None),
            ("completed", "Again.", None),
        ]
        assert words_in_order(stage, "greet", "Hello", "once more")


def test_a_codex_that_is_killed_in_a_stream_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    with on_stage(tmp_path, [answer(text("Hel", StreamGate(), "lo")), answer("Again.")]) as stage:

        async def harm(run: RunHandle) -> None:
            await until(run, lambda event: isinstance(event, ev.TextDelta))
            os.kill(cli_of(stage), signal.SIGKILL)

        home = harmed(stage, harm, again="once more")

        _check_killed(home)
        assert home.outline[: len(BEGUN) + 1] == [*BEGUN, "run.failed"]
        assert words_in_order(stage, "go", "once more")


def test_a_codex_that_is_killed_in_a_command_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    script = [answer("Look:", *runs(tool.command).parts), answer("Again.")]
    with on_stage(tmp_path, script) as stage:

        async def harm(run: RunHandle) -> None:
            await in_command(run, tool)
            os.kill(cli_of(stage), signal.SIGKILL)
            await run.result()
            assert tool.alive == []

        home = harmed(stage, harm, again="once more")

        _check_killed(home)
        assert [each.error for each in home.of(ev.ToolFailed)] == ["still_running"]
        assert words_in_order(stage, "go", "Look:", "once more")


def test_a_one_shot_that_is_killed_in_a_command_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    script = [answer("Look:", *runs(tool.command).parts), answer("Again.")]
    with on_stage(tmp_path, script, options={"one_shot": True}) as stage:

        async def harm(run: RunHandle) -> None:
            await in_command(run, tool)
            os.kill(cli_of(stage), signal.SIGKILL)
            await run.result()
            assert tool.alive == []

        home = harmed(stage, harm, again="once more")

        _check_killed(home)
        assert [each.error for each in home.of(ev.ToolFailed)] == ["still_running"]
        assert words_in_order(stage, "go", "Look:", "once more")


def test_a_killed_codex_gives_back_what_it_had_not_taken(tmp_path: Path) -> None:
    with on_stage(tmp_path, [asks_for("touch here"), answer("Again.")]) as stage:

        async def harm(run: RunHandle) -> None:
            await until(run, lambda event: isinstance(event, ev.ApprovalRequested))
            assert isinstance(await run.steer("and THAT"), Offered)
            os.kill(cli_of(stage), signal.SIGKILL)

        home = harmed(stage, harm, again="once more", **ASKING)

        _check_killed(home)
        told = home.outline[: home.outline.index("run.failed")]
        assert told[:6] == [*BEGUN, "tool.started", "approval.requested", "followup.offered"]
        assert sorted(told[6:]) == ["approval.resolved", "followup.returned", "tool.failed"]
        [item] = [item for item in home.items if "THAT" in item.text]
        assert (item.status, item.delivery) == ("cancelled", "returned")
        assert [each.verdict for each in home.of(ev.ApprovalResolved)] == ["cancelled"]
        assert words_in_order(stage, "go", "once more")
        assert times_told(stage.server, "THAT") == 0
        assert not (stage.cwd / "here").exists()


def test_a_codex_that_is_killed_before_it_answers_has_not_begun(tmp_path: Path) -> None:
    with held(tmp_path, []) as stage:

        async def harm(_: RunHandle) -> None:
            os.kill(await held_cli(stage), signal.SIGKILL)

        home = harmed(stage, harm)

        assert home.outline == ["run.started", "run.failed"]
        [run] = home.runs
        assert run.error is not None
        assert (run.error.code, run.resume_token) == ("exited", None)


def _check_killed(home: Home) -> None:
    first, second = home.runs
    assert first.status == "failed"
    assert first.error is not None
    assert (first.error.code, first.error.retryable) == ("exited", True)
    assert "signal 9" in first.error.message
    assert (second.status, second.text) == ("completed", "Again.")
    assert first.resume_token == second.resume_token
