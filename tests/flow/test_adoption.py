"""A run survives a kill of its driver at any moment.

A real process drives a real CLI through a real keeper and is killed: at each named step, and at
random ones, also more than once. Another one opens the same home and takes over. In the end
everything the CLI said must be in the record, once and in order, all must be settled, and nothing
may be running.

STEADYRUN_ADOPTION_KILLS and STEADYRUN_ADOPTION_SEED set the number of kills and repeat a run.
"""

import itertools
import os
import queue
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

import steadyrun
from steadyrun.config import load
from steadyrun.drivers import keeper, keeper_client
from steadyrun.library import RunHandle, Steadyrun
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    FollowupAbsorbed,
    FollowupOffered,
    FollowupOwnTurn,
    FollowupReturned,
    Note,
    RunStarted,
    StoredEvent,
    TextFinal,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
)
from steadyrun.model.item import Item
from steadyrun.model.process import Process
from steadyrun.model.run import Run
from steadyrun.runtime.events.stream import RUN_END_EVENTS
from steadyrun.stores.sqlite import SqliteStore
from tests.children import adoption_driver
from tests.children.adoption_driver import GATES, PATIENCE_SECONDS, Order, Outcome, stories
from tests.children.keeper_driver import eventually, is_locked, parent, spec, start
from tests.support.commands import ROOT

ALL = 1_000_000
DRIVERS = 2
MOST_KILLS = 4
# How many steps a driver takes for each, about.
MOST_STEPS = {"whole": 84, "cancelled": 50, "crashed": 38, "shell": 28}

# What a driver does from the beginning of the whole story to its end, in this order.
STEPS = (
    "start_direct",
    "open_process",
    "launch",
    "start keeper",
    "link claim",
    "send open",
    "send begin",
    "append started",
    "link will",
    "append events",
    "offer_followups",
    "send offer",
    "append absorbed",
    "close_offer absorbed",
    "append approval",
    "send decide",
    "send offer 2",
    "append ended",
    "continue_with",
    "change created",
    "append started 2",
    "append ended 2",
    "continue_with 2",
    "change created 2",
    "append started 3",
    "append ended 3",
    "link eof",
    "close_process",
    "settle",
)
# Nothing happens between these and what comes before them.
SAME_AS_BEFORE = frozenset(
    {
        "before start_direct",
        "before open_process",
        "before launch",
        "after launch",
        "before link claim",
        "before append started",
        "before close_offer absorbed",
        "before change created",
        "before append started 2",
        "before change created 2",
        "before append started 3",
        "before settle",
    }
)
# Killed here, the CLI was never started, and its launch options are lost.
NEVER_STARTED = (
    "after start_direct",
    "after open_process",
    "before start keeper",
)
CANCEL_STEPS = (
    "send recall",
    "append returned",
    "close_offer returned",
    "cancel",
    "send interrupt",
)


@dataclass(frozen=True)
class Case:
    """A home with one story in it, whose drivers are killed as these orders say."""

    story: str
    kills: tuple[Order, ...]

    @property
    def name(self) -> str:
        return f"{self.story}: {', '.join(order.step or '' for order in self.kills)}"


@dataclass(frozen=True)
class Record:
    """All that is to be known of a home after its story."""

    place: Path
    story: str
    items: list[Item]
    runs: list[Run]
    events: list[StoredEvent]
    processes: list[Process]
    lanes: list[str]
    holders: int
    problems: list[str]

    def of(self, *kinds: type) -> list[StoredEvent]:
        return [seen for seen in self.events if isinstance(seen.event, kinds)]

    def texts(self) -> list[str]:
        return [seen.event.text for seen in self.events if isinstance(seen.event, TextFinal)]


class Drivers:
    """Processes that fork drivers, as many as there are processors."""

    def __init__(self) -> None:
        self._free: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()
        self._all = [_start_forking() for _ in range(DRIVERS)]
        for each in self._all:
            self._free.put(each)

    def execute_order(self, order: Order) -> Outcome:
        forking = self._free.get()
        try:
            assert forking.stdin
            assert forking.stdout
            forking.stdin.write(msgspec.json.encode(order) + b"\n")
            return msgspec.json.decode(forking.stdout.readline(), type=Outcome)
        finally:
            self._free.put(forking)

    def close(self) -> None:
        for each in self._all:
            each.communicate()


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    drivers = Drivers()
    yield drivers
    drivers.close()


# -- named steps


def _named(story: str, steps: tuple[str, ...]) -> list[Case]:
    names = [f"{when} {step}" for step in steps for when in ("before", "after")]
    return [
        Case(story, (Order("", story, step=name),)) for name in names if name not in SAME_AS_BEFORE
    ]


NAMED = [*_named("whole", STEPS), *_named("cancelled", CANCEL_STEPS)]


@pytest.fixture(scope="module")
def played(
    drivers: Drivers, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, "Future[Record]"]]:
    """The records of all that are wanted, made two at a time while the first are looked at."""
    wanted = {item.name for item in request.session.items}
    with ThreadPoolExecutor(DRIVERS) as pool:
        yield {
            case.name: pool.submit(_play, drivers, tmp_path_factory.mktemp("case"), case)
            for case in NAMED
            if f"{_STEPS_TEST}[{case.name}]" in wanted
        }


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case.name)
def test_run_is_completed_when_its_driver_is_killed_at_any_step(
    case: Case, played: dict[str, "Future[Record]"]
) -> None:
    record = played[case.name].result()

    step = case.kills[0].step
    if step in NEVER_STARTED:
        _check_never_started(record)
    else:
        _check(record)


_STEPS_TEST = test_run_is_completed_when_its_driver_is_killed_at_any_step.__name__


# -- random ones


def test_run_is_completed_when_its_drivers_are_killed_at_random_moments(
    drivers: Drivers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = _from_environment("STEADYRUN_ADOPTION_KILLS", 50)
    seed = _from_environment("STEADYRUN_ADOPTION_SEED", random.SystemRandom().getrandbits(32))
    tally: Counter[str] = Counter()

    def play(number: int) -> None:
        dice = random.Random(f"{seed} {number}")
        case = _random_case(dice)
        place = tmp_path / str(number)
        place.mkdir()
        try:
            tally[case.story] += _kill(drivers, place, case)
            _check_random(_finished(drivers, place, case.story), tally)
        except AssertionError as error:
            error.add_note(f"seed {seed}, case {number}: {case} in {place}")
            raise

    numbers = itertools.count()
    try:
        with ThreadPoolExecutor(DRIVERS) as pool:
            while sum(tally[story] for story in _ENDINGS) < kills:
                list(pool.map(play, itertools.islice(numbers, DRIVERS * 2)))
    finally:
        with capsys.disabled():
            sys.stdout.write(f"\nseed {seed}: killed {dict(tally)}\n")


def _random_case(dice: random.Random) -> Case:
    """The more were killed before, the less is left to do."""
    story = dice.choice(["whole"] * 4 + ["cancelled", "crashed", "shell"])
    kills = [_random_kill(dice, story, n) for n in range(1, dice.randint(2, MOST_KILLS) + 1)]
    return Case(story, tuple(kills))


def _random_kill(dice: random.Random, story: str, nth: int) -> Order:
    if dice.random() < 0.3:
        return Order("", story, seconds=dice.random() * 0.5 / nth)
    return Order("", story, number=dice.randint(1, MOST_STEPS[story] // nth))


def _check_random(record: Record, tally: Counter[str]) -> None:
    """A message that was never told is named so; all else has its usual end."""
    if record.runs[0].stop_reason == "orphaned":
        tally["(never started)"] += 1
        _check_never_started(record)
    else:
        _check(record)


def _play(drivers: Drivers, place: Path, case: Case) -> Record:
    assert _kill(drivers, place, case) == len(case.kills), "the step never came"
    return _finished(drivers, place, case.story)


def _kill(drivers: Drivers, place: Path, case: Case) -> int:
    """How many drivers were killed before one came to the end."""
    for number, kill in enumerate(case.kills):
        outcome = drivers.execute_order(msgspec.structs.replace(kill, home=str(place / "home")))
        assert not outcome.problem, outcome.problem
        if outcome.signal is None:
            return number
    return len(case.kills)


def _finished(drivers: Drivers, place: Path, story: str) -> Record:
    """Let a last driver take over, and look."""
    last = drivers.execute_order(Order(str(place / "home"), story))
    assert not last.problem, last.problem
    return anyio.run(_read, place, story)


def _start_forking() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", adoption_driver.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        bufsize=0,
    )


async def _read(place: Path, story: str) -> Record:
    store = await SqliteStore.open(place / "home")
    try:
        items = await store.items(include_settled=True)
        return Record(
            place,
            story,
            items=sorted(items, key=lambda item: item.seq),
            runs=list(reversed(await store.runs())),
            events=await store.events(limit=ALL),
            processes=await store.processes(),
            lanes=[(await store.lane(agent)).status for agent in {item.agent for item in items}],
            holders=len(await store.holders()),
            problems=await store.check(),
        )
    finally:
        await store.close()


# -- keepers are killed, too


@pytest.mark.parametrize("targets", ["keeper", "keeper and outer"])
def test_no_process_outlives_a_killed_keeper(tmp_path: Path, targets: str) -> None:
    async def main() -> Run:
        async with _library(tmp_path) as library:
            story = stories(tmp_path)["busy"]
            run = await library.start(story.prompt, provider=story.provider, cwd=tmp_path)
            await _until_it_says(run, Note)
            _kill_keepers(tmp_path, targets)
            return await run.result()

    ended = anyio.run(main)

    assert (ended.status, ended.stop_reason) == ("failed", "keeper_lost")
    _check_soundness(anyio.run(_read, tmp_path, "busy"))


def test_run_completes_without_its_outer_process(tmp_path: Path) -> None:
    async def main() -> Run:
        async with _library(tmp_path) as library:
            story = stories(tmp_path)["busy"]
            run = await library.start(story.prompt, provider=story.provider, cwd=tmp_path)
            await _until_it_says(run, Note)
            _kill_keepers(tmp_path, "outer")
            (tmp_path / GATES[0]).touch()
            return await run.result()

    ended = anyio.run(main)

    assert (ended.status, ended.text) == ("completed", "two")
    _check_soundness(anyio.run(_read, tmp_path, "busy"))


def test_next_driver_ends_the_processes_of_a_killed_driver_and_its_keepers(
    drivers: Drivers, tmp_path: Path
) -> None:
    _leave_alone(drivers, tmp_path, "busy")
    eventually(lambda: b'"note"' in _journal(tmp_path).read_bytes(), "a process in the background")
    _kill_keepers(tmp_path, "keeper and outer")
    assert keeper.find_marked(_journal(tmp_path).parent.name)

    record = _finished(drivers, tmp_path, "busy")

    _check_soundness(record)
    assert [(run.status, run.stop_reason) for run in record.runs] == [("failed", "keeper_lost")]


@pytest.mark.parametrize(("story", "last"), [("busy", b'"ended"'), ("busy shell", b"\ntwo\n")])
def test_next_driver_records_a_turn_that_ended_without_a_driver(
    drivers: Drivers, tmp_path: Path, story: str, last: bytes
) -> None:
    _leave_alone(drivers, tmp_path, story)
    (tmp_path / GATES[0]).touch()
    journal = _journal(tmp_path)
    eventually(lambda: last in journal.read_bytes(), "its last words")
    assert [run.status for run in anyio.run(_read, tmp_path, story).runs] == ["running"]

    record = _finished(drivers, tmp_path, story)

    _check_soundness(record)
    assert [run.status for run in record.runs] == ["completed"]
    assert record.runs[0].text == "two"


def test_stopped_keeper_is_claimed_again_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[str]()
    monkeypatch.setattr(keeper_client, "ANSWER_SECONDS", 0.2)
    _count_calls(monkeypatch, keeper_client.KeeperConnection, "claim", asked)

    async def main() -> Run:
        async with _library(tmp_path) as library:
            story = stories(tmp_path)["busy"]
            run = await library.start(story.prompt, provider=story.provider, cwd=tmp_path)
            await _until_it_says(run, Note)
            async with anyio.create_task_group() as tasks:
                with _stopped_keeper(tmp_path):
                    tasks.start_soon(run.steer, "more")
                    await anyio.to_thread.run_sync(eventually, lambda: asked["claim"] > 2, "asking")
                await _until_it_says(run, FollowupOffered)
                (tmp_path / GATES[0]).touch()
            return await run.result()

    ended = anyio.run(main)

    assert (ended.status, ended.text) == ("completed", "two")
    record = anyio.run(_read, tmp_path, "busy")
    _check_soundness(record)
    _check_followups(record)


def test_unprompted_turn_may_last_longer_than_the_close_timeout(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text("[clocks]\nclose_seconds = 0.1\n")

    async def main() -> None:
        async with _library(tmp_path) as library:
            story = stories(tmp_path)["afterthought"]
            run = await library.start(story.prompt, provider=story.provider, cwd=tmp_path)
            await run.result()

    anyio.run(main)

    record = anyio.run(_read, tmp_path, "afterthought")
    _check_soundness(record)
    assert [(run.status, run.text) for run in record.runs] == [
        ("completed", "one"),
        ("completed", "two"),
    ]


def test_run_fails_with_launch_failed_if_the_process_folder_cannot_be_created(
    tmp_path: Path,
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "processes").touch()

    async def main() -> Run:
        async with _library(tmp_path) as library:
            run = await library.start("echo one", provider="shell", cwd=tmp_path)
            return await run.result()

    ended = anyio.run(main)

    assert ended.status == "failed"
    assert ended.error
    assert ended.error.code == "launch_failed"


def test_keeper_of_a_run_that_was_given_up_starts_nothing(tmp_path: Path) -> None:
    place = tmp_path / "prc"
    place.mkdir()

    assert keeper_client.was_started(place) is False

    late = start(spec(place, ["touch", str(tmp_path / "touched")]))
    assert late["error"]["code"] == "failed"
    assert keeper_client.was_started(place) is False
    assert not (tmp_path / "touched").exists()


def _count_calls(
    monkeypatch: pytest.MonkeyPatch, owner: Any, verb: str, calls: Counter[str]
) -> None:
    do = getattr(owner, verb)

    def counted(*args: Any) -> Any:
        calls[verb] += 1
        return do(*args)

    monkeypatch.setattr(owner, verb, counted)


@contextmanager
def _stopped_keeper(place: Path) -> Iterator[None]:
    pid = _keepers(place)["keeper"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _leave_alone(drivers: Drivers, place: Path, story: str) -> None:
    """Have a run begun, and its driver killed."""
    killed = drivers.execute_order(Order(str(place / "home"), story, step="after append started"))
    assert killed.signal == signal.SIGKILL, killed.problem


def _library(place: Path) -> "AbstractAsyncContextManager[Steadyrun]":
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
    return steadyrun.open(load(home=place / "home", cwd=place, environ=environ))


async def _until_it_says(run: RunHandle, kind: type) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with aclosing(run.events()) as events:
            async for seen in events:
                if isinstance(seen.event, kind):
                    return


def _journal(place: Path) -> Path:
    [journal] = (place / "home").glob("processes/*/journal")
    return journal


def _kill_keepers(place: Path, targets: str) -> None:
    """Kill the keeper and the outer process of the only process of a home, at the same moment."""
    pids = [_keepers(place)[target] for target in targets.split(" and ")]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


def _keepers(place: Path) -> dict[str, int]:
    marked = keeper.find_marked(_journal(place).parent.name)
    [its_keeper] = {parent(pid) for pid in marked if parent(pid) not in marked}
    return {"keeper": its_keeper, "outer": parent(its_keeper)}


# -- what must be true in the end


def _check(record: Record) -> None:
    _check_soundness(record)
    _check_followups(record)
    _ENDINGS[record.story](record)


def _check_soundness(record: Record) -> None:
    _check_order(record)
    _check_runs(record)
    _check_nothing_is_left(record)


def _check_never_started(record: Record) -> None:
    _check_soundness(record)
    assert [item.status for item in record.items] == ["failed"]
    assert [(run.status, run.stop_reason) for run in record.runs] == [("failed", "orphaned")]
    assert len(record.events) == 1
    assert list((record.place / "home").glob("processes/*/journal")) == []


def _check_order(record: Record) -> None:
    """Nothing twice, no gaps."""
    assert [seen.seq for seen in record.events] == list(range(1, len(record.events) + 1))
    assert len({seen.id for seen in record.events}) == len(record.events)
    assert record.problems == []


def _check_runs(record: Record) -> None:
    """Each begins once and first, and ends once and last."""
    for run in record.runs:
        kinds = [type(seen.event) for seen in record.events if seen.run == run.id]
        assert run.is_terminal
        assert [kind for kind in kinds if kind in RUN_END_EVENTS] == kinds[-1:]
        if run.stop_reason != "orphaned":
            assert [kind for kind in kinds if kind is RunStarted] == kinds[:1]


def _check_followups(record: Record) -> None:
    """What was offered had one end, and there is evidence for it."""
    ends: dict[type, str] = {
        FollowupAbsorbed: "absorbed",
        FollowupOwnTurn: "own_turn",
        FollowupReturned: "returned",
    }
    ended_offers: Counter[str] = Counter(_item(seen) for seen in record.of(*ends))
    for item in record.items[1:]:
        if item.kind == "self":
            continue
        assert ended_offers[item.id] == 1, [seen.event for seen in record.events]
        [end] = [ends[type(seen.event)] for seen in record.of(*ends) if _item(seen) == item.id]
        assert item.delivery == end
    offered = Counter(_item(seen) for seen in record.of(FollowupOffered))
    assert all(count == 1 for count in offered.values())


def _item(seen: StoredEvent) -> str:
    assert isinstance(
        seen.event, FollowupOffered | FollowupAbsorbed | FollowupOwnTurn | FollowupReturned
    )
    return seen.event.item


def _check_nothing_is_left(record: Record) -> None:
    assert record.processes == []
    assert record.lanes == ["idle"]
    assert record.holders == 0
    assert [item for item in record.items if not item.is_settled] == []
    for directory in (record.place / "home" / "processes").glob("*"):
        assert keeper.find_marked(directory.name) == set()
        if (directory / "lock").exists():
            eventually(partial(_is_free, directory), "the end of the keeper")
        keys = [key for _, key, _, _ in _sent(directory)]
        assert len(set(keys)) == len(keys)


def _is_free(directory: Path) -> bool:
    return not is_locked(directory)


def _sent(directory: Path) -> list[tuple[int, str, int, bytes]]:
    sent = directory / "sent"
    return keeper.read_sent(sent.read_bytes()) if sent.exists() else []


def _check_whole(record: Record) -> None:
    assert record.texts() == ["one", "two", "three", "four", "five"]
    ends = [(item.kind, item.status, item.delivery) for item in record.items]
    assert ends == [
        ("call", "completed", "none"),
        ("message", "completed", "absorbed"),
        ("message", "completed", "own_turn"),
        ("self", "completed", "none"),
    ]
    assert [run.status for run in record.runs] == ["completed"] * 3
    assert len(record.of(ApprovalRequested)) == len(record.of(ApprovalResolved)) == 1
    outputs = [e.event.tool_output for e in record.events if isinstance(e.event, ToolCompleted)]
    assert outputs == ["written"]


def _check_cancelled(record: Record) -> None:
    assert record.texts() == ["one"]
    ends = [(item.kind, item.status, item.delivery) for item in record.items]
    assert ends == [("call", "cancelled", "none"), ("message", "cancelled", "returned")]
    assert [run.status for run in record.runs] == ["cancelled"]


def _check_crashed(record: Record) -> None:
    assert record.texts() == ["one", "two"]
    [run] = record.runs
    assert run.status == "failed"
    assert run.error
    assert run.error.code == "exited"
    assert run.exit_code == 3
    assert len(record.of(ToolStarted)) == len(record.of(ToolFailed)) == 1


def _check_shell(record: Record) -> None:
    assert record.texts() == ["one\ntwo"]
    assert [run.status for run in record.runs] == ["completed"]
    assert [item.status for item in record.items] == ["completed"]


_ENDINGS: dict[str, Callable[[Record], None]] = {
    "whole": _check_whole,
    "cancelled": _check_cancelled,
    "crashed": _check_crashed,
    "shell": _check_shell,
}


def _from_environment(name: str, otherwise: int) -> int:
    return int(os.environ.get(name, otherwise))  # noqa: TID251 (a knob of this test alone)
