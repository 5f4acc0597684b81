"""What is left of a run of a real CLI when its driver is killed, and what comes of it?

home = adopted(stage, hears("text.delta"), gate.open)
check_adopted(home, stage)
"""

import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import Process as Child
from anyio.streams.buffered import BufferedByteReceiveStream

from steadyrun.drivers import keeper, keeper_client
from steadyrun.library import RunHandle, Steadyrun
from steadyrun.model import event as ev
from steadyrun.model.event import Note, StoredEvent, type_of
from steadyrun.model.ids import RunId
from steadyrun.model.item import Item, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.runtime.events.stream import RUN_END_EVENTS
from steadyrun.stores.sqlite import SqliteStore
from tests.children import run_driver
from tests.children.keeper_driver import eventually, parent
from tests.children.run_driver import LONGEST_LINE, Order, Wish
from tests.support.commands import ROOT
from tests.support.real_cli_stage import ALL, PATIENCE_SECONDS, Stage, until

# When what the driver was killed in comes to its end.
ALONE, LATER = "while nobody is there", "after somebody has come"
ENDS = (ALONE, LATER)
# What a CLI prints when its turn is over.
IDLE = {"claude": b'"state":"idle"', "codex": b'"method":"turn/completed"'}
# What is another each time: our names, theirs, and how long it took.
_NAMES = re.compile(r"(run|agt|itm|prc)_[0-9a-z]{26}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIMES = re.compile(r'"duration_ms":\d+')


# -- the record


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
        """What happened; tokens are counted, and notes made, whenever the CLI gets round to it."""
        kinds = [type_of(seen.event) for seen in self.events]
        return [kind for kind in kinds if kind not in {"usage.updated", "note"}]

    def of(self, *kinds: type) -> list[Any]:
        return [seen.event for seen in self.events if isinstance(seen.event, kinds)]

    def story(self, folder: Path) -> list[str]:
        """All that is told in order, but for what is another each time; a CLI's notes, which may
        come at any time, are at the end."""
        told = [seen.event for seen in self.events if type_of(seen.event) != "usage.updated"]
        told.sort(key=lambda event: isinstance(event, Note))
        lines = (msgspec.json.encode(event).decode() for event in told)
        plain = (line.replace(str(folder), "") for line in lines)
        return [_TIMES.sub("", _NAMES.sub("", line)) for line in plain]


async def read(stage: Stage) -> Home:
    store = await SqliteStore.open(stage.home)
    try:
        items = await store.items(include_settled=True)
        return Home(
            runs=list(reversed(await store.runs())),
            items=sorted(items, key=lambda item: item.created_at),
            events=await store.events(limit=ALL),
            lanes=[(await store.lane(agent)).status for agent in {item.agent for item in items}],
            processes=await store.open_processes(),
            problems=await store.check(),
        )
    finally:
        await store.close()


def check(home: Home, stage: Stage) -> None:
    """Everything is there once and in order, all is settled, and nothing was written twice."""
    by_agent: dict[str | None, list[int | None]] = {}
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
        assert [kind for kind in kinds if kind in RUN_END_EVENTS] == kinds[-1:]
    for directory in stage.home.glob("processes/*"):
        keys = [frame.key for frame in keeper_client.read_sent(directory, after=0)]
        assert len(set(keys)) == len(keys)


def check_adopted(home: Home, stage: Stage) -> None:
    """All that, and it was one CLI from the beginning to the end."""
    check(home, stage)
    assert {run.process for run in home.runs} == {directory_of(stage).name}


def words_of(stage: Stage, number: int) -> str:
    """All messages of a request to the model, as text."""
    return msgspec.json.encode(list(stage.server.main_requests[number].messages)).decode()


# -- another program


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
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                seen = await self._read()
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
        with suppress(ProcessLookupError):
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
    config, provider = stage.config, stage.cli.name
    order = Order(
        home=str(stage.home),
        cwd=str(stage.cwd),
        environ=dict(config.environ),
        provider=provider,
        settings=config.settings.providers[provider],
        prompt=prompt,
        wishes={"mode": stage.cli.mode, **wishes},
        run=run,
    )
    async with await anyio.open_process(
        [sys.executable, "-m", run_driver.__name__], cwd=ROOT, stderr=None
    ) as child:
        driver = Driver(child)
        try:
            await driver.begin(order)
            yield driver
        finally:
            with suppress(ProcessLookupError):
                child.kill()


Before = Callable[[Driver], Awaitable[object]]
Then = Callable[[RunHandle], Awaitable[object]]


def adopted(
    stage: Stage,
    before: Before,
    let_go: Callable[[], object],
    *,
    ends: str = LATER,
    then: Then | None = None,
    **wishes: Any,
) -> Home:
    """What is recorded of a run whose driver is killed after `before`.

    The CLI waits for `let_go`: it comes while nobody is there, or when the next program, which is
    this one, has come and has done `then`.
    """

    async def main() -> Home:
        async with driven(stage, **wishes) as driver:
            await before(driver)
            cli = cli_of(stage)
            await driver.kill()
        if ends == ALONE:
            let_go()
            await wait_until_idle(stage)
        assert cli_of(stage) == cli
        async with stage.library() as library:
            run = await library.run(driver.run)
            if then is not None:
                await then(run)
            let_go()
            await run.result()
        return await read(stage)

    return anyio.run(main)


def harmed(
    stage: Stage,
    harm: Then,
    library: AbstractAsyncContextManager[Steadyrun] | None = None,
    *,
    again: str | None = None,
    **wishes: Any,
) -> Home:
    """What is recorded of a run of this program that is harmed; all of it is whole.

    With `again`, another run then goes on with its conversation.
    """

    async def main() -> Home:
        async with library or stage.library() as opened:
            run = await stage.start(opened, "go", **wishes)
            await harm(run)
            await run.result()
        if again is not None:
            await resume(stage, run.id, again)
        return await read(stage)

    home = anyio.run(main)
    check(home, stage)
    return home


def hears(kind: str, *others: Callable[[], Awaitable[object]]) -> Before:
    """An event of this kind was heard, and then came what else is waited for."""

    async def before(driver: Driver) -> None:
        await driver.hear(kind)
        for wait in others:
            await wait()

    return before


async def offered(run: RunHandle) -> None:
    """A message was offered to the run, by whomever."""
    await until(run, lambda event: isinstance(event, ev.FollowupOffered))


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


# -- processes


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


def kill_keepers(stage: Stage, victims: str) -> None:
    """Kill those who keep the only process of a home, both at the same moment."""
    its_keeper = parent(cli_of(stage))
    pids = {"keeper": its_keeper, "outer": parent(its_keeper)}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims.split(" and "):
            os.kill(pids[victim], number)


async def wait_for(ask: Callable[[], Any], what: str) -> None:
    await anyio.to_thread.run_sync(eventually, ask, what)


async def wait_for_words(stage: Stage, words: bytes, file: str = "journal") -> None:
    """Wait until the CLI has printed them, or was told, whoever reads it."""

    def is_there() -> bool:
        return any(words in each.read_bytes() for each in stage.home.glob(f"processes/*/{file}"))

    await wait_for(is_there, f"{words!r} in the {file}")


async def wait_until_idle(stage: Stage) -> None:
    """Wait until the CLI has printed the end of a turn."""
    await wait_for_words(stage, IDLE[stage.cli.name])


async def wait_for_log(stage: Stage, words: str) -> None:
    """Wait until the CLI has them in its own record."""

    def is_there() -> bool:
        return any(words in log.read_text() for log in stage.user.rglob("*.jsonl"))

    await wait_for(is_there, f"{words!r} in the session's log")


def state_of(pid: int) -> str:
    """R, S, T …: what a process does; one that is gone is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


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
        """Those of it that run; one that nobody has buried yet does not."""
        return [pid for pid in map(int, self._told()) if state_of(pid) not in {"Z", "X"}]

    def _told(self) -> list[str]:
        return self.pids.read_text().split() if self.pids.exists() else []
