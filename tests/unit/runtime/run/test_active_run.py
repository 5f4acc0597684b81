"""How long a run may take, and how it ends. Under a clock that only the test moves."""

from datetime import datetime, timedelta
from typing import cast

import anyio
import pytest

from steadyrun.dialect import TurnEnded
from steadyrun.model.agent import Agent
from steadyrun.model.budget import BudgetRules
from steadyrun.model.event import ApprovalRequested, ApprovalResolved, Emitted, Event, UsageUpdated
from steadyrun.model.ids import AgentId, HolderId, ItemId, RunId
from steadyrun.model.item import Claim, Item
from steadyrun.model.run import Created, Run, step
from steadyrun.model.usage import Cost, Usage
from steadyrun.runtime.run.active_run import WALL, ActiveRun, StopRequest
from steadyrun.runtime.run.budget import RunBudget
from steadyrun.runtime.run.timeouts import (
    DenyApproval,
    ProcessActivity,
    RunTimer,
    StopForTimeout,
    TimeoutAction,
    Timeouts,
)
from steadyrun.store import Store
from steadyrun.stores.memory.store import MemoryStore
from steadyrun.testing.clock import START, FakeClock

AGENT = Agent(AgentId("agt_1"), "ada", ("scripted",), "/")
RUN = RunId("run_1")
ITEM = Item(ItemId("itm_1"), AGENT.id, 1, "message", "work", "resume", START)
WALL_SECONDS = 100.0
IDLE_SECONDS = 30.0


class AdjustableClock(FakeClock):
    """The time of day can be set."""

    def set_by(self, by: timedelta) -> None:
        self._now += by


class Scene:
    """A run with little time that has just begun, in a silent process."""

    def __init__(
        self,
        *,
        idle: float = 0.0,
        stall: float = 0.0,
        approval: float = 0.0,
        is_adopted: bool = False,
    ) -> None:
        self.clock = AdjustableClock()
        timeouts = Timeouts(idle, stall, 0.0, 0.0, approval_seconds=approval)
        timer = RunTimer(timeouts, self.clock, is_adopted=is_adopted)
        store = cast("Store", MemoryStore(self.clock))
        budget = RunBudget(store, AGENT, RUN, BudgetRules())
        claim = Claim(AGENT.id, HolderId("hld_1"), 1, ITEM)
        self.run = ActiveRun(RUN, claim, AGENT, timer, budget)
        self.output_at = 0.0
        self.is_one_shot = False

    def load(self, credit: timedelta | None = None) -> None:
        self.run.load(make_run(), self.clock, credit=credit)

    def pass_by(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    def print_output(self) -> None:
        self.output_at = self.clock.monotonic()

    def due(self) -> list[TimeoutAction]:
        """What is due now."""
        now = self.clock.monotonic()
        if not self.run.timer.is_due(now):
            return []
        process = ProcessActivity(self.output_at, 0.0, self.is_one_shot, is_busy=False)
        return [*self.run.timer.find_due(now, process, is_stopping=self.run.stop is not None)]

    def stopped(self) -> str | None:
        """The reason for which the run is to be stopped now."""
        stops = [each for each in self.due() if isinstance(each, StopForTimeout)]
        return stops[0].reason if stops else None


def make_run(created_at: datetime = START) -> Run:
    wall = {WALL: WALL_SECONDS}
    return step(None, Created(RUN, AGENT.id, ITEM.id, "scripted", created_at, metadata=wall))


def _asked(name: str) -> ApprovalRequested:
    return ApprovalRequested(name, None, "Bash")


def _answered(name: str) -> ApprovalResolved:
    return ApprovalResolved(name, "allowed", by="user")


def _seen(seconds: float, event: Event) -> Emitted:
    return Emitted(1, 0, START + timedelta(seconds=seconds), event)


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.load()
    return scene


def test_next_holder_reads_from_the_store_why_a_run_is_stopped(scene: Scene) -> None:
    scene.pass_by(WALL_SECONDS + 1)
    [due] = scene.due()
    assert isinstance(due, StopForTimeout)
    assert due.reason == "wall_timeout"

    stop = StopRequest(due.reason, due.why)
    change = Created(
        RUN, AGENT.id, ITEM.id, "scripted", scene.clock.now(), metadata=stop.to_metadata()
    )
    adopted = Scene(is_adopted=True).run
    adopted.load(step(make_run(), change), scene.clock)
    ended = adopted.conclude(TurnEnded("cancelled"), None, scene.clock.now())
    assert adopted.stop
    assert (adopted.stop.reason, ended.status) == ("wall_timeout", "timed_out")
    assert ended.error
    assert ended.error.message == "the run was not done after 100 s"


def test_time_of_open_questions_does_not_count_for_the_run(scene: Scene) -> None:
    scene.pass_by(60)
    scene.run.note(_asked("a"))
    scene.pass_by(10)
    scene.run.note(_asked("b"))
    scene.pass_by(1000)
    assert scene.stopped() is None
    scene.run.note(_answered("a"))
    scene.pass_by(1000)
    assert scene.stopped() is None
    scene.run.note(_answered("b"))

    scene.pass_by(39)
    assert scene.stopped() is None
    scene.pass_by(1)

    assert scene.stopped() == "wall_timeout"


def test_next_holder_takes_the_time_of_past_questions_out() -> None:
    scene = Scene(is_adopted=True)
    scene.pass_by(1000)
    scene.load(credit=timedelta())
    asked = [
        _seen(20, _asked("a")), _seen(30, _asked("b")), _seen(500, _answered("a")),
        _seen(900, _answered("b")), _seen(970, _asked("c")),
    ]  # fmt: skip

    # 20 s before the first question, 70 s before the last, which is open.
    scene.run.load_events(asked)
    scene.run.load_events(asked)

    scene.pass_by(500)
    assert scene.stopped() is None
    scene.run.note(_answered("c"))
    scene.pass_by(9)
    assert scene.stopped() is None
    scene.pass_by(1)
    assert scene.stopped() == "wall_timeout"


DAYS = [timedelta(days=3), timedelta(days=-3)]


@pytest.mark.parametrize("by", DAYS, ids=["forward", "back"])
def test_setting_the_time_of_day_does_not_change_the_wall_timeout(
    scene: Scene, by: timedelta
) -> None:
    scene.pass_by(60)
    scene.clock.set_by(by)
    # The process was disconnected for a moment, and is connected again.
    scene.load()

    assert scene.stopped() is None
    scene.pass_by(39)
    assert scene.stopped() is None
    scene.pass_by(1)
    assert scene.stopped() == "wall_timeout"


@pytest.mark.parametrize("by", DAYS, ids=["forward", "back"])
def test_setting_the_time_of_day_does_not_change_the_idle_timeout(by: timedelta) -> None:
    scene = Scene(idle=IDLE_SECONDS)
    scene.pass_by(20)
    scene.clock.set_by(by)

    assert scene.stopped() is None
    scene.pass_by(10)
    assert scene.stopped() == "idle_timeout"


def test_downtime_of_this_process_does_not_count_for_the_run() -> None:
    scene = Scene(idle=IDLE_SECONDS)
    scene.load()
    scene.pass_by(20)
    days = timedelta(days=3)
    scene.clock.advance(days)
    scene.run.timer.add_downtime(days.total_seconds())

    assert scene.stopped() is None
    scene.print_output()
    scene.pass_by(29)
    assert scene.stopped() is None
    scene.print_output()
    scene.pass_by(29)
    assert scene.stopped() is None
    scene.print_output()
    scene.pass_by(22)
    assert scene.stopped() == "wall_timeout"


def test_downtime_of_this_process_does_not_count_for_a_question() -> None:
    scene = Scene(approval=600.0)
    scene.load()
    scene.pass_by(50)
    scene.run.note(_asked("a"))
    scene.pass_by(599)
    days = timedelta(days=3)
    scene.clock.advance(days)
    scene.run.timer.add_downtime(days.total_seconds())

    assert scene.due() == []
    scene.pass_by(2)
    assert scene.due() == [DenyApproval("a")]
    assert scene.due() == [], "it is denied once"
    scene.run.timer.retry_denial("a")
    assert scene.due() == [DenyApproval("a")], "the denial could not be stored"
    scene.run.note(_answered("a"))
    scene.pass_by(49)
    assert scene.stopped() is None
    scene.pass_by(1)
    assert scene.stopped() == "wall_timeout"


def test_one_shot_process_does_not_stall_while_a_question_is_open() -> None:
    scene = Scene(stall=30.0)
    scene.is_one_shot = True
    scene.run.note(_asked("a"))
    scene.pass_by(1000)
    assert scene.stopped() is None
    scene.run.note(_answered("a"))
    scene.print_output()

    scene.pass_by(29)
    assert scene.stopped() is None
    scene.pass_by(2)
    assert scene.stopped() == "stall"


def test_turn_that_was_cut_off_has_the_last_usage_that_it_reported() -> None:
    scene = Scene()
    reported = UsageUpdated(Usage(100, 5), Cost(0.25, "estimated"))
    anyio.run(scene.run.budget.count_turn, reported)
    now = scene.clock.now()

    cut = scene.run.conclude(TurnEnded("cancelled"), None, now)
    complete = TurnEnded("completed", usage=Usage(120, 6), cost=Cost(0.3, "known"))
    done = scene.run.conclude(complete, None, now)

    assert (cut.usage, cut.cost) == (reported.usage, reported.cost)
    assert (done.usage, done.cost) == (Usage(120, 6), Cost(0.3, "known"))


def test_run_that_was_stopped_for_its_budget_fails_with_max_cost() -> None:
    scene = Scene()
    scene.run.stop = StopRequest("budget", None)

    cut = scene.run.conclude(TurnEnded("cancelled"), None, scene.clock.now())

    assert (cut.status, cut.stop_reason) == ("failed", "budget")
    assert cut.error
    assert cut.error.code == "max_cost"
