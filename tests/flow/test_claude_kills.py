"""Does a run of the real Claude Code survive kill -9: of the CLI, of its driver, of its keeper?

Whoever is killed, the record must say what happened, once and in order; what was said to the model
must have reached it once; and nothing may be left running.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from anyio.abc import Process as Child
from anyio.streams.buffered import BufferedByteReceiveStream

from steadyrun import keeper
from steadyrun.library import Offered
from steadyrun.model import event as ev
from steadyrun.model.event import StoredEvent, type_of
from steadyrun.model.ids import RunId
from steadyrun.model.item import Item, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.provider import Verdict
from steadyrun.providers import keeping
from steadyrun.runtime.feed import LAST
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.simulated.faults import Gate
from steadyrun.testing.simulated.messages import answer, call, text
from tests.children import claude_driver
from tests.children.claude_driver import LONGEST_LINE, Order, Wish
from tests.children.keeper_driver import eventually, parent
from tests.claude_stage import ALL, PATIENCE_SECONDS, Stage, staged, times_told, until
from tests.commands import ROOT

FULL_AUTO, ASKING = {"mode": "full_auto"}, {"mode": "default"}
# When what the driver was killed in comes to its end.
ALONE, ENDS = "while nobody is there", ("while nobody is there", "after somebody has come")
BEGUN = ["run.started", "token.bound", "stats.updated"]
DONE = ["text.final", "stats.updated", "run.completed"]


@dataclass(frozen=True)
class Home:
    """All that is recorded in a home."""

    runs: list[Run]
    items: list[Item]
    events: list[StoredEvent]
    lanes: list[str]
    processes: list[Process]
    problems: list[str]

    @property
    def outline(self) -> list[str]:
        """What happened; tokens are counted whenever the CLI gets round to it."""
        kinds = [type_of(seen.event) for seen in self.events]
        return [kind for kind in kinds if kind != "usage.updated"]

    def of(self, *kinds: type) -> list[Any]:
        return [seen.event for seen in self.events if isinstance(seen.event, kinds)]


async def read(stage: Stage) -> Home:
    store = await SqliteStore.open(stage.home)
    try:
        agents = await store.agents()
        return Home(
            runs=list(reversed(await store.runs())),
            items=sorted(await store.items(include_settled=True), key=lambda item: item.created_at),
            events=await store.events(limit=ALL),
            lanes=[(await store.lane(agent.id)).status for agent in agents],
            processes=await store.open_processes(),
            problems=await store.check(),
        )
    finally:
        await store.close()


def check(home: Home, stage: Stage) -> None:
    """Everything is there once and in order, all is settled, and nothing was written twice."""
    by_agent: dict[str, list[int]] = {}
    for seen in home.events:
        by_agent.setdefault(seen.agent, []).append(seen.seq)
    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in by_agent.values())
    assert len({seen.id for seen in home.events}) == len(home.events)
    assert home.problems == []
    assert home.processes == []
    assert set(home.lanes) == {"idle"}
    assert all(item.is_settled for item in home.items)
    for run in home.runs:
        kinds = [type(seen.event) for seen in home.events if seen.run == run.id]
        assert [kind for kind in kinds if kind is ev.RunStarted] == kinds[:1]
        assert [kind for kind in kinds if kind in LAST] == kinds[-1:]
    for directory in stage.home.glob("processes/*"):
        keys = [frame.key for frame in keeping.read_sent(directory, after=0)]
        assert len(set(keys)) == len(keys)


def check_adopted(home: Home, stage: Stage) -> None:
    """All that, and it was one CLI from the beginning to the end."""
    check(home, stage)
    assert {run.process for run in home.runs} == {directory_of(stage).name}


# -- programs and processes


class Driver:
    """A program of its own that drives a run of a stage."""

    def __init__(self, child: Child) -> None:
        self.run = ""
        self._child = child
        assert child.stdout is not None
        self._lines = BufferedByteReceiveStream(child.stdout)

    async def begin(self, order: Order) -> None:
        await self._write(order)
        self.run = await self._read()

    async def hear(self, kind: str) -> dict[str, Any]:
        """Wait for an event of this kind; what it says."""
        heard = []
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                seen = await self._read()
                heard.append(seen["type"])
                if seen["type"] == kind:
                    data: dict[str, Any] = seen["data"]
                    return data

    async def wish(self, **wish: str) -> None:
        await self._write(Wish(**wish))

    def stop(self) -> None:
        self._child.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        self._child.kill()
        await self._child.wait()

    async def end(self) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            assert await self._child.wait() == 0

    async def _write(self, what: Order | Wish) -> None:
        assert self._child.stdin is not None
        await self._child.stdin.send(msgspec.json.encode(what) + b"\n")

    async def _read(self) -> Any:
        return msgspec.json.decode(await self._lines.receive_until(b"\n", LONGEST_LINE))


@asynccontextmanager
async def driven(
    stage: Stage, prompt: str = "go", run: str | None = None, **wishes: Any
) -> AsyncIterator[Driver]:
    """Another program drives a new run, or `run`; it is killed at the latest on leaving."""
    config = stage.config
    order = Order(
        home=str(stage.home),
        cwd=str(stage.cwd),
        environ=dict(config.environ),
        claude=config.settings.providers["claude"],
        prompt=prompt,
        wishes=wishes or FULL_AUTO,
        run=run,
    )
    async with await anyio.open_process(
        [sys.executable, "-m", claude_driver.__name__], cwd=ROOT, stderr=None
    ) as child:
        driver = Driver(child)
        try:
            await driver.begin(order)
            yield driver
        finally:
            with suppress(ProcessLookupError):
                child.kill()


def directory_of(stage: Stage) -> Path:
    """The directory of the only process there ever was."""
    [directory] = stage.home.glob("processes/*")
    return directory


def cli_of(stage: Stage) -> int:
    """The CLI itself: what a keeper has started directly."""
    marked = keeper.marked(directory_of(stage).name)
    [cli] = [pid for pid in marked if _parent(pid) not in marked]
    return cli


def _parent(pid: int) -> int:
    """Who has started a process; one that is gone meanwhile counts as its own child."""
    try:
        return parent(pid)
    except (FileNotFoundError, ProcessLookupError):
        return pid


async def wait_for(ask: Callable[[], Any], what: str) -> None:
    await anyio.to_thread.run_sync(eventually, ask, what)


async def wait_for_words(stage: Stage, words: bytes) -> None:
    """Wait until the CLI has printed them, whoever reads it."""
    journal = directory_of(stage) / "journal"
    await wait_for(lambda: words in journal.read_bytes(), f"{words!r} in the journal")


async def wait_for_log(stage: Stage, words: str) -> None:
    """Wait until the CLI has them in its own record, which it writes every 100 ms."""
    config = Path(stage.config.environ["HOME"], ".claude")

    def is_there() -> bool:
        return any(words in log.read_text() for log in config.glob("projects/*/*.jsonl"))

    await wait_for(is_there, f"{words!r} in the session's log")


IDLE = b'"state":"idle"'


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has buried yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


class Tool:
    """A command that runs until it is let go; it has a child that no signal to a group reaches."""

    def __init__(self, folder: Path) -> None:
        self.pids, self._go, self.done = folder / "pids", folder / "go", folder / "done"
        wait = f"until test -e {self._go}; do sleep 0.02; done"
        self.command = (
            f"setsid sh -c 'echo $$ >> {self.pids}; exec sleep 600' & child=$!; "
            f"echo $$ >> {self.pids}; {wait}; kill $child; echo once >> {self.done}; echo done"
        )

    async def runs(self) -> None:
        await wait_for(lambda: len(self._told()) == 2, "the tool")

    def go(self) -> None:
        self._go.touch()

    @property
    def alive(self) -> list[int]:
        return [pid for pid in map(int, self._told()) if is_alive(pid)]

    def _told(self) -> list[str]:
        return self.pids.read_text().split() if self.pids.exists() else []


def words_of(stage: Stage, number: int) -> str:
    """All messages of a request to the model, as text."""
    return msgspec.json.encode(list(stage.server.main_asks[number].messages)).decode()


# -- the driving program is killed


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_in_a_stream(tmp_path: Path, ends: str) -> None:
    gate = Gate()
    with staged(tmp_path, [answer(text("Hel", gate, "lo"))]) as stage:

        async def main() -> Home:
            async with driven(stage) as driver:
                await driver.hear("text.delta")
                cli = cli_of(stage)
                await driver.kill()
            if ends == ALONE:
                gate.open()
                await wait_for_words(stage, IDLE)
            assert cli_of(stage) == cli
            async with stage.library() as library:
                run = await library.run(driver.run)
                gate.open()
                await run.result()
            return await read(stage)

        home = anyio.run(main)

        check_adopted(home, stage)
        assert home.outline == [*BEGUN, *DONE]
        assert [(run.status, run.text) for run in home.runs] == [("completed", "Hello")]
        assert len(stage.server.main_asks) == 1


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_in_a_tool(tmp_path: Path, ends: str) -> None:
    tool = Tool(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("It is done.")]
    with staged(tmp_path, script) as stage:

        async def main() -> Home:
            async with driven(stage) as driver:
                await driver.hear("tool.started")
                await tool.runs()
                cli = cli_of(stage)
                await driver.kill()
            if ends == ALONE:
                tool.go()
                await wait_for_words(stage, IDLE)
            assert cli_of(stage) == cli
            async with stage.library() as library:
                run = await library.run(driver.run)
                tool.go()
                await run.result()
            return await read(stage)

        home = anyio.run(main)

        check_adopted(home, stage)
        assert home.outline == [
            *BEGUN, "tool.started", "tool.completed", *DONE
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert tool.done.read_text() == "once\n"
        assert [ask.results[0]["content"] for ask in stage.server.main_asks[1:]] == ["done"]


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
            ("allow", "user")
        ]
        assert tool.done.read_text() == "once\n"


@pytest.mark.parametrize("ends", ENDS)
def test_a_driver_may_be_killed_with_a_follow_up_in_the_queue_of_the_cli(
    tmp_path: Path, ends: str
) -> None:
    gate = Gate()
    script = [answer(text("Hel", gate, "lo")), answer("That, too.")]
    with staged(tmp_path, script) as stage:

        async def main() -> Home:
            async with driven(stage) as driver:
                await driver.hear("text.delta")
                await driver.wish(steer="and THAT")
                await driver.hear("followup.offered")
                cli = cli_of(stage)
                await driver.kill()
            if ends == ALONE:
                gate.open()
                await wait_for_words(stage, IDLE)
            assert cli_of(stage) == cli
            async with stage.library() as library:
                run = await library.run(driver.run)
                gate.open()
                await run.result()
            return await read(stage)

        home = anyio.run(main)

        check_adopted(home, stage)
        assert [(run.status, run.text) for run in home.runs] == [
            ("completed", "Hello"),
            ("completed", "That, too."),
        ]
        assert [(item.text, item.delivery) for item in home.items[1:]] == [("and THAT", "own_turn")]
        assert [ask.said for ask in stage.server.main_asks] == ["go", "and THAT"]
        assert times_told(stage.server, "THAT") == 1


@pytest.mark.parametrize("is_offered", [True, False], ids=["offered", "only accepted"])
def test_a_driver_may_be_killed_with_a_follow_up_for_a_tool(
    tmp_path: Path, is_offered: bool
) -> None:
    tool = Tool(tmp_path)
    script = [answer(call("Bash", command=tool.command)), answer("That, too.")]
    with staged(tmp_path, script) as stage:

        async def main() -> Home:
            async with driven(stage) as driver:
                await driver.hear("tool.started")
                await tool.runs()
                cli = cli_of(stage)
                if is_offered:
                    await driver.wish(steer="and THAT")
                    await driver.hear("followup.offered")
                await driver.kill()
            if not is_offered:
                await accept(stage, driver.run, "and THAT")
            assert cli_of(stage) == cli
            async with stage.library() as library:
                run = await library.run(driver.run)
                await until(run, lambda event: isinstance(event, ev.FollowupOffered))
                tool.go()
                await run.result()
            return await read(stage)

        home = anyio.run(main)

        check_adopted(home, stage)
        assert home.outline == [
            *BEGUN, "tool.started", "followup.offered", "tool.completed",
            "followup.absorbed", *DONE,
        ]  # fmt: skip
        assert [run.status for run in home.runs] == ["completed"]
        assert [(item.status, item.delivery) for item in home.items[1:]] == [
            ("completed", "absorbed")
        ]
        assert len(stage.server.main_asks) == 2
        assert times_told(stage.server, "THAT") == 1


def test_what_is_asked_while_nobody_is_there_is_answered_by_the_next_program(
    tmp_path: Path,
) -> None:
    gate, done = Gate(), tmp_path / "done"
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
        assert len(stage.server.main_asks) == 1


# -- the CLI is killed


def test_a_cli_that_is_killed_when_idle_has_done_its_work(tmp_path: Path) -> None:
    gate = Gate()
    with staged(tmp_path, [answer(text("Hel", gate, "lo")), answer("Again.")]) as stage:

        async def main() -> Home:
            async with driven(stage, "greet") as driver:
                await driver.hear("text.delta")
                # Its driver would end it as soon as it is idle.
                driver.stop()
                gate.open()
                await wait_for_words(stage, IDLE)
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
    gate = Gate()
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


def kill_keepers(stage: Stage, victims: str) -> None:
    """Kill those who keep the only process of a home, both at the same moment."""
    its_keeper = parent(cli_of(stage))
    pids = {"keeper": its_keeper, "outer": parent(its_keeper)}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims.split(" and "):
            os.kill(pids[victim], number)


async def accept(stage: Stage, run: str, message: str) -> None:
    """Put a message into the lane of a run, with nobody there to take it."""
    store = await SqliteStore.open(stage.home)
    try:
        await store.accept(Message((await store.run(RunId(run))).agent, message))
    finally:
        await store.close()


async def resume(stage: Stage, run: str, prompt: str) -> None:
    """Go on with the conversation of a run, in a new one."""
    async with stage.library() as library:
        token = (await (await library.run(run)).result()).resume_token
        assert token is not None
        await (await stage.start(library, prompt, resume=token)).result()


def _check_killed(home: Home) -> None:
    first, second = home.runs
    assert first.status == "failed"
    assert first.error is not None
    assert (first.error.code, first.error.retryable) == ("exited", True)
    assert "signal 9" in first.error.message
    assert (second.status, second.text) == ("completed", "Again.")


def _check_resumed(stage: Stage, home: Home, *words: str) -> None:
    """The last request has the whole conversation, in this order, and each thing once."""
    assert len(stage.server.main_asks) == 2
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
    assert len(stage.server.main_asks) == 1
