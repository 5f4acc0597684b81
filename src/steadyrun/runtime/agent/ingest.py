"""What becomes of what a process says? Recorded in order, each event with the run it belongs to."""

from datetime import timedelta
from typing import Protocol, TypeGuard

from msgspec.structs import replace

from steadyrun.dialect import RESUME_NOT_FOUND, Turn, TurnBegan, TurnEnded
from steadyrun.driver import Driver, DriverOutput, JournalBatch
from steadyrun.errors import NotFound
from steadyrun.model.agent import Agent
from steadyrun.model.approval import BY_PROVIDER, build_approval_id
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetReached,
    Emitted,
    FollowupAbsorbed,
    FollowupReturned,
    Note,
    ProviderRetrying,
    TextFinal,
    ToolCompleted,
    ToolStarted,
    UsageUpdated,
)
from steadyrun.model.gate import ProviderAnswered, Suspected
from steadyrun.model.ids import RunId
from steadyrun.model.run import Finished, StopReason, Touched
from steadyrun.runtime.agent.process import LiveProcess
from steadyrun.runtime.run.active_run import ActiveRun
from steadyrun.runtime.run.permissions import with_breaches
from steadyrun.store import LaneSnapshot

# The events that ask something of us.
_ASKING = frozenset(
    {
        FollowupAbsorbed,
        FollowupReturned,
        ApprovalRequested,
        ApprovalResolved,
        ProviderRetrying,
        UsageUpdated,
    }
)
_PLAIN = frozenset({Emitted})
# Nothing of this comes before the model has answered.
_ANSWERS = frozenset({TextFinal, ToolStarted, UsageUpdated})
# Why a provider tries again, where that says something about everybody who uses it.
RATE_LIMITED = "rate_limited"
_EARLY = "it had begun a turn of its own before this one could be told"


class Turning(Protocol):
    """Who knows which run a turn belongs to."""

    agent: Agent
    runner: ActiveRun | None
    # Whether a new conversation will do where the one to go on with is not there; it is not.
    may_begin_anew: bool
    is_missing: bool

    async def begun(self, live: LiveProcess, took: str | None) -> RunId | None: ...

    def over(self) -> None: ...

    def offer(self, live: LiveProcess) -> None: ...

    def waits(self) -> None: ...

    def end_run(self, reason: StopReason, why: str) -> None: ...


async def reached(seat: Turning, live: LiveProcess, driver: Driver) -> None:
    """A process can be heard: go on where its record ends."""
    recorder, runner = live.recorder, seat.runner
    known = await _known(seat, live)
    session, run = known.session, known.run
    recorder.token = session.current.token if session and session.current else None
    if runner is None or run is None:
        return
    live.claimed(runner.claim)
    runner.know(run)
    if run.status == "running":
        recorder.run = run.id
        live.begun = run.id if run.process == live.process.id else None
    elif run.status == "starting" and "multi_turn" not in driver.abilities:
        await recorder.begin(run.id, (), recorder.offset)
    await live.offers.take_up(known)
    asked = ApprovalRequested | ApprovalResolved
    runner.recall([each for each in known.events if isinstance(each.event, asked | BudgetReached)])
    _stop_overspent(seat)
    seat.waits()
    if live.offers.is_due:
        seat.offer(live)


async def _known(seat: Turning, live: LiveProcess) -> LaneSnapshot:
    """What its record says; what was read when it was taken up is good for the first time."""
    known, live.known = live.known, None
    run = seat.runner.id if seat.runner else None
    if known and (known.run.id if known.run else None) == run:
        return known
    return (await live.store.lane_snapshots({seat.agent.id: run}))[seat.agent.id]


def is_early(seat: Turning, live: LiveProcess) -> bool:
    """Whether a turn that is open is not that of the run, which was not told yet."""
    runner = seat.runner
    if runner is None or runner.is_begun or runner.is_over or not live.serves_many:
        return False
    return not live.has_told(Turn(runner.id, ""))


def _judged(
    seat: Turning, ended: TurnEnded, token: str | None, *, early: bool
) -> Finished | Touched | None:
    """A turn has ended, and so will its run, unless the run's own turn is still to come; None: it
    goes on in another conversation."""
    runner = seat.runner
    assert runner
    if seat.is_missing:
        return None
    is_missing = ended.error is not None and ended.error.code == RESUME_NOT_FOUND
    if is_missing and seat.may_begin_anew and not runner.stopped:
        seat.is_missing = runner.is_over = True
        return None
    if early and not runner.stopped:
        return runner.early(ended)
    return runner.judged(ended, token)


async def hear(seat: Turning, live: LiveProcess, stretch: JournalBatch) -> None:
    """Record it, then do what it asks of us."""
    if any(map(_is_used, stretch.output)):
        stretch = replace(stretch, output=with_breaches(stretch.output, live.rights))
    asking = [each for each in stretch.output if _is_asking(each)]
    if any(type(each.event) is ApprovalResolved for each in asking):
        stretch = await _signed(live, stretch)
        asking = [each for each in stretch.output if _is_asking(each)]
    is_plain = set(map(type, stretch.output)) <= _PLAIN
    if is_plain:
        events: list[Emitted] = stretch.output  # type: ignore[assignment]
        await live.recorder.write(events, stretch.offset, has_more=stretch.has_more)
    else:
        await _hear_turn(seat, live, stretch)
    if seat.runner and seat.runner.is_probe:
        await _report(seat.runner, live, stretch)
    for heard in asking:
        await _note(seat, live, heard)
    if asking or not is_plain:
        live.tell_change()


async def _signed(live: LiveProcess, stretch: JournalBatch) -> JournalBatch:
    """What a provider was told has been said by somebody: their name is in the record."""
    heard = [await _with_name(live, each) for each in stretch.output]
    return replace(stretch, output=heard)


async def _with_name(live: LiveProcess, heard: DriverOutput) -> DriverOutput:
    event = heard.event if type(heard) is Emitted else None
    if not isinstance(event, ApprovalResolved) or event.by == BY_PROVIDER:
        return heard
    try:
        known = await live.store.approval(build_approval_id(live.process.id, event.approval))
    except NotFound:
        # It was asked outside of a run.
        return heard
    return replace(heard, event=replace(event, by=known.answer.by)) if known.answer else heard


async def _hear_turn(seat: Turning, live: LiveProcess, stretch: JournalBatch) -> None:
    """One frame with a turn's beginning or end in it; events go where they belong."""
    recorder, events = live.recorder, list[Emitted]()
    begun: RunId | None = None
    for heard in stretch.output:
        match heard:
            case Emitted():
                events.append(heard)
            case TurnBegan():
                # What its frame says before is of this turn, too: one frame, one commit.
                begun = await seat.begun(live, heard.input)
            case TurnEnded():
                # One that begins and ends in a frame is the run's own: it was refused.
                early = begun is None and is_early(seat, live)
                change = _judged(seat, heard, recorder.token, early=early)
                if change is not None:
                    await _end(seat, live, stretch, change, events, begun)
                    events, begun = [], None
    if begun:
        await _begin(seat, live, stretch, events, begun)
    else:
        await recorder.write(events, stretch.offset, has_more=stretch.has_more)


async def _begin(
    seat: Turning, live: LiveProcess, stretch: JournalBatch, events: list[Emitted], run: RunId
) -> None:
    recorder, is_recorded = live.recorder, live.begun == run
    if is_recorded:
        # An earlier holder had heard it, or as much of it: who takes over is told again.
        recorder.run, live.begun = run, None
        await recorder.write(events, stretch.offset, has_more=stretch.has_more)
    else:
        await recorder.begin(run, events, stretch.offset)
    if is_early(seat, live):
        await recorder.note(Note(_EARLY))
    elif not is_recorded or live.offers.is_due:
        seat.offer(live)


async def _end(
    seat: Turning,
    live: LiveProcess,
    stretch: JournalBatch,
    change: Finished | Touched,
    events: list[Emitted],
    begun: RunId | None,
) -> None:
    if begun:
        await live.recorder.begin(begun, (), live.recorder.offset)
    asks: tuple[ApprovalRequested, ...] = ()
    if seat.runner:
        # First: a run that has ended has nothing more to say.
        await _tell_budget(live, await seat.runner.has_spent(change))
        asks = seat.runner.question(change)
    await live.recorder.end(change, events, stretch, asks)
    if isinstance(change, Finished):
        seat.over()


async def _tell_budget(live: LiveProcess, reached: list[BudgetReached]) -> None:
    if reached:
        await live.recorder.note(*reached)


async def _spend(seat: Turning, live: LiveProcess, heard: UsageUpdated) -> None:
    """Something was used: a run whose budget is spent is stopped."""
    runner = seat.runner
    if runner is None or runner.is_over:
        return
    await _tell_budget(live, await runner.spends(heard))
    _stop_overspent(seat)


def _stop_overspent(seat: Turning) -> None:
    if seat.runner and seat.runner.overspent and not seat.runner.is_over:
        seat.end_run("budget", seat.runner.overspent)


async def _report(probe: ActiveRun, live: LiveProcess, stretch: JournalBatch) -> None:
    """Whoever is answered is not refused: others need not wait for the end of it."""
    if any(type(each) is Emitted and type(each.event) in _ANSWERS for each in stretch.output):
        probe.is_probe = False
        run = await live.store.run(probe.id)
        news = ProviderAnswered(run.id, run.created_at)
        await live.store.update_gate(run.provider, news, account=run.account)


async def _note(seat: Turning, live: LiveProcess, heard: Emitted) -> None:
    event = heard.event
    if isinstance(event, UsageUpdated):
        await _spend(seat, live, event)
        return
    if isinstance(event, FollowupAbsorbed | FollowupReturned):
        await live.recorder.flush()
        await live.offers.note(event)
        if live.offers.may_have_more:
            seat.offer(live)
    elif seat.runner:
        seat.runner.note(event)
        seat.waits()
    if isinstance(event, ProviderRetrying) and event.reason == RATE_LIMITED:
        delay = None if event.delay_ms is None else timedelta(milliseconds=event.delay_ms)
        news = Suspected(delay, "it was asked to wait")
        process = live.process
        await live.store.update_gate(process.provider, news, account=process.account)


def _is_used(heard: DriverOutput) -> bool:
    return type(heard) is Emitted and type(heard.event) is ToolCompleted


def _is_asking(heard: DriverOutput) -> TypeGuard[Emitted]:
    return type(heard) is Emitted and type(heard.event) in _ASKING
