"""A user answers an approval from any process, also without a daemon."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import steadyrun
from steadyrun.config import load
from steadyrun.drivers.keeper_client import read_sent
from steadyrun.errors import Conflict, NotAllowed, NotFound
from steadyrun.model import event as ev
from steadyrun.model.approval import ApprovalAnswer
from steadyrun.model.ids import AgentId
from steadyrun.providers.scripted import child as scripted_child
from steadyrun.runtime.process_pool import Capacity
from tests.children.keeper_driver import eventually
from tests.support.cli_home import CliHome, cli_home, end_daemon
from tests.support.commands import COMMAND
from tests.support.daemon_harness import (
    HomeHarness,
    killable_daemon,
    open_home,
    running_daemon,
    say,
    script,
)
from tests.support.fast_clock import AdjustableClock

ASKS = (
    {"approval": {"name": "Bash", "input": {"command": "rm x"}, "output": "ok"}},
    {"text": "so"},
)


def approvals(home: CliHome, *words: str) -> list[dict[str, Any]]:
    done = home.run("approvals", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["approvals"]
    return found


def wait_for_approvals(home: CliHome, count: int = 1) -> list[dict[str, Any]]:
    """What is asked, as soon as that much is."""
    eventually(lambda: len(approvals(home)) == count, f"that {count} questions are open")
    return approvals(home)


def wait_until_settled(home: CliHome, item: str) -> str:
    eventually(lambda: home.item(item).is_settled, "the end of the item")
    return home.item(item).status


def read_resolved(home: CliHome) -> list[tuple[str, str]]:
    events = [each.event for each in home.events()]
    return [(each.verdict, each.by) for each in events if isinstance(each, ev.ApprovalResolved)]


# -- commands


def test_approval_is_listed_and_allowed(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.up()
        nothing = home.run("approvals")
        item = home.send("ada", *ASKS)
        [question] = wait_for_approvals(home)
        shown = home.run("approvals", "ada")
        done = home.run("approve", question["id"], "--json")
        again = home.run("approve", question["id"])
        status = wait_until_settled(home, item)
        [after] = approvals(home, "--all")
        too_late = home.run("deny", question["id"], "--reason", "no")

        assert nothing.stdout == "No approvals are pending.\n"
        assert (question["agent"], question["status"]) == ("ada", "open")
        assert (question["tool_name"], question["tool_input"]) == ("Bash", {"command": "rm x"})
        assert (question["verdict"], question["by"]) == (None, None)
        assert 'Bash {"command":"rm x"}' in shown.stdout
        answer = json.loads(done.stdout)
        assert (answer["verdict"], answer["status"]) == ("allow", "answered")
        assert answer["by"].startswith("cli:")
        assert again.returncode == 0
        assert (status, home.item(item).reply) == ("completed", "so")
        assert (after["status"], after["by"]) == ("resolved", answer["by"])
        assert read_resolved(home) == [("allow", answer["by"])]
        assert too_late.returncode == 5
        assert f"was already allowed by {answer['by']}" in too_late.stderr


def test_denial_needs_a_reason_and_passes_it_to_the_agent(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.up()
        item = home.send("ada", *ASKS)
        [question] = wait_for_approvals(home)
        without = home.run("deny", question["id"])
        empty = home.run("deny", question["id"], "--reason", " ")
        done = home.run("deny", question["id"].partition(":")[2], "--reason", "not on a Monday")

        assert (without.returncode, empty.returncode, done.returncode) == (2, 2, 0)
        assert done.stdout == f"denied: Bash for ada ({question['id']})\n"
        assert wait_until_settled(home, item) == "completed"
        failed = [e.event for e in home.events() if isinstance(e.event, ev.ToolFailed)]
        assert [tool.error for tool in failed] == ["denied: not on a Monday"]
        [after] = approvals(home, "--all")
        assert (after["verdict"], after["reason"]) == ("deny", "not on a Monday")


def test_approval_id_that_matches_none_or_several_is_refused(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.add_agent("bob")
        home.up()
        home.send("ada", *ASKS)
        home.send("bob", *ASKS)
        wait_for_approvals(home, 2)

        words = ["", "nonsense", "%", "prc_", "prc_x:1\n", "-1", "x" * 5000]
        done = [home.run("approve", "--", word) for word in words]

        assert [each.returncode for each in done] == [3, 3, 3, 2, 3, 3, 3]
        assert "matches several" in done[3].stderr
        assert len(approvals(home)) == 2
        assert home.run("approvals", "missing").returncode == 3
        assert home.run("approvals", "-n", "0").returncode == 2


def test_end_of_an_id_finds_the_open_request_among_settled_ones(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        for name in ("ada", "bob"):
            home.add_agent(name)
        home.up()
        first = home.send("ada", *ASKS)
        [question] = wait_for_approvals(home)
        end = ":" + question["id"].partition(":")[2]
        assert home.run("approve", end).returncode == 0
        assert wait_until_settled(home, first) == "completed"
        second = home.send("bob", *ASKS)
        [open_question] = wait_for_approvals(home)
        assert open_question["id"].endswith(end)

        tailed = home.run("tail", "bob", "--kind", "approval").stdout
        done = home.run("approve", end)

        assert open_question["id"] in tailed
        assert done.returncode == 0, done.stderr
        assert wait_until_settled(home, second) == "completed"


def test_process_of_a_run_cannot_answer_an_approval(tmp_path: Path) -> None:
    """The process here belongs to a direct run."""
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.up()
        item = home.send("ada", *ASKS)
        [question] = wait_for_approvals(home)
        command = f"{COMMAND} approve {question['id']}"
        tried = home.run("run", "--provider", "shell", command, "--json")

        assert json.loads(tried.stdout)["diagnostic"]["exit_code"] == 4
        assert [each["status"] for each in approvals(home)] == ["open"]
        assert not home.item(item).is_settled


def test_approval_is_withdrawn_when_its_run_is_cancelled(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.up()
        item = home.send("ada", *ASKS)
        [question] = wait_for_approvals(home)
        home.run("cancel", item)
        done = home.run("approve", question["id"])
        [after] = approvals(home, "--all")

        assert wait_until_settled(home, item) == "cancelled"
        assert (done.returncode, after["status"]) == (5, "withdrawn")
        assert "it needs no answer any more" in done.stderr


@pytest.mark.parametrize("is_up", [False, True], ids=["without a daemon", "with the next daemon"])
def test_approval_survives_a_killed_daemon_and_its_answer_is_delivered(
    tmp_path: Path, is_up: bool
) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        daemon = home.up()
        item = home.send("ada", *ASKS)
        [question] = wait_for_approvals(home)
        end_daemon(daemon, signal.SIGKILL)
        if is_up:
            home.up()
        assert [each["id"] for each in approvals(home)] == [question["id"]]
        words = ("deny", "--reason", "no") if is_up else ("approve",)
        done = home.run(*words, question["id"], "--json")
        assert done.returncode == 0
        if not is_up:
            assert [each["status"] for each in approvals(home)] == ["answered"]
            home.up()

        assert wait_until_settled(home, item) == "completed"
        assert home.item(item).reply == "so"
        verdict = "deny" if is_up else "allow"
        assert read_resolved(home) == [(verdict, json.loads(done.stdout)["by"])]
        assert decisions(tmp_path) == [not is_up]


def decisions(place: Path) -> list[bool]:
    """Every answer that was sent to a process of this home."""
    return [
        msgspec.json.decode(frame.raw)["allow"]
        for directory in (place / "home" / "processes").glob("*")
        for frame in read_sent(directory, 0)
        if frame.key.startswith("decide:")
    ]


# -- what happens around it


async def answer(
    harness: HomeHarness, agent: AgentId, *, is_allowed: bool = True, by: str = "eve"
) -> None:
    await harness.wait_for_event(agent, ev.ApprovalRequested)
    [question] = await harness.store.approvals(agent)
    await harness.store.answer(question.id, ApprovalAnswer(is_allowed, by, question.asked_at))


async def test_unanswered_approval_is_denied_after_its_timeout(tmp_path: Path) -> None:
    async with running_daemon(tmp_path, approval=0.1) as harness:
        ada = await harness.add_agent("ada")
        item = await harness.send_and_wait(ada, script(*ASKS))
        [question] = await harness.store.approvals(include_settled=True)

        assert item.reply == "so"
        assert question.answer
        assert (question.status, question.answer.by) == ("resolved", "timeout")
        [event] = await harness.events_of(ada, ev.ApprovalResolved)
        assert (event.verdict, event.by) == ("deny", "timeout")
        [failed] = await harness.events_of(ada, ev.ToolFailed)
        assert failed.error == "denied: no answer came in time"


async def test_run_that_waits_for_an_approval_has_no_slot_and_no_wall_timeout(
    tmp_path: Path,
) -> None:
    """Another run uses the slot, and reaches its time limit after an hour."""
    clock = AdjustableClock()
    async with running_daemon(
        tmp_path,
        Capacity(runs=1),
        clock=clock,
        idle=0.0,
        approval=0.0,
        hang=0.0,
        warning=0.0,
    ) as harness:
        ada = await harness.add_agent("ada", wall_seconds=600.0)
        bob = await harness.add_agent("bob", wall_seconds=600.0)
        waiting = await harness.send(ada, script(*ASKS))
        await harness.wait_for_event(ada, ev.ApprovalRequested)
        running = await harness.send(bob, script({"text": "one"}, harness.gates.wait_step("never")))
        await harness.wait_for_text(bob, "one")
        clock.seconds = 3600
        stopped = await harness.wait_until_settled(running)
        await answer(harness, ada)

        assert stopped.status == "failed"
        assert (await harness.runs(bob))[0].stop_reason == "wall_timeout"
        assert (await harness.wait_until_settled(waiting)).reply == "so"


def config_without_tool_starts() -> str:
    """A CLI that says nothing of a tool before it asks for it: no tool is open then."""
    child = f"{sys.executable} -I -S {Path(scripted_child.__file__).with_name('__main__.py')}"
    command = ["/bin/sh", "-c", f'{child} "$@" | grep --line-buffered -v tool_start', "cli"]
    return f"[providers.scripted]\ncommand = {json.dumps(command)}\n"


async def test_open_approval_does_not_count_as_silence(tmp_path: Path) -> None:
    """Another run that prints nothing in that hour is warned about, and stopped."""
    clock = AdjustableClock()
    limits: dict[str, Any] = {
        "idle": 600.0,
        "hang": 600.0,
        "stall": 600.0,
        "warning": 300.0,
        "approval": None,
    }
    async with running_daemon(
        tmp_path, config=config_without_tool_starts(), clock=clock, **limits
    ) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        waiting = await harness.send(ada, script(*ASKS))
        await harness.wait_for_event(ada, ev.ApprovalRequested)
        silent = await harness.send(bob, script({"text": "one"}, harness.gates.wait_step("never")))
        await harness.wait_for_text(bob, "one")
        # The timeouts of both are checked together, those of ada first.
        clock.seconds = 3600
        await harness.wait_until_settled(silent)
        clock.seconds = 0
        assert await harness.events_of(ada, ev.ToolStarted) == []
        await answer(harness, ada)

        assert (await harness.wait_until_settled(waiting)).reply == "so"
        assert [run.stop_reason for run in await harness.runs(bob)] == ["idle_timeout"]
        assert len(await harness.events_of(bob, ev.StallWarned)) == 1
        assert [run.stop_reason for run in await harness.runs(ada)] == [None]
        assert await harness.events_of(ada, ev.StallWarned) == []


def test_answer_at_any_moment_of_a_takeover_is_delivered_once(tmp_path: Path) -> None:
    """Before the daemon is killed, while there is none, and when the next one is there."""

    async def main(place: Path, moment: str) -> None:
        async with killable_daemon(place) as (home, daemon):
            ada = await home.add_agent("ada")
            await daemon.wait_until_up()
            item = await home.send(ada, script(*ASKS))
            await home.wait_for_event(ada, ev.ApprovalRequested)
            if moment == "before":
                await answer(home, ada)
            daemon.kill()
            if moment == "between":
                await answer(home, ada)
        async with running_daemon(place) as harness:
            if moment == "after":
                await answer(harness, ada)
            assert (await harness.wait_until_settled(item)).reply == "so"
            assert await harness.events_of(ada, ev.ApprovalResolved)
        async with open_home(place) as home:
            [question] = await home.store.approvals(include_settled=True)
            assert question.status == "resolved"
        assert decisions(place) == [True]

    for moment in ("before", "between", "after"):
        place = tmp_path / moment
        place.mkdir()
        anyio.run(main, place, moment)


async def test_second_approval_of_a_run_has_its_own_answer(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        twice = script({"approval": "Bash"}, {"approval": "Write"}, {"text": "so"})
        item = await harness.send(ada, twice)
        await answer(harness, ada)
        await harness.wait_for_event(ada, ev.ApprovalRequested, 2)
        await answer(harness, ada, is_allowed=False, by="bo")
        await harness.wait_until_settled(item)
        await harness.send_and_wait(ada, say("next"))

        found = await harness.store.approvals(include_settled=True)
        assert [each.tool_name for each in found] == ["Write", "Bash"]
        assert [each.by for each in await harness.events_of(ada, ev.ApprovalResolved)] == [
            "eve",
            "bo",
        ]


# -- who may answer


def test_only_named_approvers_may_answer(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada", approvers="cli:other-user,library")
        home.up()
        item = home.send("ada", *ASKS)
        [question] = wait_for_approvals(home)
        refused = home.run("approve", question["id"])
        denied = home.run("deny", question["id"], "--reason", "no")
        shown = home.run("agent", "show", "ada").stdout
        still_open = approvals(home)

        async def main() -> None:
            environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
            async with steadyrun.open(load(home=home.path, environ=environ)) as sr:
                with pytest.raises(NotAllowed):
                    await sr.answer(question["id"], allow=True, by="cli:eve")
                await sr.answer(question["id"], allow=True)

        anyio.run(main)

        assert (refused.returncode, denied.returncode) == (4, 4)
        assert "may not answer for ada" in refused.stderr
        assert "Allowed are: cli:other-user, library" in refused.stderr
        assert "cli:other-user, library" in shown
        assert [each["status"] for each in still_open] == ["open"]
        assert wait_until_settled(home, item) == "completed"
        assert read_resolved(home) == [("allow", "library")]


def test_approvers_of_an_agent_are_set_and_cleared(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")

        def approvers(*words: str) -> list[str]:
            done = home.run("agent", "set", "ada", *words, "--json")
            assert done.returncode == 0, done.stderr
            found: list[str] = json.loads(done.stdout)["approvers"]
            return found

        assert approvers("--approvers", "cli:eve") == ["cli:eve"]
        assert approvers("--model", "m") == ["cli:eve"]
        assert approvers("--clear", "approvers") == []


# -- the library


async def test_approval_of_a_direct_run_is_answered_by_another_holder(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    config = load(home=tmp_path / "home", cwd=tmp_path, environ=environ)
    async with steadyrun.open(config) as driving, steadyrun.open(config) as other:
        run = await driving.start(script(*ASKS), provider="scripted", cwd=tmp_path)
        async for seen in run.events():
            if isinstance(seen.event, ev.ApprovalRequested):
                break
        [question] = await other.approvals()
        answered = await other.answer(question.id, allow=False, reason="no", by="eve")
        with pytest.raises(Conflict):
            await driving.answer(question.id, allow=True)
        with pytest.raises(NotFound):
            await driving.answer("nonsense", allow=True)
        with pytest.raises(NotFound):
            await driving.answer(f"{run.id}:nonsense", allow=True)
        result = await run.result()

        assert (question.run, question.status) == (run.id, "open")
        assert (answered.verdict, answered.by) == ("deny", "eve")
        assert result.text == "so"
        assert await other.approvals() == ()
        [after] = await other.approvals(include_settled=True)
        assert (after.status, after.reason) == ("resolved", "no")


async def test_approval_is_answered_by_its_run_and_its_name_in_the_event(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    config = load(home=tmp_path / "home", cwd=tmp_path, environ=environ)
    async with steadyrun.open(config) as sr:
        run = await sr.start(script(*ASKS), provider="scripted", cwd=tmp_path)
        async for seen in run.events():
            if isinstance(seen.event, ev.ApprovalRequested):
                await sr.answer(f"{seen.run}:{seen.event.approval}", allow=True)
        result = await run.result()

        [answered] = await sr.approvals(include_settled=True)
        assert (answered.run, answered.verdict) == (run.id, "allow")
        assert result.status == "completed"


# -- for good


def test_tool_that_is_always_allowed_is_not_asked_for_again(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.up()
        item = home.send("ada", *ASKS, *ASKS, {"approval": "Write"})
        [question] = wait_for_approvals(home)
        home.run("approve", question["id"], "--always")
        eventually(lambda: len(approvals(home, "--all")) == 2, "the other question")
        [other] = wait_for_approvals(home)
        home.run("approve", other["id"])

        assert wait_until_settled(home, item) == "completed"
        found = approvals(home, "--all")
        assert [(each["tool_name"], each["always"]) for each in found] == [
            ("Write", False), ("Bash", True),
        ]  # fmt: skip
