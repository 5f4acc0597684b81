"""Does a run of the real Claude Code survive kill -9: of the CLI, of its driver, of its keeper?

Whoever is killed, the record must say what happened, once and in order; what was said to the model
must have reached it once; and nothing may be left running.
"""

import os
import signal
from pathlib import Path

import anyio
import pytest

from steadyrun.dialect import Verdict
from steadyrun.library import Offered
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.anthropic import answer, call, text
from steadyrun.testing.model_servers.faults import StreamGate
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
    hears,
    kill_keepers,
    offered,
    read,
    resume,
    wait_for_log,
    wait_for_words,
    wait_until_idle,
    words_of,
)
from tests.support.real_cli_stage import Stage, staged, times_told, until

ASKING = {"mode": "default"}
BEGUN = ["run.started", "token.bound", "stats.updated"]
DONE = ["text.final", "stats.updated", "run.completed"]


# -- the driving program is killed


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_in_a_stream(tmp_path: Path, ends: str) -> None:
    gate = StreamGate()
    with staged(tmp_path, [answer(text("Hel", gate, "lo"))]) as stage:
        home = adopted(stage, hears("text.delta"), gate.open, ends=ends)

        check_adopted(home, stage)
        assert home.outline == [*BEGUN, *DONE]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert len(stage.server.main_requests) == 1


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_in_a_tool(tmp_path: Path, ends: str) -> None:
    tool = Tool(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("It is done.")]
    with staged(tmp_path, script) as stage:
        home = adopted(stage, hears("tool.started", tool.runs), tool.go, ends=ends)

        check_adopted(home, stage)
        assert home.outline == [
            *BEGUN, "tool.started", "tool.completed", *DONE
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert tool.done.read_text() == "once\n"
        assert [ask.results[0]["content"] for ask in stage.server.main_requests[1:]] == ["done"]


def test_drivers_may_be_killed_before_and_after_an_approval_is_answered(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("It is done.")]
    with staged(tmp_path, script) as stage:

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


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_with_a_follow_up_in_the_queue_of_the_cli(
    tmp_path: Path, ends: str
) -> None:
    gate = StreamGate()
    script = [answer(text("Hel", gate, "lo")), answer("That, too.")]

    async def steered(driver: Driver) -> None:
        await driver.hear("text.delta")
        await driver.wish(steer="and THAT")
        await driver.hear("followup.offered")

    with staged(tmp_path, script) as stage:
        home = adopted(stage, steered, gate.open, ends=ends)

        check_adopted(home, stage)
        assert [(run.status, run.text) for run in home.runs] == [
            ("completed", "Hello"),
            ("completed", "That, too."),
        ]
        assert [(item.text, item.delivery) for item in home.items[1:]] == [("and THAT", "own_turn")]
        assert [ask.user_text for ask in stage.server.main_requests] == ["go", "and THAT"]
        assert times_told(stage.server, "THAT") == 1


@pytest.mark.parametrize("is_offered", [True, False], ids=["offered", "only accepted"])
def test_a_driver_may_be_killed_with_a_follow_up_for_a_tool(
    tmp_path: Path, is_offered: bool
) -> None:
    tool = Tool(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("That, too.")]
    with staged(tmp_path, script) as stage:

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


def test_what_is_asked_while_nobody_is_there_is_answered_by_the_next_program(
    tmp_path: Path,
) -> None:
    gate, done = StreamGate(), tmp_path / "done"
    asking = call("Bash", command=f"echo once >> {done}")
    with staged(tmp_path, [answer(text("Hel", gate, "lo"), asking), answer("Done.")]) as stage:

        async def main() -> Home:
            async with driven(stage, **ASKING) as driver:
                await driver.hear("text.delta")
                await driver.kill()
            gate.open()
            await wait_for_words(stage, b"can_use_tool")
            async with stage.library() as library:
                run = await library.run(driver.run)
                asked = await until(run, lambda event: isinstance(event, ev.ApprovalRequested))
                await run.decide(asked.approval, Verdict(True))
                await run.result()
            return await read(stage)

        home = anyio.run(main)

        check_adopted(home, stage)
        assert [run.status for run in home.runs] == ["completed"]
        assert [each.verdict for each in home.of(ev.ApprovalResolved)] == ["allow"]
        assert done.read_text() == "once\n"


def test_a_driver_may_be_killed_just_after_the_turns_end(tmp_path: Path) -> None:
    with staged(tmp_path, [answer("Hello")]) as stage:

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


# -- the CLI is killed


def test_a_cli_that_is_killed_when_idle_has_done_its_work(tmp_path: Path) -> None:
    gate = StreamGate()
    with staged(tmp_path, [answer(text("Hel", gate, "lo")), answer("Again.")]) as stage:

        async def main() -> Home:
            async with driven(stage, "greet") as driver:
                await driver.hear("text.delta")
                # Its driver would end it as soon as it is idle.
                driver.stop()
                gate.open()
                await wait_until_idle(stage)
                await wait_for_log(stage, "Hello")
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
        _check_resumed(stage, home, "greet", "Hello", "once more")


def test_a_cli_that_is_killed_in_a_stream_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    gate = StreamGate()
    with staged(tmp_path, [answer(text("Hel", gate, "lo")), answer("Again.")]) as stage:

        async def main() -> Home:
            async with stage.library() as library:
                run = await stage.start(library, "greet")
                await until(run, lambda event: isinstance(event, ev.TextDelta))
                await wait_for_log(stage, "greet")
                os.kill(cli_of(stage), signal.SIGKILL)
                await run.result()
            await resume(stage, run.id, "once more")
            return await read(stage)

        home = anyio.run(main)

        check(home, stage)
        _check_killed(home)
        assert home.outline[: len(BEGUN) + 1] == [*BEGUN, "run.failed"]
        _check_resumed(stage, home, "greet", "once more")


def test_a_cli_that_is_killed_in_a_tool_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    script = [answer("Look:", call("Bash", command=tool.command)), answer("Again.")]
    with staged(tmp_path, script) as stage:

        async def main() -> Home:
            async with stage.library() as library:
                run = await stage.start(library, "look")
                await until(run, lambda event: isinstance(event, ev.ToolStarted))
                await tool.runs()
                await wait_for_log(stage, "tool_use")
                os.kill(cli_of(stage), signal.SIGKILL)
                await run.result()
            assert tool.alive == []
            await resume(stage, run.id, "once more")
            return await read(stage)

        home = anyio.run(main)

        check(home, stage)
        _check_killed(home)
        assert [each.error for each in home.of(ev.ToolFailed)] == ["still_running"]
        _check_resumed(stage, home, "look", "Look:", "once more")


def test_a_killed_cli_gives_back_what_it_had_not_taken(tmp_path: Path) -> None:
    with staged(tmp_path, [answer(call("Bash", command="touch here"))]) as stage:

        async def main() -> Home:
            async with stage.library() as library:
                run = await stage.start(library, "look", **ASKING)
                await until(run, lambda event: isinstance(event, ev.ApprovalRequested))
                assert isinstance(await run.steer("and THAT"), Offered)
                os.kill(cli_of(stage), signal.SIGKILL)
                await run.result()
            return await read(stage)

        home = anyio.run(main)

        check(home, stage)
        assert home.outline == [
            *BEGUN, "tool.started", "approval.requested", "followup.offered",
            "approval.resolved", "followup.returned", "tool.failed", "run.failed",
        ]  # fmt: skip
        assert [(item.status, item.delivery) for item in home.items[1:]] == [
            ("cancelled", "returned")
        ]
        assert [each.verdict for each in home.of(ev.ApprovalResolved)] == ["cancelled"]


# -- the keeper is killed


@pytest.mark.parametrize("victims", ["keeper", "keeper and outer"])
def test_a_killed_keeper_takes_all_with_it(tmp_path: Path, victims: str) -> None:
    tool = Tool(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("Never.")]
    with staged(tmp_path, script) as stage:

        async def main() -> Home:
            async with stage.library() as library:
                run = await stage.start(library, "look")
                await until(run, lambda event: isinstance(event, ev.ToolStarted))
                await tool.runs()
                kill_keepers(stage, victims)
                await run.result()
            assert tool.alive == []
            return await read(stage)

        home = anyio.run(main)

        check(home, stage)
        _check_lost(home, stage)


def test_the_next_program_ends_what_driver_and_keepers_have_left(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("Never.")]
    with staged(tmp_path, script) as stage:

        async def main() -> Home:
            async with driven(stage) as driver:
                await driver.hear("tool.started")
                await tool.runs()
                await driver.kill()
            kill_keepers(stage, "keeper and outer")
            assert len(tool.alive) == 2
            async with stage.library() as library:
                await (await library.run(driver.run)).result()
            assert tool.alive == []
            return await read(stage)

        home = anyio.run(main)

        check(home, stage)
        _check_lost(home, stage)


def _check_killed(home: Home) -> None:
    first, second = home.runs
    assert first.status == "failed"
    assert first.error is not None
    assert (first.error.code, first.error.retryable) == ("exited", True)
    assert "signal 9" in first.error.message
    assert (second.status, second.text) == ("completed", "Again.")


def _check_resumed(stage: Stage, home: Home, *words: str) -> None:
    """The last request has the whole conversation, in this order, and each thing once."""
    assert len(stage.server.main_requests) == 2
    told = words_of(stage, 1)
    places = [told.find(f'"text":"{word}') for word in words]
    assert -1 not in places
    assert places == sorted(places)
    assert [told.count(f'"text":"{word}') for word in words] == [1] * len(words)
    assert home.runs[0].resume_token == home.runs[1].resume_token


def _check_lost(home: Home, stage: Stage) -> None:
    assert home.outline == [*BEGUN, "tool.started", "tool.failed", "run.failed"]
    [run] = home.runs
    assert (run.status, run.stop_reason) == ("failed", "keeper_lost")
    assert [each.error for each in home.of(ev.ToolFailed)] == ["still_running"]
    assert len(stage.server.main_requests) == 1
