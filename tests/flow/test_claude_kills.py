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
    kill_keepers,
    read_home,
    read_request,
    resume_run,
    start_driver,
    wait_for_bytes,
    wait_for_log,
    wait_for_offer,
    wait_until_idle,
)
from tests.support.real_cli_harness import CliHarness, cli_harness, count_sent, wait_for_event

ASKING = {"mode": "default"}
BEGUN = ["run.started", "token.bound", "stats.updated"]
DONE = ["text.final", "stats.updated", "run.completed"]


# -- the driving program is killed


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_a_driver_may_be_killed_in_a_stream(tmp_path: Path, ends: str) -> None:
    gate = StreamGate()
    with cli_harness(tmp_path, [answer(text("Hel", gate, "lo"))]) as harness:
        home = adopt_after_kill(harness, after_event("text.delta"), gate.open, ends=ends)

        check_adopted(home, harness)
        assert home.event_types == [*BEGUN, *DONE]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert len(harness.server.main_requests) == 1


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_a_driver_may_be_killed_in_a_tool(tmp_path: Path, ends: str) -> None:
    tool = BlockingCommand(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("It is done.")]
    with cli_harness(tmp_path, script) as harness:
        home = adopt_after_kill(
            harness, after_event("tool.started", tool.wait_until_running), tool.release, ends=ends
        )

        check_adopted(home, harness)
        assert home.event_types == [
            *BEGUN, "tool.started", "tool.completed", *DONE
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert tool.done.read_text() == "once\n"
        assert [ask.results[0]["content"] for ask in harness.server.main_requests[1:]] == ["done"]


def test_drivers_may_be_killed_before_and_after_an_approval_is_answered(tmp_path: Path) -> None:
    tool = BlockingCommand(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("It is done.")]
    with cli_harness(tmp_path, script) as harness:

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
            *BEGUN, "tool.started", "approval.requested", "approval.resolved",
            "tool.completed", *DONE,
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert [(each.verdict, each.by) for each in home.events_of(ev.ApprovalResolved)] == [
            ("allow", "library")
        ]
        assert tool.done.read_text() == "once\n"


@pytest.mark.parametrize("ends", WHEN_RELEASED)
def test_a_driver_may_be_killed_with_a_follow_up_in_the_queue_of_the_cli(
    tmp_path: Path, ends: str
) -> None:
    gate = StreamGate()
    script = [answer(text("Hel", gate, "lo")), answer("That, too.")]

    async def steered(driver: Driver) -> None:
        await driver.wait_for_event("text.delta")
        await driver.send(steer="and THAT")
        await driver.wait_for_event("followup.offered")

    with cli_harness(tmp_path, script) as harness:
        home = adopt_after_kill(harness, steered, gate.open, ends=ends)

        check_adopted(home, harness)
        assert [(run.status, run.text) for run in home.runs] == [
            ("completed", "Hello"),
            ("completed", "That, too."),
        ]
        assert [(item.text, item.delivery) for item in home.items[1:]] == [("and THAT", "own_turn")]
        assert [ask.user_text for ask in harness.server.main_requests] == ["go", "and THAT"]
        assert count_sent(harness.server, "THAT") == 1


@pytest.mark.parametrize("is_offered", [True, False], ids=["offered", "only accepted"])
def test_a_driver_may_be_killed_with_a_follow_up_for_a_tool(
    tmp_path: Path, is_offered: bool
) -> None:
    tool = BlockingCommand(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("That, too.")]
    with cli_harness(tmp_path, script) as harness:

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
            *BEGUN, "tool.started", "followup.offered", "tool.completed",
            "followup.absorbed", *DONE,
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert [(item.status, item.delivery) for item in home.items[1:]] == [
            ("completed", "absorbed")
        ]
        assert len(harness.server.main_requests) == 2
        assert count_sent(harness.server, "THAT") == 1


def test_what_is_asked_while_nobody_is_there_is_answered_by_the_next_program(
    tmp_path: Path,
) -> None:
    gate, done = StreamGate(), tmp_path / "done"
    asking = call("Bash", command=f"echo once >> {done}")
    with cli_harness(
        tmp_path, [answer(text("Hel", gate, "lo"), asking), answer("Done.")]
    ) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness, **ASKING) as driver:
                await driver.wait_for_event("text.delta")
                await driver.kill()
            gate.open()
            await wait_for_bytes(harness, b"can_use_tool")
            async with harness.library() as library:
                run = await library.run(driver.run)
                asked = await wait_for_event(
                    run, lambda event: isinstance(event, ev.ApprovalRequested)
                )
                await run.decide(asked.approval, Verdict(True))
                await run.result()
            return await read_home(harness)

        home = anyio.run(main)

        check_adopted(home, harness)
        assert [run.status for run in home.runs] == ["completed"]
        assert [each.verdict for each in home.events_of(ev.ApprovalResolved)] == ["allow"]
        assert done.read_text() == "once\n"


def test_a_driver_may_be_killed_just_after_the_turns_end(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer("Hello")]) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness) as driver:
                await driver.wait_for_event("run.completed")
                await driver.kill()
            async with harness.library() as library:
                await (await library.run(driver.run)).result()
            return await read_home(harness)

        home = anyio.run(main)

        check_adopted(home, harness)
        assert home.event_types == [*BEGUN, *DONE]
        assert len(harness.server.main_requests) == 1


# -- the CLI is killed


def test_a_cli_that_is_killed_when_idle_has_done_its_work(tmp_path: Path) -> None:
    gate = StreamGate()
    with cli_harness(tmp_path, [answer(text("Hel", gate, "lo")), answer("Again.")]) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness, "greet") as driver:
                await driver.wait_for_event("text.delta")
                # Its driver would end it as soon as it is idle.
                driver.stop()
                gate.open()
                await wait_until_idle(harness)
                await wait_for_log(harness, "Hello")
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


def test_a_cli_that_is_killed_in_a_stream_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    gate = StreamGate()
    with cli_harness(tmp_path, [answer(text("Hel", gate, "lo")), answer("Again.")]) as harness:

        async def main() -> HomeRecord:
            async with harness.library() as library:
                run = await harness.start(library, "greet")
                await wait_for_event(run, lambda event: isinstance(event, ev.TextDelta))
                await wait_for_log(harness, "greet")
                os.kill(find_cli(harness), signal.SIGKILL)
                await run.result()
            await resume_run(harness, run.id, "once more")
            return await read_home(harness)

        home = anyio.run(main)

        check_home(home, harness)
        _check_killed(home)
        assert home.event_types[: len(BEGUN) + 1] == [*BEGUN, "run.failed"]
        _check_resumed(harness, home, "greet", "once more")


def test_a_cli_that_is_killed_in_a_tool_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    tool = BlockingCommand(tmp_path)
    script = [answer("Look:", call("Bash", command=tool.command)), answer("Again.")]
    with cli_harness(tmp_path, script) as harness:

        async def main() -> HomeRecord:
            async with harness.library() as library:
                run = await harness.start(library, "look")
                await wait_for_event(run, lambda event: isinstance(event, ev.ToolStarted))
                await tool.wait_until_running()
                await wait_for_log(harness, "tool_use")
                os.kill(find_cli(harness), signal.SIGKILL)
                await run.result()
            assert tool.alive == []
            await resume_run(harness, run.id, "once more")
            return await read_home(harness)

        home = anyio.run(main)

        check_home(home, harness)
        _check_killed(home)
        assert [each.error for each in home.events_of(ev.ToolFailed)] == ["still_running"]
        _check_resumed(harness, home, "look", "Look:", "once more")


def test_a_killed_cli_gives_back_what_it_had_not_taken(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer(call("Bash", command="touch here"))]) as harness:

        async def main() -> HomeRecord:
            async with harness.library() as library:
                run = await harness.start(library, "look", **ASKING)
                await wait_for_event(run, lambda event: isinstance(event, ev.ApprovalRequested))
                assert isinstance(await run.steer("and THAT"), Offered)
                os.kill(find_cli(harness), signal.SIGKILL)
                await run.result()
            return await read_home(harness)

        home = anyio.run(main)

        check_home(home, harness)
        assert home.event_types == [
            *BEGUN, "tool.started", "approval.requested", "followup.offered",
            "approval.resolved", "followup.returned", "tool.failed", "run.failed",
        ]  # fmt: skip
        assert [(item.status, item.delivery) for item in home.items[1:]] == [
            ("cancelled", "returned")
        ]
        assert [each.verdict for each in home.events_of(ev.ApprovalResolved)] == ["cancelled"]


# -- the keeper is killed


@pytest.mark.parametrize("victims", ["keeper", "keeper and outer"])
def test_a_killed_keeper_takes_all_with_it(tmp_path: Path, victims: str) -> None:
    tool = BlockingCommand(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("Never.")]
    with cli_harness(tmp_path, script) as harness:

        async def main() -> HomeRecord:
            async with harness.library() as library:
                run = await harness.start(library, "look")
                await wait_for_event(run, lambda event: isinstance(event, ev.ToolStarted))
                await tool.wait_until_running()
                kill_keepers(harness, victims)
                await run.result()
            assert tool.alive == []
            return await read_home(harness)

        home = anyio.run(main)

        check_home(home, harness)
        _check_lost(home, harness)


def test_the_next_program_ends_what_driver_and_keepers_have_left(tmp_path: Path) -> None:
    tool = BlockingCommand(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("Never.")]
    with cli_harness(tmp_path, script) as harness:

        async def main() -> HomeRecord:
            async with start_driver(harness) as driver:
                await driver.wait_for_event("tool.started")
                await tool.wait_until_running()
                await driver.kill()
            kill_keepers(harness, "keeper and outer")
            assert len(tool.alive) == 2
            async with harness.library() as library:
                await (await library.run(driver.run)).result()
            assert tool.alive == []
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


def _check_resumed(harness: CliHarness, home: HomeRecord, *words: str) -> None:
    """The last request has the whole conversation, in this order, and each thing once."""
    assert len(harness.server.main_requests) == 2
    told = read_request(harness, 1)
    places = [told.find(f'"text":"{word}') for word in words]
    assert -1 not in places
    assert places == sorted(places)
    assert [told.count(f'"text":"{word}') for word in words] == [1] * len(words)
    assert home.runs[0].resume_token == home.runs[1].resume_token


def _check_lost(home: HomeRecord, harness: CliHarness) -> None:
    assert home.event_types == [*BEGUN, "tool.started", "tool.failed", "run.failed"]
    [run] = home.runs
    assert (run.status, run.stop_reason) == ("failed", "keeper_lost")
    assert [each.error for each in home.events_of(ev.ToolFailed)] == ["still_running"]
    assert len(harness.server.main_requests) == 1
