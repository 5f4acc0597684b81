"""Kills the driver of a run of a real CLI, and reads what is recorded after another adopts it.

home = adopt_after_kill(harness, after_event("text.delta"), gate.open)
check_adopted(home, harness)
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
from steadyrun.model.event import Note, StoredEvent, get_type
from steadyrun.model.ids import RunId
from steadyrun.model.item import Item, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.runtime.events.stream import RUN_END_EVENTS
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.model_servers.protocol import ServerSteps
from tests.children import run_driver
from tests.children.keeper_driver import eventually, parent
from tests.children.run_driver import LONGEST_LINE, Action, Order
from tests.support.commands import ROOT
from tests.support.real_cli_harness import (
    ALL,
    TIMEOUT_SECONDS,
    Cli,
    CliHarness,
    cli_harness,
    wait_for_event,
)

# When what the driver was killed in comes to its end.
UNATTENDED, ATTENDED = "without a driver", "with the next driver"
WHEN_RELEASED = (UNATTENDED, ATTENDED)
# What a CLI prints at the end of a turn.
IDLE = {"claude": b'"state":"idle"', "codex": b'"method":"turn/completed"'}
# What is another each time: our names, theirs, and how long it took.
_NAMES = re.compile(r"(run|agt|itm|prc)_[0-9a-z]{26}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIMES = re.compile(r'"duration_ms":\d+')


# -- the record


@dataclass(frozen=True)
class HomeRecord:
    """All that is recorded in a home."""

    runs: list[Run]
    items: list[Item]
    events: list[StoredEvent]
    lanes: list[str]
    processes: list[Process]
    problems: list[str]

    @property
    def event_types(self) -> list[str]:
        """What happened; the order of usage events and notes differs between runs."""
        kinds = [get_type(seen.event) for seen in self.events]
        return [kind for kind in kinds if kind not in {"usage.updated", "note"}]

    def events_of(self, *kinds: type) -> list[Any]:
        return [seen.event for seen in self.events if isinstance(seen.event, kinds)]

    def normalize_events(self, folder: Path) -> list[str]:
        """All events in order, without values that differ in each run. The notes of a CLI, which
        may come at any time, are at the end."""
        events = [seen.event for seen in self.events if get_type(seen.event) != "usage.updated"]
        events.sort(key=lambda event: isinstance(event, Note))
        lines = (msgspec.json.encode(event).decode() for event in events)
        plain = (line.replace(str(folder), "") for line in lines)
        return [_TIMES.sub("", _NAMES.sub("", line)) for line in plain]


async def read_home(harness: CliHarness) -> HomeRecord:
    store = await SqliteStore.open(harness.home)
    try:
        items = await store.items(include_settled=True)
        return HomeRecord(
            runs=list(reversed(await store.runs())),
            items=sorted(items, key=lambda item: item.created_at),
            events=await store.events(limit=ALL),
            lanes=[(await store.lane(agent)).status for agent in {item.agent for item in items}],
            processes=await store.processes(),
            problems=await store.check(),
        )
    finally:
        await store.close()


def record_undisturbed(folder: Path, script: ServerSteps, cli: Cli) -> list[str]:
    """The normalized events of a run in which nothing is killed."""
    with cli_harness(folder, script, cli=cli) as harness:
        harness.run("go")
        return anyio.run(read_home, harness).normalize_events(folder)


def check_home(home: HomeRecord, harness: CliHarness) -> None:
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
    for directory in harness.home.glob("processes/*"):
        keys = [frame.key for frame in keeper_client.read_sent(directory, after=0)]
        assert len(set(keys)) == len(keys)


def check_adopted(home: HomeRecord, harness: CliHarness) -> None:
    """All that, and it was one CLI from the beginning to the end."""
    check_home(home, harness)
    assert {run.process for run in home.runs} == {find_process_directory(harness).name}


def read_request(harness: CliHarness, number: int) -> str:
    """All messages of a request to the model, as text."""
    return msgspec.json.encode(list(harness.server.main_requests[number].messages)).decode()


def is_conversation_in_order(harness: CliHarness, *words: str) -> bool:
    """Whether the last request has the whole conversation in this order, and each text once."""
    sent = read_request(harness, -1)
    # Claude Code adds lines of its own to a text.
    texts = [f'"text":"{word}' + ('"' if harness.cli.name == "codex" else "") for word in words]
    places = [sent.find(each) for each in texts]
    counts = [sent.count(each) for each in texts]
    return places == sorted(places) and -1 not in places and set(counts) == {1}


# -- another program


class Driver:
    """A program of its own that drives a run of a harness."""

    def __init__(self, child: Child) -> None:
        self.run = ""
        self._child = child
        assert child.stdout is not None
        self._lines = BufferedByteReceiveStream(child.stdout)

    async def begin(self, order: Order) -> None:
        await self._write(order)
        self.run = await self._read()

    async def wait_for_event(self, kind: str) -> dict[str, Any]:
        """Wait for an event of this kind; what it says."""
        with anyio.fail_after(TIMEOUT_SECONDS):
            while True:
                seen = await self._read()
                if seen["type"] == kind:
                    data: dict[str, Any] = seen["data"]
                    return data

    async def send(self, **wish: str) -> None:
        await self._write(Action(**wish))

    def stop(self) -> None:
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._child.kill()
        await self._child.wait()

    async def wait_for_end(self) -> None:
        with anyio.fail_after(TIMEOUT_SECONDS):
            assert await self._child.wait() == 0

    async def _write(self, what: Order | Action) -> None:
        assert self._child.stdin is not None
        await self._child.stdin.send(msgspec.json.encode(what) + b"\n")

    async def _read(self) -> Any:
        return msgspec.json.decode(await self._lines.receive_until(b"\n", LONGEST_LINE))


@asynccontextmanager
async def start_driver(
    harness: CliHarness, prompt: str = "go", run: str | None = None, **wishes: Any
) -> AsyncIterator[Driver]:
    """Another program drives a new run, or `run`; it is killed at the latest on leaving."""
    config, provider = harness.config, harness.cli.name
    order = Order(
        home=str(harness.home),
        cwd=str(harness.cwd),
        environ=dict(config.environ),
        provider=provider,
        settings=config.settings.providers[provider],
        prompt=prompt,
        wishes={"mode": harness.cli.mode, **wishes},
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


def adopt_after_kill(
    harness: CliHarness,
    before: Before,
    release: Callable[[], object],
    *,
    ends: str = ATTENDED,
    then: Then | None = None,
    **wishes: Any,
) -> HomeRecord:
    """What is recorded of a run whose driver is killed after `before`.

    The CLI waits for `let_go`: it comes while no driver runs, or after the next program, which is
    this one, has started and has done `then`.
    """

    async def main() -> HomeRecord:
        async with start_driver(harness, **wishes) as driver:
            await before(driver)
            cli = find_cli(harness)
            await driver.kill()
        if ends == UNATTENDED:
            release()
            await wait_until_idle(harness)
        assert find_cli(harness) == cli
        async with harness.library() as library:
            run = await library.run(driver.run)
            if then is not None:
                await then(run)
            release()
            await run.result()
        return await read_home(harness)

    return anyio.run(main)


def run_and_disturb(
    harness: CliHarness,
    disturb: Then,
    library: AbstractAsyncContextManager[Steadyrun] | None = None,
    *,
    again: str | None = None,
    **wishes: Any,
) -> HomeRecord:
    """Run a prompt, disturb the run, and return its record, which must be complete.

    With `again`, another run then goes on with its conversation.
    """

    async def main() -> HomeRecord:
        async with library or harness.library() as opened:
            run = await harness.start(opened, "go", **wishes)
            await disturb(run)
            await run.result()
        if again is not None:
            await resume_run(harness, run.id, again)
        return await read_home(harness)

    home = anyio.run(main)
    check_home(home, harness)
    return home


def after_event(kind: str, *others: Callable[[], Awaitable[object]]) -> Before:
    """Wait for an event of this kind, and then for the others."""

    async def before(driver: Driver) -> None:
        await driver.wait_for_event(kind)
        for wait in others:
            await wait()

    return before


async def wait_for_offer(run: RunHandle) -> None:
    """Wait until a driver has offered a message to the run."""
    await wait_for_event(run, ev.FollowupOffered)


async def accept_message(harness: CliHarness, run: str, message: str) -> None:
    """Put a message into the lane of a run while no driver can take it."""
    store = await SqliteStore.open(harness.home)
    try:
        await store.accept(Message((await store.run(RunId(run))).agent, message))
    finally:
        await store.close()


async def resume_run(harness: CliHarness, run: str, prompt: str) -> None:
    """Go on with the conversation of a run, in a new one."""
    async with harness.library() as library:
        token = (await (await library.run(run)).result()).resume_token
        assert token is not None
        await (await harness.start(library, prompt, resume=token)).result()


# -- processes


def find_process_directory(harness: CliHarness) -> Path:
    """The directory of the only process there ever was."""
    [directory] = harness.home.glob("processes/*")
    return directory


def find_cli(harness: CliHarness) -> int:
    """The CLI itself: what a keeper has started directly."""
    marked = keeper.find_marked(find_process_directory(harness).name)
    [cli] = [pid for pid in marked if _parent(pid) not in marked]
    return cli


def _parent(pid: int) -> int:
    """The parent of a process; a process that has ended counts as its own parent."""
    try:
        return parent(pid)
    except (FileNotFoundError, ProcessLookupError):
        return pid


def kill_keepers(harness: CliHarness, names: str) -> None:
    """Kill the keeper and the outer process of the only process of a home, at the same moment."""
    its_keeper = parent(find_cli(harness))
    pids = {"keeper": its_keeper, "outer": parent(its_keeper)}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in names.split(" and "):
            os.kill(pids[victim], number)


async def wait_for(ask: Callable[[], Any], what: str) -> None:
    await anyio.to_thread.run_sync(eventually, ask, what)


async def wait_for_bytes(harness: CliHarness, words: bytes, file: str = "journal") -> None:
    """Wait until the file has these bytes of the CLI, its output or its input."""

    def is_there() -> bool:
        return any(words in each.read_bytes() for each in harness.home.glob(f"processes/*/{file}"))

    await wait_for(is_there, f"{words!r} in the {file}")


async def wait_until_idle(harness: CliHarness) -> None:
    """Wait until the CLI has printed the end of a turn."""
    await wait_for_bytes(harness, IDLE[harness.cli.name])


async def wait_for_log(harness: CliHarness, words: str) -> None:
    """Wait until the CLI has them in its own record."""

    def is_there() -> bool:
        return any(words in log.read_text() for log in harness.user.rglob("*.jsonl"))

    await wait_for(is_there, f"{words!r} in the session's log")


def read_process_state(pid: int) -> str:
    """R, S, T …: what a process does; one that is gone is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


async def wait_for_command(run: RunHandle, command: "BlockingCommand") -> None:
    """Wait until the start of the command is recorded, and it runs."""
    await wait_for_event(run, ev.ToolStarted)
    await command.wait_until_running()


class BlockingCommand:
    """A command that runs until it is let go; it has a child that no signal to a group reaches."""

    def __init__(self, folder: Path) -> None:
        self.pids, self._released, self.done = folder / "pids", folder / "go", folder / "done"
        wait = f"until test -e {self._released}; do sleep 0.02; done"
        self.command = (
            f"setsid sh -c 'echo $$ >> {self.pids}; exec sleep 600' & child=$!; "
            f"echo $$ >> {self.pids}; {wait}; kill $child; echo once >> {self.done}; echo done"
        )

    async def wait_until_running(self) -> None:
        await wait_for(lambda: len(self._read_pids()) == 2, "the tool")

    def release(self) -> None:
        self._released.touch()

    @property
    def alive(self) -> list[int]:
        """Its processes that run; a zombie that was not waited for does not count."""
        return [
            pid for pid in map(int, self._read_pids()) if read_process_state(pid) not in {"Z", "X"}
        ]

    def _read_pids(self) -> list[str]:
        return self.pids.read_text().split() if self.pids.exists() else []
