"""How long may a run take, and whose time is it? Under a clock that only a test moves."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from steadyrun.dialect import Ability, TurnEnded
from steadyrun.driver import Driver
from steadyrun.model.agent import Agent
from steadyrun.model.budget import BudgetRules
from steadyrun.model.event import ApprovalRequested, ApprovalResolved, Emitted, Event, UsageUpdated
from steadyrun.model.ids import AgentId, HolderId, ItemId, RunId
from steadyrun.model.item import Claim, Item
from steadyrun.model.run import Created, Run, step
from steadyrun.model.usage import Cost, Usage
from steadyrun.runtime.agent.process import LiveProcess
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.run.active_run import WALL, ActiveRun
from steadyrun.runtime.run.timeouts import Timeouts
from steadyrun.testing.clock import START, FakeClock

AGENT = Agent(AgentId("agt_1"), "ada", ("scripted",), "/")
RUN = RunId("run_1")
ITEM = Item(ItemId("itm_1"), AGENT.id, 1, "message", "work", "resume", START)
WALL_SECONDS = 100.0
IDLE_SECONDS = 30.0


class Jumping(FakeClock):
    """Somebody may set the time of day."""

    def set_by(self, by: timedelta) -> None:
        self._now += by


class Quiet:
    """A process that is told all and says what a test wants it to."""

    has_open_tools = False
    abilities: frozenset[Ability] = frozenset({"multi_turn"})
    input_at = 0.0

    def __init__(self) -> None:
        self.output_at = 0.0
        self.process = SimpleNamespace(id="prc_1")
        self.offers = SimpleNamespace(open={}, recall=self._recall)

    @property
    def driver(self) -> Driver:
        return cast("Driver", self)

    async def _recall(self) -> None:
        """There is nothing to take back."""

    async def say(self, verb: Callable[[Driver], Awaitable[Any]]) -> None:
        """It is gone already."""


class Book:
    """A store that takes what is written of the run."""

    def __init__(self) -> None:
        self.written: list[Created] = []

    async def change(self, _: Claim, __: RunId, change: Created) -> None:
        self.written.append(change)


class Scene:
    """A run with little time, that has just begun."""

    def __init__(
        self,
        *,
        idle: float | None = None,
        stall: float | None = None,
        approval: float | None = None,
        is_adopted: bool = False,
    ) -> None:
        self.clock, self.process, self.book = Jumping(), Quiet(), Book()
        limits = Timeouts(idle=idle, stall=stall, hang=None, warning=None, approval=approval)
        around = SimpleNamespace(
            store=self.book, clock=self.clock, limits=limits, budgets=BudgetRules()
        )
        claim = Claim(AGENT.id, HolderId("hld_1"), 1, ITEM)
        known = cast("Deps", around)
        self.runner = ActiveRun(known, claim, AGENT, RUN, is_adopted=is_adopted)
        self.runner.sit_at(cast("LiveProcess", self.process))

    def run(self, created_at: datetime = START) -> Run:
        wall = {WALL: WALL_SECONDS}
        created = Created(RUN, AGENT.id, ITEM.id, "scripted", created_at, metadata=wall)
        return step(None, created)

    def pass_by(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    def due(self) -> int:
        """How much is to be done by now."""
        return len([*self.runner.due(self.clock.monotonic())])

    def stopped(self) -> str | None:
        """Why it is stopped when somebody looks at its clocks now."""

        async def look() -> None:
            for deed in self.runner.due(self.clock.monotonic()):
                await deed()

        anyio.run(look)
        return self.runner.stopped


def _asked(name: str) -> ApprovalRequested:
    return ApprovalRequested(name, None, "Bash")


def _answered(name: str) -> ApprovalResolved:
    return ApprovalResolved(name, "allowed", by="user")


def _seen(seconds: float, event: Event) -> Emitted:
    return Emitted(1, 0, START + timedelta(seconds=seconds), event)


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.runner.know(scene.run())
    return scene


def test_why_it_is_stopped_is_known_to_whoever_takes_over(scene: Scene) -> None:
    scene.pass_by(WALL_SECONDS + 1)
    assert scene.stopped() == "wall_timeout"

    [wish] = scene.book.written
    adopted = Scene(is_adopted=True)
    adopted.runner.know(step(scene.run(), wish))
    ended = adopted.runner.judged(TurnEnded("cancelled"), None)
    assert (adopted.runner.stopped, ended.status) == ("wall_timeout", "timed_out")
    assert ended.error
    assert ended.error.message == "it was not done after 100 s"


def test_the_time_of_a_person_is_not_the_run_s(scene: Scene) -> None:
    scene.pass_by(60)
    scene.runner.note(_asked("a"))
    scene.pass_by(10)
    scene.runner.note(_asked("b"))
    scene.pass_by(1000)
    assert scene.stopped() is None
    scene.runner.note(_answered("a"))
    scene.pass_by(1000)
    assert scene.stopped() is None
    scene.runner.note(_answered("b"))

    scene.pass_by(39)
    assert scene.stopped() is None
    scene.pass_by(1)

    assert scene.stopped() == "wall_timeout"


def test_whoever_takes_a_run_over_knows_how_long_people_took() -> None:
    scene = Scene(is_adopted=True)
    scene.pass_by(1000)
    scene.runner.know(scene.run(), timedelta())
    asked = [
        _seen(20, _asked("a")), _seen(30, _asked("b")), _seen(500, _answered("a")),
        _seen(900, _answered("b")), _seen(970, _asked("c")),
    ]  # fmt: skip

    # 20 s before the first question, 70 s before the last, which is open.
    scene.runner.recall(asked)
    scene.runner.recall(asked)

    scene.pass_by(500)
    assert scene.stopped() is None
    scene.runner.note(_answered("c"))
    scene.pass_by(9)
    assert scene.stopped() is None
    scene.pass_by(1)
    assert scene.stopped() == "wall_timeout"


DAYS = [timedelta(days=3), timedelta(days=-3)]


@pytest.mark.parametrize("by", DAYS, ids=["forward", "back"])
def test_whoever_sets_the_time_of_day_neither_ends_a_run_nor_gives_it_more(
    scene: Scene, by: timedelta
) -> None:
    scene.pass_by(60)
    scene.clock.set_by(by)
    # Its process was out of reach for a moment, and is heard again.
    scene.runner.know(scene.run())

    assert scene.stopped() is None
    scene.pass_by(39)
    assert scene.stopped() is None
    scene.pass_by(1)
    assert scene.stopped() == "wall_timeout"


@pytest.mark.parametrize("by", DAYS, ids=["forward", "back"])
def test_silence_is_not_measured_by_the_time_of_day(by: timedelta) -> None:
    scene = Scene(idle=IDLE_SECONDS)
    scene.pass_by(20)
    scene.clock.set_by(by)

    assert scene.stopped() is None
    scene.pass_by(10)
    assert scene.stopped() == "idle_timeout"


def test_a_run_is_not_blamed_for_our_sleep() -> None:
    scene = Scene(idle=IDLE_SECONDS)
    scene.runner.know(scene.run())
    scene.pass_by(20)
    days = timedelta(days=3)
    scene.clock.advance(days)
    scene.runner.shift(days.total_seconds())

    assert scene.stopped() is None
    scene.process.output_at = scene.clock.monotonic()
    scene.pass_by(29)
    assert scene.stopped() is None
    scene.process.output_at = scene.clock.monotonic()
    scene.pass_by(29)
    assert scene.stopped() is None
    scene.process.output_at = scene.clock.monotonic()
    scene.pass_by(22)
    assert scene.stopped() == "wall_timeout"


def test_neither_is_a_person() -> None:
    scene = Scene(approval=600.0)
    scene.runner.know(scene.run())
    scene.pass_by(50)
    scene.runner.note(_asked("a"))
    scene.pass_by(599)
    days = timedelta(days=3)
    scene.clock.advance(days)
    scene.runner.shift(days.total_seconds())

    assert scene.due() == 0
    scene.pass_by(2)
    assert scene.due() == 1, "nobody has answered in time"
    scene.runner.note(_answered("a"))
    scene.pass_by(49)
    assert scene.stopped() is None
    scene.pass_by(1)
    assert scene.stopped() == "wall_timeout"


def test_a_process_of_one_turn_does_not_stall_while_it_asks() -> None:
    scene = Scene(stall=30.0)
    scene.process.abilities = frozenset()
    scene.runner.note(_asked("a"))
    scene.pass_by(1000)
    assert scene.stopped() is None
    scene.runner.note(_answered("a"))
    scene.process.output_at = scene.clock.monotonic()

    scene.pass_by(29)
    assert scene.stopped() is None
    scene.pass_by(2)
    assert scene.stopped() == "stall"


def test_what_was_cut_off_has_used_what_it_told_before() -> None:
    runner = Scene().runner
    told = UsageUpdated(Usage(100, 5), Cost(0.25, "estimated"))
    anyio.run(runner.spends, told)

    cut = runner.judged(TurnEnded("cancelled"), None)
    said = runner.judged(TurnEnded("completed", usage=Usage(120, 6), cost=Cost(0.3, "known")), None)

    assert (cut.usage, cut.cost) == (told.usage, told.cost)
    assert (said.usage, said.cost) == (Usage(120, 6), Cost(0.3, "known"))


def test_whoever_is_stopped_by_a_budget_says_so() -> None:
    runner = Scene().runner
    runner.stopped = "budget"

    cut = runner.judged(TurnEnded("cancelled"), None)

    assert (cut.status, cut.stop_reason) == ("failed", "budget")
    assert cut.error
    assert cut.error.code == "max_cost"
