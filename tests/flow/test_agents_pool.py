"""Which process serves an agent, and for how long? As long as nothing speaks against it."""

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
from steadyrun.runtime.dispatcher import Capacity
from tests.support.daemon_harness import Team, begun, cli_of, says, script, wait_for, working

ENTRY = str(Path(child.__file__).with_name("__main__.py"))


class Ahead(SystemClock):
    """The machine's clock, put forward by hand."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


async def _processes(team: Team, agent: str) -> list[str | None]:
    return [run.process for run in await team.runs(agent)]  # type: ignore[arg-type]


async def _soul(team: Team, name: str) -> None:
    await anyio.Path(team.place / name / "SOUL.md").write_text("I am patient.")


async def _role(team: Team, name: str) -> None:
    roles = anyio.Path(team.place / "home" / "roles")
    await roles.mkdir()
    await (roles / "clerk.md").write_text("You keep the books.")
    await team.change((await team.store.agent(name)).id, role="clerk")


async def _system(team: Team, name: str) -> None:
    await team.change((await team.store.agent(name)).id, system="Be brief.")


def test_whoever_is_launched_is_said_to_be_gone_when_it_is(tmp_path: Path) -> None:
    async def main() -> Team:
        async with working(tmp_path, Capacity(processes=1)) as team:
            ada, bo = await team.hire("ada"), await team.hire("bo", "shell")
            await team.done(ada, says("one"))
            await team.done(bo, "true")
            await team.done(ada, says("two"))
            await _system(team, "ada")
            await team.done(ada, says("three"))
            return team

    facts = anyio.run(main).facts

    launched = [(each["agent"], each["process"]) for each in facts.of("process.launched")]
    closed = [(each["agent"], each["process"]) for each in facts.of("process.closed")]
    assert sorted(closed) == sorted(launched)
    assert {name for name, _ in closed} == {"ada", "bo"}


CHANGES = {"SOUL.md": _soul, "the role": _role, "the system prompt": _system}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_standing_prompt_wants_another_process(tmp_path: Path, change: object) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            await team.done(ada, says("one"))
            await change(team, "ada")  # type: ignore[operator]
            await team.done(ada, script("recall"))
            await team.done(ada, says("three"))

            first, second, third = await team.runs(ada)
            assert first.process != second.process == third.process
            assert first.resume_token == second.resume_token
            recalled = msgspec.json.decode((await team.texts(ada))[1])
            assert says("one") in recalled["earlier"]
            assert len(await team.store.open_processes(ada)) == 1

    anyio.run(main)


def test_another_option_of_the_provider_wants_another_process(tmp_path: Path) -> None:
    """The daemon has to be started again for that: it leaves the process, which does not fit."""

    async def main(config: str, text: str) -> None:
        async with working(tmp_path, config=config) as team:
            known = await team.store.agents()
            ada = known[0].id if known else await team.hire("ada")
            await team.done(ada, says(text))
            tokens = {run.resume_token for run in await team.runs(ada)}
            assert len(tokens) == 1

    anyio.run(main, "", "one")
    anyio.run(main, '[providers.scripted.options]\nscript = "other.json"\n', "two")


def test_the_process_that_has_waited_longest_makes_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, Capacity(processes=2)) as team:
            ada, bob, eve = [await team.hire(name) for name in ("ada", "bob", "eve")]
            await team.done(ada, says("one"))
            await team.done(bob, says("two"))
            await team.done(ada, says("three"))
            await team.done(eve, says("four"))

            lanes = {agent: (await team.store.lane(agent)).status for agent in (ada, bob, eve)}
            assert lanes == {ada: "warm", bob: "idle", eve: "warm"}
            await team.done(bob, says("five"))
            assert (await team.store.lane(ada)).status == "idle"
            assert len({run.resume_token for run in await team.runs(bob)}) == 1

    anyio.run(main)


def test_a_process_that_is_busy_is_not_closed_for_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, Capacity(processes=1)) as team:
            ada, bob = await team.hire("ada"), await team.hire("bob")
            busy = await team.send(ada, script({"text": "one"}, team.gates.until("go")))
            await team.until_said(ada, "one")
            other = await team.done(bob, says("two"))
            team.gates.open("go")

            assert other.status == "completed"
            assert (await team.settled(busy)).status == "completed"
            # There is room for one: it is the one that came to its end last, or none.
            assert len(await team.store.open_processes()) <= 1

    anyio.run(main)


def test_a_process_that_waits_too_long_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Ahead()
        async with working(tmp_path, clock=clock) as team:
            ada = await team.hire("ada")
            await team.done(ada, says("one"))
            clock.seconds = 290
            await team.done(ada, says("two"))
            clock.seconds += 290
            assert (await team.store.lane(ada)).status == "warm"
            clock.seconds += 11
            await team.until_lane(ada, "idle")

            assert await team.store.open_processes() == []
            after = await team.done(ada, script("recall"))
            assert "two" in str(after.reply)
            assert (await _processes(team, ada))[0] != (await _processes(team, ada))[-1]

    anyio.run(main)


def test_without_a_limit_a_process_waits_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Ahead()
        async with working(tmp_path, Capacity(idle_seconds=0), clock=clock) as team:
            ada, bob = await team.hire("ada"), await team.hire("bob")
            await team.done(ada, says("one"))
            clock.seconds = timedelta(days=30).total_seconds()
            # Two looks at the clock later.
            await team.done(bob, script({"wait": 2.2}))

            assert (await team.store.lane(ada)).status == "warm"

    anyio.run(main)


def test_a_process_that_dies_while_it_waits_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            await team.done(ada, says("one"))
            os.kill(cli_of(await team.process_of(ada)), signal.SIGKILL)
            await team.until_lane(ada, "idle")

            assert await team.store.open_processes() == []
            after = await team.done(ada, says("two"))
            first, second = await team.runs(ada)
            assert (after.status, after.attempt) == ("completed", 1)
            assert first.process != second.process
            assert first.resume_token == second.resume_token

    anyio.run(main)


def test_a_provider_that_serves_one_turn_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada", "shell")
            await team.done(ada, "echo one")
            await team.until_lane(ada, "idle")
            await team.done(ada, "echo two")
            await team.until_lane(ada, "idle")

            assert len(set(await _processes(team, ada))) == 2
            assert await team.store.open_processes() == []

    anyio.run(main)


def test_a_process_that_has_printed_too_much_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path, Capacity(journal_bytes=100_000)) as team:
            ada = await team.hire("ada")
            await team.done(ada, says("little"))
            await team.done(ada, script({"flood": {"count": 200}}))
            await team.until_lane(ada, "idle")
            await team.done(ada, says("more"))

            first, second, third = await _processes(team, ada)
            assert first == second != third

    anyio.run(main)


def test_what_was_found_wrong_at_a_launch_is_noted(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            (tmp_path / "ada" / "PERMISSIONS.json").write_text(f'{{"note": "{"x" * 501}"}}')
            await team.done(ada, says("one"))
            await team.done(ada, says("two"))

            notes = await team.notes(ada)
            assert notes == ["PERMISSIONS.json: note has more than 500 characters; it is cut"]

    anyio.run(main)


def test_an_agent_that_changes_its_provider_has_another_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as team:
            ada = await team.hire("ada")
            await team.done(ada, says("one"))
            await team.change(ada, providers=("shell",))
            other = await team.done(ada, "echo two")
            await team.change(ada, providers=("scripted",))
            again = await team.done(ada, script("recall"))

            assert other.reply == "two"
            assert "one" in str(again.reply)
            first, _, third = await team.runs(ada)
            assert first.resume_token == third.resume_token

    anyio.run(main)


def test_a_process_that_goes_on_by_itself_is_not_closed(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Ahead()
        async with working(tmp_path, Capacity(processes=1), clock=clock) as team:
            ada, bob = await team.hire("ada"), await team.hire("bob")
            later = {"self_turn": {"after": 3600, "steps": [{"text": "later"}]}}
            await team.done(ada, script(later, {"text": "one"}))
            clock.seconds = 301
            await team.done(bob, script({"wait": 2.2}, {"text": "two"}))

            assert (await team.store.lane(ada)).status == "warm"
            assert team.daemon.process_state(ada) == "background"
            assert (await team.store.lane(bob)).status == "idle"

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
        async with working(tmp_path, clock=clock, config=config) as team:
            ada = await team.hire("ada")
            await team.done(ada, says("one"))
            clock.seconds = 301
            seat = team.daemon.seats.of(ada)
            assert seat
            await wait_for(lambda: seat.live is None or seat.live.is_closing, "the closing")
            second = await team.send(ada, says("two"))
            await team.until_lane(ada, "held")
            team.gates.open("go")
            item = await team.settled(second)

            first, last = await team.runs(ada)
            assert (item.status, item.attempt) == ("completed", 1)
            assert first.process != last.process
            assert len(begun(tmp_path)) == 2

    anyio.run(main)
