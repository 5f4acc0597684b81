"""Provides the helpers of the checks: start runs, wait for events, and read their records."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import anyio
import anyio.to_thread

from steadyrun.dialect import Refused
from steadyrun.drivers import keeper
from steadyrun.errors import SteadyrunError
from steadyrun.model.event import LiveEvent, RunEnded, RunStarted, StatsUpdated, StoredEvent
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Item
from steadyrun.model.run import Run
from steadyrun.store import Store
from steadyrun.testing.provider_conformance.harness import (
    GO,
    Library,
    OfferedMessage,
    ProviderHarness,
    RunLike,
    Situation,
)

# A check that hangs fails after this time.
TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.01
ALL = 1_000_000
ENDS: tuple[type, ...] = get_args(RunEnded)

EventT = TypeVar("EventT")
ErrorT = TypeVar("ErrorT", bound=SteadyrunError)


@dataclass(frozen=True)
class PlayedRun:
    """A run that has ended: its result, its published events, and its stored events."""

    run: Run
    published: list[StoredEvent | LiveEvent]
    stored: list[StoredEvent]
    items: list[Item]

    @property
    def live(self) -> list[LiveEvent]:
        return [entry for entry in self.published if isinstance(entry, LiveEvent)]

    def select(self, *kinds: type[EventT]) -> list[EventT]:
        """Select the stored events of the run's agent that are of these kinds."""
        return [entry.event for entry in self.stored if isinstance(entry.event, kinds)]


@asynccontextmanager
async def open_program(
    harness: ProviderHarness, *, command: tuple[str, ...] | None = None
) -> AsyncIterator[Library]:
    """Open a program on the home of the harness. No process may be left when it ends."""
    with anyio.fail_after(TIMEOUT_SECONDS):
        async with harness.open_library(command=command) as library:
            yield library
        await wait_for_no_processes(harness)


async def play(
    harness: ProviderHarness,
    situation: Situation,
    *,
    command: tuple[str, ...] | None = None,
    **options: Any,
) -> PlayedRun:
    """Start a run, read its events to the end, and check its record; `command` replaces the CLI."""
    async with open_program(harness, command=command) as library:
        run = await library.start(get_prompt(harness, situation), **options)
        published = [entry async for entry in run.events()]
        ended = await run.result()
    return await check_record(harness, ended, published)


@asynccontextmanager
async def start_run(harness: ProviderHarness, situation: Situation) -> AsyncIterator[RunLike]:
    """Open a program and start a run, which has printed something when the block begins."""
    async with open_program(harness) as library:
        run = await library.start(get_prompt(harness, situation))
        await wait_until_busy(run)
        yield run


async def check_record(
    harness: ProviderHarness, run: Run, published: Sequence[StoredEvent | LiveEvent] = ()
) -> PlayedRun:
    """Read the record of a run's agent, and check its order."""
    async with harness.open_store() as store:
        stored = await _read_events(store, run.agent)
        items = await store.items(run.agent, include_settled=True)
        run = await store.run(run.id)
        assert run.agent not in {process.agent for process in await store.processes()}
    played = PlayedRun(run, list(published), stored, sorted(items, key=lambda item: item.seq))
    _check_order(played)
    return played


async def _read_events(store: Store, agent: AgentId) -> list[StoredEvent]:
    """Read all pages: a page of long events has fewer than its limit."""
    events: list[StoredEvent] = []
    while page := await store.events(events[-1].cursor if events else 0, agent=agent, limit=ALL):
        events += page
    return events


def _check_order(played: PlayedRun) -> None:
    """Check that the run starts first, ends last, and that no sequence number is missing."""
    own = [entry for entry in played.stored if entry.run == played.run.id]
    begun = own[:1] if played.run.started_at else []
    assert [each for each in own if isinstance(each.event, RunStarted)] == begun
    assert [each for each in own if isinstance(each.event, ENDS)] == own[-1:]
    assert [entry.seq for entry in played.stored] == list(range(1, len(played.stored) + 1))
    assert len({entry.id for entry in played.stored}) == len(played.stored)
    assert all(item.is_settled for item in played.items), played.items


def get_prompt(harness: ProviderHarness, situation: Situation) -> str:
    prompt = harness.find_prompt(situation)
    assert prompt, f"{harness.provider} has no prompt for {situation}"
    return prompt.text


def get_expected(harness: ProviderHarness, situation: Situation) -> str | bytes:
    prompt = harness.find_prompt(situation)
    assert prompt
    assert prompt.expected
    return prompt.expected


async def wait_for_event(run: RunLike, *kinds: type[EventT]) -> EventT:
    """Wait for the first event of these kinds."""
    async with aclosing(run.events()) as events:
        async for entry in events:
            if isinstance(entry.event, kinds):
                return entry.event
    raise AssertionError(f"{run.id} ended without any of {kinds}")


async def wait_until_busy(run: RunLike) -> None:
    """Wait for the first output of a run."""
    async with aclosing(run.events()) as events:
        async for entry in events:
            if not isinstance(entry.event, RunStarted | StatsUpdated):
                return


def release_runs(harness: ProviderHarness) -> None:
    """Let waiting runs end."""
    (harness.cwd / GO).touch()


async def steer(run: RunLike, text: str) -> OfferedMessage:
    answer = await run.steer(text)
    assert not isinstance(answer, Refused), answer
    return answer


async def expect_error(kind: type[ErrorT], doing: Awaitable[object]) -> ErrorT:
    """Await an operation that must raise this error, and return the error."""
    try:
        await doing
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, and the operation succeeded")


async def wait_for_no_processes(harness: ProviderHarness) -> None:
    """Wait until no process of this home runs, found by its mark or by its directory."""
    is_left = True
    while is_left:
        is_left = bool(await anyio.to_thread.run_sync(_find_processes, harness.home / "processes"))
        await anyio.sleep(_POLL_SECONDS if is_left else 0)


def _find_processes(processes: Path) -> set[int]:
    names = {directory.name for directory in processes.glob("*")}
    marked = {pid for name in names for pid in keeper.find_marked(name)}
    # A keeper has no mark. It is found by its directory.
    return marked | {pid for pid in _list_pids() if _is_inside(pid, processes)}


def _list_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _is_inside(pid: int, processes: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(processes)
    except OSError:
        return False
