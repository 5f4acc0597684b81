"""A warm process serves its agent until a limit or a change closes it."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import anyio
import msgspec
import pytest

from steadyrun.providers.scripted import child
from steadyrun.runtime.process_pool import Capacity
from tests.support.daemon_harness import (
    DaemonHarness,
    find_cli,
    read_turns,
    running_daemon,
    say,
    script,
    wait_for,
)
from tests.support.fast_clock import AdjustableClock

ENTRY = str(Path(child.__file__).with_name("__main__.py"))


async def _processes(harness: DaemonHarness, agent: str) -> list[str | None]:
    return [run.process for run in await harness.runs(agent)]  # type: ignore[arg-type]


async def _change_soul(harness: DaemonHarness, name: str) -> None:
    await anyio.Path(harness.place / name / "SOUL.md").write_text("I am patient.")


async def _change_role(harness: DaemonHarness, name: str) -> None:
    roles = anyio.Path(harness.place / "home" / "roles")
    await roles.mkdir()
    await (roles / "clerk.md").write_text("You keep the books.")
    await harness.set_agent((await harness.store.agent(name)).id, role="clerk")


async def _change_system(harness: DaemonHarness, name: str) -> None:
    await harness.set_agent((await harness.store.agent(name)).id, system="Be brief.")


def test_every_launched_process_is_logged_as_closed(tmp_path: Path) -> None:
    async def main() -> DaemonHarness:
        async with running_daemon(tmp_path, Capacity(processes=1)) as harness:
            ada, bo = await harness.add_agent("ada"), await harness.add_agent("bo", "shell")
            await harness.send_and_wait(ada, say("one"))
            await harness.send_and_wait(bo, "true")
            await harness.send_and_wait(ada, say("two"))
            await _change_system(harness, "ada")
            await harness.send_and_wait(ada, say("three"))
            return harness

    facts = anyio.run(main).log

    launched = [(each["agent"], each["process"]) for each in facts.facts_of("process.launched")]
    closed = [(each["agent"], each["process"]) for each in facts.facts_of("process.closed")]
    assert sorted(closed) == sorted(launched)
    assert {name for name, _ in closed} == {"ada", "bo"}


CHANGES = {"SOUL.md": _change_soul, "the role": _change_role, "the system prompt": _change_system}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_changed_system_prompt_launches_a_new_process_in_the_same_conversation(
    tmp_path: Path, change: object
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        await harness.send_and_wait(ada, say("one"))
        await change(harness, "ada")  # type: ignore[operator]
        await harness.send_and_wait(ada, script("recall"))
        await harness.send_and_wait(ada, say("three"))

        first, second, third = await harness.runs(ada)
        assert first.process != second.process == third.process
        assert first.resume_token == second.resume_token
        recalled = msgspec.json.decode((await harness.texts(ada))[1])
        assert say("one") in recalled["earlier"]
        assert len(await harness.store.processes()) == 1


def test_conversation_continues_after_a_restart_with_another_provider_option(
    tmp_path: Path,
) -> None:
    """The daemon has to be started again for that: it leaves the process, which does not fit."""

    async def main(config: str, text: str) -> None:
        async with running_daemon(tmp_path, config=config) as harness:
            agents = await harness.store.agents()
            ada = agents[0].id if agents else await harness.add_agent("ada")
            await harness.send_and_wait(ada, say(text))
            tokens = {run.resume_token for run in await harness.runs(ada)}
            assert len(tokens) == 1

    anyio.run(main, "", "one")
    anyio.run(main, '[providers.scripted.options]\nscript = "other.json"\n', "two")


async def test_longest_idle_process_is_closed_at_the_process_limit(tmp_path: Path) -> None:
    async with running_daemon(tmp_path, Capacity(processes=2)) as harness:
        ada, bob, eve = [await harness.add_agent(name) for name in ("ada", "bob", "eve")]
        await harness.send_and_wait(ada, say("one"))
        await harness.send_and_wait(bob, say("two"))
        await harness.send_and_wait(ada, say("three"))
        await harness.send_and_wait(eve, say("four"))

        lanes = {agent: (await harness.store.lane(agent)).status for agent in (ada, bob, eve)}
        assert lanes == {ada: "warm", bob: "idle", eve: "warm"}
        await harness.send_and_wait(bob, say("five"))
        assert (await harness.store.lane(ada)).status == "idle"
        assert len({run.resume_token for run in await harness.runs(bob)}) == 1


async def test_busy_process_is_not_closed_at_the_process_limit(tmp_path: Path) -> None:
    async with running_daemon(tmp_path, Capacity(processes=1)) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        busy = await harness.send(ada, script({"text": "one"}, harness.gates.wait_step("go")))
        await harness.wait_for_text(ada, "one")
        other = await harness.send_and_wait(bob, say("two"))
        harness.gates.open("go")

        assert other.status == "completed"
        assert (await harness.wait_until_settled(busy)).status == "completed"
        # There is room for one: it is the one that came to its end last, or none.
        assert len(await harness.store.processes()) <= 1


async def test_process_is_closed_after_its_idle_time(tmp_path: Path) -> None:
    clock = AdjustableClock()
    async with running_daemon(tmp_path, clock=clock) as harness:
        ada = await harness.add_agent("ada")
        await harness.send_and_wait(ada, say("one"))
        clock.seconds = 290
        await harness.send_and_wait(ada, say("two"))
        clock.seconds += 290
        assert (await harness.store.lane(ada)).status == "warm"
        clock.seconds += 11
        await harness.wait_for_lane(ada, "idle")

        assert await harness.store.processes() == []
        after = await harness.send_and_wait(ada, script("recall"))
        assert "two" in str(after.reply)
        assert (await _processes(harness, ada))[0] != (await _processes(harness, ada))[-1]


async def test_process_without_an_idle_limit_stays_open(tmp_path: Path) -> None:
    clock = AdjustableClock()
    async with running_daemon(tmp_path, Capacity(idle_seconds=0), clock=clock) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        await harness.send_and_wait(ada, say("one"))
        clock.seconds = timedelta(days=30).total_seconds()
        # The pool checks its processes at least twice in this time.
        await harness.send_and_wait(bob, script({"wait": 2.2}))

        assert (await harness.store.lane(ada)).status == "warm"


async def test_idle_process_that_exits_is_replaced_in_the_same_conversation(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        await harness.send_and_wait(ada, say("one"))
        os.kill(find_cli(await harness.find_process(ada)), signal.SIGKILL)
        await harness.wait_for_lane(ada, "idle")

        assert await harness.store.processes() == []
        after = await harness.send_and_wait(ada, say("two"))
        first, second = await harness.runs(ada)
        assert (after.status, after.attempt) == ("completed", 1)
        assert first.process != second.process
        assert first.resume_token == second.resume_token


async def test_process_of_a_single_turn_provider_is_closed_after_its_turn(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada", "shell")
        await harness.send_and_wait(ada, "echo one")
        await harness.wait_for_lane(ada, "idle")
        await harness.send_and_wait(ada, "echo two")
        await harness.wait_for_lane(ada, "idle")

        assert len(set(await _processes(harness, ada))) == 2
        assert await harness.store.processes() == []


async def test_process_with_a_long_journal_is_closed_after_its_turn(tmp_path: Path) -> None:
    async with running_daemon(tmp_path, Capacity(journal_bytes=100_000)) as harness:
        ada = await harness.add_agent("ada")
        await harness.send_and_wait(ada, say("little"))
        await harness.send_and_wait(ada, script({"flood": {"count": 200}}))
        await harness.wait_for_lane(ada, "idle")
        await harness.send_and_wait(ada, say("more"))

        first, second, third = await _processes(harness, ada)
        assert first == second != third


async def test_problem_found_at_launch_is_recorded_as_one_note(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        (tmp_path / "ada" / "PERMISSIONS.json").write_text(f'{{"note": "{"x" * 501}"}}')
        await harness.send_and_wait(ada, say("one"))
        await harness.send_and_wait(ada, say("two"))

        notes = await harness.notes(ada)
        assert notes == ["PERMISSIONS.json: note has more than 500 characters; it is cut"]


async def test_agent_that_returns_to_a_provider_continues_its_conversation(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada")
        await harness.send_and_wait(ada, say("one"))
        await harness.set_agent(ada, providers=("shell",))
        other = await harness.send_and_wait(ada, "echo two")
        await harness.set_agent(ada, providers=("scripted",))
        again = await harness.send_and_wait(ada, script("recall"))

        assert other.reply == "two"
        assert "one" in str(again.reply)
        first, _, third = await harness.runs(ada)
        assert first.resume_token == third.resume_token


async def test_idle_process_with_background_work_is_not_closed(tmp_path: Path) -> None:
    clock = AdjustableClock()
    async with running_daemon(tmp_path, Capacity(processes=1), clock=clock) as harness:
        ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
        later = {"self_turn": {"after": 3600, "steps": [{"text": "later"}]}}
        await harness.send_and_wait(ada, script(later, {"text": "one"}))
        clock.seconds = 301
        await harness.send_and_wait(bob, script({"wait": 2.2}, {"text": "two"}))

        assert (await harness.store.lane(ada)).status == "warm"
        assert harness.daemon.find_process_state(ada) == "background"
        assert (await harness.store.lane(bob)).status == "idle"


async def test_item_that_arrives_while_its_process_closes_gets_a_new_process(
    tmp_path: Path,
) -> None:
    """The process takes long to end, and nothing is sent to it any more."""
    clock = AdjustableClock()
    # A CLI that ends only when the gate is open.
    slow = "#!/bin/sh\ntrap '' TERM\n\"$@\"\nuntil test -e GO; do sleep 0.02; done\n"
    program = tmp_path / "slow"
    program.write_text(slow.replace("GO", str(tmp_path / "gate-go")))
    program.chmod(0o755)
    argv = [str(program), sys.executable, "-I", "-S", ENTRY]
    config = f"[providers.scripted]\ncommand = {argv}\n"
    async with running_daemon(tmp_path, clock=clock, config=config) as harness:
        ada = await harness.add_agent("ada")
        await harness.send_and_wait(ada, say("one"))
        clock.seconds = 301
        worker = harness.find_worker(ada)
        await wait_for(
            lambda: worker.slot.process is None or worker.slot.process.is_closing, "the closing"
        )
        second = await harness.send(ada, say("two"))
        await harness.wait_for_lane(ada, "held")
        harness.gates.open("go")
        item = await harness.wait_until_settled(second)

        first, last = await harness.runs(ada)
        assert (item.status, item.attempt) == ("completed", 1)
        assert first.process != last.process
        assert len(read_turns(tmp_path)) == 2
