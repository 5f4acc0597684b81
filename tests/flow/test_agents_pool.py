"""A warm process serves its agent until a limit or a change closes it."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import anyio
import msgspec
import pytest

from steadyrun.lib.clock import SystemClock
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

ENTRY = str(Path(child.__file__).with_name("__main__.py"))


class Ahead(SystemClock):
    """The machine's clock, put forward by hand."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


async def _processes(harness: DaemonHarness, agent: str) -> list[str | None]:
    return [run.process for run in await harness.runs(agent)]  # type: ignore[arg-type]


async def _soul(harness: DaemonHarness, name: str) -> None:
    await anyio.Path(harness.place / name / "SOUL.md").write_text("I am patient.")


async def _role(harness: DaemonHarness, name: str) -> None:
    roles = anyio.Path(harness.place / "home" / "roles")
    await roles.mkdir()
    await (roles / "clerk.md").write_text("You keep the books.")
    await harness.set_agent((await harness.store.agent(name)).id, role="clerk")


async def _system(harness: DaemonHarness, name: str) -> None:
    await harness.set_agent((await harness.store.agent(name)).id, system="Be brief.")


def test_launched_process_is_logged_as_closed_when_it_ends(tmp_path: Path) -> None:
    async def main() -> DaemonHarness:
        async with running_daemon(tmp_path, Capacity(processes=1)) as harness:
            ada, bo = await harness.add_agent("ada"), await harness.add_agent("bo", "shell")
            await harness.send_and_wait(ada, say("one"))
            await harness.send_and_wait(bo, "true")
            await harness.send_and_wait(ada, say("two"))
            await _system(harness, "ada")
            await harness.send_and_wait(ada, say("three"))
            return harness

    facts = anyio.run(main).log

    launched = [(each["agent"], each["process"]) for each in facts.facts_of("process.launched")]
    closed = [(each["agent"], each["process"]) for each in facts.facts_of("process.closed")]
    assert sorted(closed) == sorted(launched)
    assert {name for name, _ in closed} == {"ada", "bo"}


CHANGES = {"SOUL.md": _soul, "the role": _role, "the system prompt": _system}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_standing_prompt_wants_another_process(tmp_path: Path, change: object) -> None:
    async def main() -> None:
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
            assert len(await harness.store.open_processes(ada)) == 1

    anyio.run(main)


def test_another_option_of_the_provider_wants_another_process(tmp_path: Path) -> None:
    """The daemon has to be started again for that: it leaves the process, which does not fit."""

    async def main(config: str, text: str) -> None:
        async with running_daemon(tmp_path, config=config) as harness:
            known = await harness.store.agents()
            ada = known[0].id if known else await harness.add_agent("ada")
            await harness.send_and_wait(ada, say(text))
            tokens = {run.resume_token for run in await harness.runs(ada)}
            assert len(tokens) == 1

    anyio.run(main, "", "one")
    anyio.run(main, '[providers.scripted.options]\nscript = "other.json"\n', "two")


def test_the_process_that_has_waited_longest_makes_room(tmp_path: Path) -> None:
    async def main() -> None:
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

    anyio.run(main)


def test_a_process_that_is_busy_is_not_closed_for_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path, Capacity(processes=1)) as harness:
            ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
            busy = await harness.send(ada, script({"text": "one"}, harness.gates.wait_step("go")))
            await harness.wait_for_text(ada, "one")
            other = await harness.send_and_wait(bob, say("two"))
            harness.gates.open("go")

            assert other.status == "completed"
            assert (await harness.wait_until_settled(busy)).status == "completed"
            # There is room for one: it is the one that came to its end last, or none.
            assert len(await harness.store.open_processes()) <= 1

    anyio.run(main)


def test_a_process_that_waits_too_long_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Ahead()
        async with running_daemon(tmp_path, clock=clock) as harness:
            ada = await harness.add_agent("ada")
            await harness.send_and_wait(ada, say("one"))
            clock.seconds = 290
            await harness.send_and_wait(ada, say("two"))
            clock.seconds += 290
            assert (await harness.store.lane(ada)).status == "warm"
            clock.seconds += 11
            await harness.wait_for_lane(ada, "idle")

            assert await harness.store.open_processes() == []
            after = await harness.send_and_wait(ada, script("recall"))
            assert "two" in str(after.reply)
            assert (await _processes(harness, ada))[0] != (await _processes(harness, ada))[-1]

    anyio.run(main)


def test_without_a_limit_a_process_waits_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Ahead()
        async with running_daemon(tmp_path, Capacity(idle_seconds=0), clock=clock) as harness:
            ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
            await harness.send_and_wait(ada, say("one"))
            clock.seconds = timedelta(days=30).total_seconds()
            # Two looks at the clock later.
            await harness.send_and_wait(bob, script({"wait": 2.2}))

            assert (await harness.store.lane(ada)).status == "warm"

    anyio.run(main)


def test_a_process_that_dies_while_it_waits_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            await harness.send_and_wait(ada, say("one"))
            os.kill(find_cli(await harness.find_process(ada)), signal.SIGKILL)
            await harness.wait_for_lane(ada, "idle")

            assert await harness.store.open_processes() == []
            after = await harness.send_and_wait(ada, say("two"))
            first, second = await harness.runs(ada)
            assert (after.status, after.attempt) == ("completed", 1)
            assert first.process != second.process
            assert first.resume_token == second.resume_token

    anyio.run(main)


def test_a_provider_that_serves_one_turn_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada", "shell")
            await harness.send_and_wait(ada, "echo one")
            await harness.wait_for_lane(ada, "idle")
            await harness.send_and_wait(ada, "echo two")
            await harness.wait_for_lane(ada, "idle")

            assert len(set(await _processes(harness, ada))) == 2
            assert await harness.store.open_processes() == []

    anyio.run(main)


def test_a_process_that_has_printed_too_much_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path, Capacity(journal_bytes=100_000)) as harness:
            ada = await harness.add_agent("ada")
            await harness.send_and_wait(ada, say("little"))
            await harness.send_and_wait(ada, script({"flood": {"count": 200}}))
            await harness.wait_for_lane(ada, "idle")
            await harness.send_and_wait(ada, say("more"))

            first, second, third = await _processes(harness, ada)
            assert first == second != third

    anyio.run(main)


def test_problem_found_at_launch_is_recorded_as_a_note(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_daemon(tmp_path) as harness:
            ada = await harness.add_agent("ada")
            (tmp_path / "ada" / "PERMISSIONS.json").write_text(f'{{"note": "{"x" * 501}"}}')
            await harness.send_and_wait(ada, say("one"))
            await harness.send_and_wait(ada, say("two"))

            notes = await harness.notes(ada)
            assert notes == ["PERMISSIONS.json: note has more than 500 characters; it is cut"]

    anyio.run(main)


def test_an_agent_that_changes_its_provider_has_another_process(tmp_path: Path) -> None:
    async def main() -> None:
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

    anyio.run(main)


def test_a_process_that_goes_on_by_itself_is_not_closed(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Ahead()
        async with running_daemon(tmp_path, Capacity(processes=1), clock=clock) as harness:
            ada, bob = await harness.add_agent("ada"), await harness.add_agent("bob")
            later = {"self_turn": {"after": 3600, "steps": [{"text": "later"}]}}
            await harness.send_and_wait(ada, script(later, {"text": "one"}))
            clock.seconds = 301
            await harness.send_and_wait(bob, script({"wait": 2.2}, {"text": "two"}))

            assert (await harness.store.lane(ada)).status == "warm"
            assert harness.daemon.find_process_state(ada) == "background"
            assert (await harness.store.lane(bob)).status == "idle"

    anyio.run(main)


def test_an_item_that_comes_while_its_process_is_closed_has_another(tmp_path: Path) -> None:
    """The process takes its time to end: nothing is told to it any more."""

    async def main() -> None:
        clock = Ahead()
        # A script that ends only when its turn is over: the eof comes in the middle of nothing.
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
            seat = harness.daemon.workers.find(ada)
            assert seat
            await wait_for(
                lambda: seat.slot.live is None or seat.slot.live.is_closing, "the closing"
            )
            second = await harness.send(ada, say("two"))
            await harness.wait_for_lane(ada, "held")
            harness.gates.open("go")
            item = await harness.wait_until_settled(second)

            first, last = await harness.runs(ada)
            assert (item.status, item.attempt) == ("completed", 1)
            assert first.process != last.process
            assert len(read_turns(tmp_path)) == 2

    anyio.run(main)
