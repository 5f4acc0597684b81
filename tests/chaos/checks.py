"""Checks the store, the files and /proc after a chaos scenario has ended."""

import os
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from steadyrun.drivers import keeper
from steadyrun.model.event import (
    FollowupAbsorbed,
    FollowupOffered,
    FollowupOwnTurn,
    FollowupReturned,
    RunStarted,
    StoredEvent,
    TextFinal,
)
from steadyrun.model.item import Item
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.runtime.events.stream import RUN_END_EVENTS
from steadyrun.store import Holder, Lane
from tests.chaos.forked_daemons import fork_daemons
from tests.chaos.scenario import CONFIG, Scenario, Sent
from tests.children.keeper_driver import is_locked

ALL = 1_000_000
# How a run ends when its daemon, keeper or CLI was killed.
_LOST = frozenset({"orphaned", "keeper_lost", "machine_lost", "stall", "hang", "journal_full"})
_CRASHED = frozenset({"exited", "start_failed"})
_NO_CONVERSATION = frozenset({"resume_not_found", "resume_corrupt", "conversation_corrupt"})
_TRACES = "trace"


@dataclass(frozen=True)
class SentFrame:
    """A frame that a keeper has written to its process."""

    process: str
    key: str


@dataclass(frozen=True)
class Record:
    """All that is left of a scenario."""

    items: dict[str, Item]
    runs: dict[str, Run]
    events: list[StoredEvent]
    lanes: list[Lane]
    processes: list[Process]
    holders: list[Holder]
    sent_frames: list[SentFrame]
    # What every process has printed.
    printed: dict[str, list[dict[str, object]]]
    names: dict[str, str]


@asynccontextmanager
async def checked_scenario(place: Path, config: str = CONFIG) -> AsyncIterator[Scenario]:
    """A scenario that is settled and checked at the end of the block."""
    async with fork_daemons() as forker:
        scene = await Scenario.begin(place / "scene", 1, forker, config)
        try:
            yield scene
            await scene.settle_down()
            await check(scene)
        finally:
            await scene.store.close()
            clear(scene.home)


async def read(scene: Scenario) -> Record:
    store, agents = scene.store, await scene.all_agents()
    items = await store.items(include_settled=True, limit=ALL)
    runs = await store.runs(limit=ALL)
    directories = sorted((scene.home / "processes").glob("*"))
    return Record(
        {item.id: item for item in items},
        {run.id: run for run in runs},
        await store.events(limit=ALL),
        [await store.lane(agent) for agent in agents],
        await store.processes(),
        await store.holders(),
        [SentFrame(each.name, key) for each in directories for key in _keys(each)],
        {each.name: _printed(each) for each in directories},
        {agent: (await store.agent(agent)).name for agent in agents},
    )


def _keys(directory: Path) -> list[str]:
    sent = directory / "sent"
    frames = keeper.read_sent(sent.read_bytes()) if sent.exists() else []
    return [key for _, key, _, _ in frames]


def _printed(directory: Path) -> list[dict[str, object]]:
    journal, found = directory / "journal", []
    for line in journal.read_bytes().split(b"\n") if journal.exists() else ():
        try:
            found.append(msgspec.json.decode(line, type=dict[str, object]))
        except msgspec.DecodeError:
            # Output of a shell, or a line that is incomplete because its process was killed.
            continue
    return found


async def check(scene: Scenario, *, of_log: bool = True) -> Record:
    """Check everything that must hold after a scenario.

    With `of_log` off, the log is not checked, because other errors are expected.
    """
    record = await read(scene)
    _check_rest(scene, record)
    _check_events(record)
    _check_runs(record)
    _check_messages(scene, record)
    _check_offers(record)
    _check_once(record)
    _check_texts(record)
    _check_traces(scene, record)
    if of_log:
        _check_log(scene)
    return record


def _check_rest(scene: Scenario, record: Record) -> None:
    """Nothing runs and no holder is left."""
    assert {lane.status for lane in record.lanes} == {"idle"}, record.lanes
    for item in record.items.values():
        assert item.is_settled, item
    assert record.processes == []
    assert record.holders == []
    assert left_of(scene.home) == {}
    for directory in (scene.home / "processes").glob("*"):
        assert not ((directory / "lock").exists() and is_locked(directory)), directory


def left_of(home: Path) -> dict[int, str]:
    """Processes that were started here: by the mark in their environment, or a file they have
    open, as keepers do."""
    marks = {f"{keeper.MARK}={each.name}".encode() for each in (home / "processes").glob("*")}
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes().split(b"\0")
            links = [str(link.readlink()) for link in (process / "fd").iterdir()]
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        is_keeper = b"keeper.py" in command and any(str(home) in link for link in links)
        if is_keeper or not marks.isdisjoint(environ):
            found[int(process.name)] = repr(command[:200])
    return found


def clear(home: Path) -> None:
    """Leave nothing behind of a scenario that has failed."""
    while left := left_of(home):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _check_events(record: Record) -> None:
    """No gap, nothing twice, one order for all."""
    cursors = [seen.cursor for seen in record.events]
    assert cursors == sorted(set(cursors))
    assert len({seen.id for seen in record.events}) == len(record.events)
    by_agent = defaultdict(list)
    for seen in record.events:
        if seen.seq is not None:
            by_agent[seen.agent].append(seen.seq)
    for agent, numbers in by_agent.items():
        assert numbers == list(range(1, len(numbers) + 1)), agent
    counted = {record.names[lane.agent]: lane.event_seq for lane in record.lanes if lane.event_seq}
    assert counted == {str(agent): len(numbers) for agent, numbers in by_agent.items()}


def _check_runs(record: Record) -> None:
    """Each has ended; it has one end and that is the last of it."""
    of_run: dict[str, list[StoredEvent]] = defaultdict(list)
    for seen in record.events:
        if seen.run:
            of_run[seen.run].append(seen)
    for run in record.runs.values():
        kinds = [type(seen.event) for seen in of_run[run.id]]
        assert run.is_terminal, run
        assert [kind for kind in kinds if kind in RUN_END_EVENTS] == kinds[-1:], (run, kinds)
        begun = [kind for kind in kinds if kind is RunStarted]
        assert len(begun) == (run.started_at is not None), (run, kinds)
        assert begun == kinds[: len(begun)], (run, kinds)


def _check_messages(scene: Scenario, record: Record) -> None:
    """Each accepted message is there once, and its end has a recorded reason."""
    by_text = defaultdict(list)
    for item in record.items.values():
        if item.kind == "message":
            by_text[item.text].append(item)
    cancelled = {sent.item for sent in scene.sent if sent.is_cancelled}
    for sent in scene.sent:
        found = by_text[sent.text]
        assert len(found) <= 1, found
        if sent.item or sent.key:
            assert found, f"lost: {sent}"
        if sent.item:
            assert found[0].id == sent.item
        for item in found:
            _check_end(item, sent, record, cancelled)


def _check_end(item: Item, sent: Sent, record: Record, cancelled: Collection[str | None]) -> None:
    assert item.is_settled, (item, sent)
    run = record.runs[item.run] if item.run else None
    if item.status == "cancelled":
        its_run = None if run is None else run.item
        assert item.id in cancelled or its_run in cancelled, (item, run)
    if item.status == "failed":
        assert run
        is_lost = _why(run) is not None and (item.on_lost == "fail" or item.tries == 3)
        assert is_lost or sent.may_fail, (item, run, sent)
    if item.status == "completed":
        assert run
        assert run.status == "completed"


def _why(run: Run) -> str | None:
    """What the run was lost by, if it did not end by itself."""
    if run.status == "rate_limited" or run.stop_reason in {"shutdown", "launch_failed"}:
        return "put off"
    code = run.error.code if run.error else None
    if run.stop_reason in _LOST:
        return run.stop_reason
    if code in _CRASHED:
        return "crash"
    return "conversation" if code in _NO_CONVERSATION else None


def _check_offers(record: Record) -> None:
    """What was offered had an end, and there is evidence for it."""
    offers: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for seen in record.events:
        match seen.event:
            case FollowupOffered(item, _):
                offers[item] += 1
            case FollowupAbsorbed(item, _) | FollowupOwnTurn(item, _):
                ends[item] += 1
            case FollowupReturned(item, _, _):
                ends[item] += 1
            case _:
                pass
    # One that was refused has an end and was never offered.
    assert all(ends[item] >= count for item, count in offers.items()), (offers, ends)
    open_ones = [item for item in record.items.values() if item.delivery == "offered"]
    assert [item for item in open_ones if not item.is_settled] == []


def _check_once(record: Record) -> None:
    """No item was run twice, unless its first run did nothing or was allowed to be lost."""
    begun = Counter(each.key for each in record.sent_frames if each.key.startswith("begin:"))
    # A CLI that could not be started was told nothing. A shell gets its command as an argument.
    told = {each.process for each in record.sent_frames}
    for key in begun:
        assert key.removeprefix("begin:") in record.runs, key
    for item in record.items.values():
        runs = sorted(
            (run for run in record.runs.values() if run.item == item.id), key=lambda run: run.id
        )
        did = [
            run
            for run in runs
            if begun[f"begin:{run.id}"]
            or (run.started_at and (run.provider == "shell" or run.process in told))
        ]
        for run in did[:-1]:
            _check_may_repeat(item, run)
        for run in runs:
            if begun[f"begin:{run.id}"] > 1:
                _check_begun_anew(record, run)


def _check_may_repeat(item: Item, run: Run) -> None:
    why = _why(run)
    assert why, (item, run)
    assert why in {"put off", "conversation"} or item.on_lost != "fail", (item, run)


def _check_begun_anew(record: Record, run: Run) -> None:
    """One turn in two processes: each but the last had no conversation to go on with."""
    for frame in [each for each in record.sent_frames if each.key == f"begin:{run.id}"][:-1]:
        ends = [
            line["error"]
            for line in record.printed[frame.process]
            if line.get("type") == "ended" and line.get("turn") == run.id
        ]
        codes = [error["code"] for error in ends if isinstance(error, dict)]
        assert codes == ["resume_not_found"], (run, record.printed[frame.process])


def _check_texts(record: Record) -> None:
    """Every text that a process has printed is in the record, once."""
    printed: Counter[str] = Counter()
    for lines in record.printed.values():
        printed.update(str(each["text"]) for each in lines if each.get("type") == "text")
    stored = Counter(
        seen.event.text
        for seen in record.events
        if isinstance(seen.event, TextFinal) and seen.provider == "scripted"
    )
    assert stored == printed, (stored - printed, printed - stored)


def _check_traces(scene: Scenario, record: Record) -> None:
    """A command was run as often as there were runs of it, at most."""
    done = Counter(scene.trace.read_text().split()) if scene.trace.exists() else Counter[str]()
    for sent in scene.sent:
        if sent.agent != scene.agents["sol"] or sent.item is None:
            continue
        item = record.items[sent.item]
        runs = [run for run in record.runs.values() if run.item == item.id]
        assert done[sent.mark] <= len(runs), (item, runs)
        if item.on_lost == "fail":
            assert done[sent.mark] <= 1, (item, runs)
        if item.status == "completed":
            assert done[sent.mark] >= 1, (item, runs)


def _check_log(scene: Scenario) -> None:
    """No daemon has logged a bug."""
    lines = (scene.place / "daemon.log").read_text().splitlines()
    assert [line for line in lines if '"fact":"bug"' in line] == []
    assert [line for line in lines if not line.startswith("{")] == []
