"""Carries out the effects of a process's output: records it, starts and finishes runs."""

from functools import partial
from typing import assert_never

from msgspec.structs import replace

from steadyrun.dialect import OUT_OF_MEMORY, RESUME_NOT_FOUND, Turn, TurnEnded
from steadyrun.driver import Driver, JournalBatch
from steadyrun.errors import ChangeRefused, NotFound
from steadyrun.model.approval import build_approval_id
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetReached,
    Emitted,
    Event,
    Foreign,
    Note,
    UsageUpdated,
)
from steadyrun.model.gate import ProviderAnswered, Suspected
from steadyrun.model.ids import ItemId, RunId
from steadyrun.model.item import Claim, Message
from steadyrun.model.run import Finished, Metadata, Run, Touched
from steadyrun.runtime.agent.ingest import (
    Append,
    CloseFrame,
    ConfirmAnswer,
    CountUsage,
    FinishTurn,
    NoteEvent,
    Reaction,
    RecordEffect,
    SettleOffer,
    StartTurn,
    SuspectLimit,
    WakeWaiters,
    find_answered,
    find_types,
    ingest,
)
from steadyrun.runtime.agent.lane import AgentLane, TurnStarted
from steadyrun.runtime.agent.process import LiveProcess
from steadyrun.runtime.agent.run_control import RunControl, is_early
from steadyrun.runtime.log import log_event
from steadyrun.runtime.prompt.builder import Turns
from steadyrun.runtime.run.active_run import ActiveRun
from steadyrun.runtime.run.retry import with_poison
from steadyrun.store import LaneSnapshot

_EARLY = "the provider had begun a turn by itself before this one could be sent"


class _BatchRecord:
    """A batch that is being recorded: the run that has started in it, the events not recorded."""

    def __init__(self, batch: JournalBatch) -> None:
        self.batch = batch
        self.started: RunId | None = None
        self.events: list[Emitted] = []


class EffectHandler:
    """Carries out effects for one lane, in order.

    AgentWorker calls it for each update of its process, one at a time. A claim is kept while its
    turn has begun but its run could not be recorded: the next attempt continues with that claim.

    The states of a `_BatchRecord`, by the effects that `ingest` returns for its batch:

        [no run started] --StartTurn--> [run started] --CloseFrame--> start and events are written
          |    ^                             |
          |    +---------FinishTurn----------+   events and the end of the turn are written
          |
          +--Append, CloseFrame--> events are written
          +--FinishTurn----------> events and the end of the turn are written
    """

    def __init__(self, lane: AgentLane, control: RunControl, turns: Turns) -> None:
        self._lane, self._control, self._turns = lane, control, turns
        self._store, self._clock = lane.deps.store, lane.deps.clock
        # A turn has begun whose run could not be made: the next attempt continues with it.
        self._claim: Claim | None = None

    # -- a new connection

    async def connect(self, process: LiveProcess, driver: Driver) -> None:
        """The process can be followed: continue where its record ends."""
        recorder, run = process.recorder, self._lane.run
        snapshot = await self._load_snapshot(process)
        session, found = snapshot.session, snapshot.run
        recorder.token.current = session.current.token if session and session.current else None
        if run is None or found is None:
            return
        run.load(found, self._clock)
        if found.status == "running":
            recorder.run = found.id
            is_here = found.process == process.row.id
            process.recorded_run = found.id if is_here else None
        elif found.status == "starting" and "multi_turn" not in driver.abilities:
            await recorder.begin(found.id, (), recorder.offset)
        await process.offers.load(snapshot)
        kinds = ApprovalRequested | ApprovalResolved | BudgetReached
        run.load_events([each for each in snapshot.events if isinstance(each.event, kinds)])
        self._stop_overspent()
        self._lane.report_wait()
        if process.offers.is_due:
            self._control.offer_soon(process)

    async def _load_snapshot(self, process: LiveProcess) -> LaneSnapshot:
        """The state of the record. The snapshot of an adoption is valid for the first time."""
        snapshot, process.snapshot = process.snapshot, None
        agent, run = self._lane.agent.id, self._lane.run.id if self._lane.run else None
        if snapshot and (snapshot.run.id if snapshot.run else None) == run:
            return snapshot
        return (await self._store.lane_snapshots({agent: run}))[agent]

    # -- output

    async def handle(self, process: LiveProcess, batch: JournalBatch) -> None:
        """Record a batch, then carry out the effects of its events."""
        types = find_types(batch.output)
        names = await self._load_names(process, batch) if ApprovalResolved in types else {}
        record = _BatchRecord(batch)
        for effect in ingest(batch, types, process.rights, names):
            match effect:
                case Append() | StartTurn() | FinishTurn() | CloseFrame():
                    await self._record(process, record, effect)
                case _:
                    await self._react(process, effect)

    async def _record(
        self, process: LiveProcess, record: _BatchRecord, effect: RecordEffect
    ) -> None:
        batch = record.batch
        match effect:
            case Append(events):
                await process.recorder.write(events, batch.offset, has_more=batch.has_more)
            case StartTurn(took):
                record.started = await self._start_turn(process, took)
            case FinishTurn(ended, events):
                await self._finish_turn(process, record, ended, events)
            case CloseFrame(events):
                await self._close_frame(process, record, events)
            case _:
                assert_never(effect)

    async def _react(self, process: LiveProcess, effect: Reaction) -> None:
        match effect:
            case ConfirmAnswer():
                await self._confirm_answer()
            case CountUsage(used):
                await self._count_usage(process, used)
            case SettleOffer(event):
                await self._settle_offer(process, event)
            case NoteEvent(event):
                self._note(event)
            case SuspectLimit(delay):
                row, report = process.row, Suspected(delay, "the provider announced a retry")
                await self._store.update_gate(row.provider, report, account=row.account)
            case WakeWaiters():
                process.connection.notify()
            case _:
                assert_never(effect)

    def _note(self, event: Event | Foreign) -> None:
        if self._lane.run:
            self._lane.run.note(event)
            self._lane.report_wait()

    async def _settle_offer(self, process: LiveProcess, event: Event) -> None:
        await process.recorder.flush()
        await process.offers.settle(event)
        if process.offers.may_have_more:
            self._control.offer_soon(process)

    async def _load_names(self, process: LiveProcess, batch: JournalBatch) -> dict[str, str]:
        """Load the names of the users who answered the approvals in this batch."""
        names = {}
        for name in find_answered(batch.output):
            try:
                approval = await self._store.approval(build_approval_id(process.row.id, name))
            except NotFound:
                # It was asked outside of a run.
                continue
            if approval.answer:
                names[name] = approval.answer.by
        return names

    # -- turns

    async def _finish_turn(
        self, process: LiveProcess, record: _BatchRecord, ended: TurnEnded, events: list[Emitted]
    ) -> None:
        record.events += events
        recorder = process.recorder
        # A turn that begins and ends in one frame is the run's own: it was refused.
        early = record.started is None and is_early(self._lane.run, process)
        change = self._conclude(process, ended, early=early)
        if change is None:
            return
        if isinstance(change, Finished) and change.error and change.error.code == OUT_OF_MEMORY:
            change = await self._set_aside(process, change)
        if record.started:
            await recorder.begin(record.started, (), recorder.offset)
        run = self._lane.run
        questions: tuple[ApprovalRequested, ...] = ()
        if run:
            # This comes first, because nothing is reported for a run that has ended.
            reached = await run.budget.count_end(change)
            if reached:
                await recorder.note(*reached)
            questions = run.budget.build_question(change)
        await recorder.end(change, record.events, record.batch, questions)
        record.events, record.started = [], None
        if isinstance(change, Finished) and self._lane.run:
            self._lane.run.is_over = True

    async def _set_aside(self, process: LiveProcess, ended: Finished) -> Finished:
        """Set the process aside if it is the second of its item that took all memory."""
        assert self._lane.run
        poisoned = with_poison(ended, await self._store.run(self._lane.run.id))
        if poisoned is not ended and poisoned.error:
            await self._lane.deps.launcher.files.mark_aside(
                process.row.id, poisoned.error.message or ""
            )
            log_event("process.set_aside", agent=self._lane.agent.name, process=process.row.id)
        return poisoned

    def _conclude(
        self, process: LiveProcess, ended: TurnEnded, *, early: bool
    ) -> Finished | Touched | None:
        """Compute how the end of a turn changes the run.

        The run's own turn may follow later. Return None if the run continues in another
        conversation.
        """
        run, conversation = self._lane.run, self._lane.conversation
        assert run
        if conversation.is_missing:
            return None
        is_missing = ended.error is not None and ended.error.code == RESUME_NOT_FOUND
        if is_missing and conversation.may_restart and not run.stop:
            conversation.is_missing = run.is_over = True
            return None
        if early and not run.stop:
            return run.conclude_early(ended, self._clock.now())
        was_sent = run.is_begun or process.connection.has_received(Turn(run.id, ""))
        token = process.recorder.token.current
        return run.conclude(ended, token, self._clock.now(), was_sent=was_sent)

    async def _close_frame(
        self, process: LiveProcess, record: _BatchRecord, events: list[Emitted]
    ) -> None:
        recorder, batch, started = process.recorder, record.batch, record.started
        events = [*record.events, *events]
        if started is None:
            await recorder.write(events, batch.offset, has_more=batch.has_more)
            return
        is_recorded = process.recorded_run == started
        if is_recorded:
            # An earlier holder had recorded the start, which is read again after an adoption.
            recorder.run, process.recorded_run = started, None
            await recorder.write(events, batch.offset, has_more=batch.has_more)
        else:
            await recorder.begin(started, events, batch.offset)
        if is_early(self._lane.run, process):
            await recorder.note(Note(_EARLY))
        elif not is_recorded or process.offers.is_due:
            self._control.offer_soon(process)

    async def _start_turn(self, process: LiveProcess, took: str | None) -> RunId | None:
        """Find or create the run of a turn that has begun.

        A turn that steadyrun did not send belongs to a follow-up that the CLI kept for later, or is
        unprompted. Return None if its conversation does not exist.
        """
        lane = self._lane
        async with lane.turn_lock:
            if lane.conversation.is_missing:
                return None
            before = lane.run
            if before and not before.is_over:
                return before.id
            was_held = lane.lease.is_held
            self._claim = self._claim or await self._claim_turn(process, took)
            if self._claim is not None:
                return await self._start_unsent(process, self._claim, before, was_held=was_held)
        # An item was started at the same moment: its run will be attached, and gets this turn.
        await lane.attached.wait(since=0)
        return lane.run.id if lane.run else None

    async def _start_unsent(
        self, process: LiveProcess, claim: Claim, before: ActiveRun | None, *, was_held: bool
    ) -> RunId:
        lane = self._lane
        found = await self.create_run(claim, {}, account=process.row.account)
        run = lane.make_run(claim, found.id)
        run.load(found, self._clock)
        run.is_begun, run.earlier_stop = True, before.stop if before else None
        self._control.bind(run, process)
        lane.retry, self._claim = None, None
        lane.attach(run)
        process.offers.forget(claim.item.id)
        if not was_held or claim.item.kind == "self":
            lane.report(TurnStarted(was_held))
        return run.id

    async def _claim_turn(self, process: LiveProcess, took: str | None) -> Claim | None:
        unprompted = Message(self._lane.agent.id, "", kind="self")
        if self._lane.lease.is_held:
            assert self._lane.run
            offer = ItemId(took) if took in process.offers.open else None
            return await self._store.continue_with(self._lane.run.claim, offer or unprompted)
        try:
            return await self._store.continue_with(self._lane.lease.current.to_lease(), unprompted)
        except ChangeRefused:
            return None

    async def create_run(
        self, claim: Claim, metadata: Metadata, *, account: str | None = None
    ) -> Run:
        """Create a run of an item that is retried, or that the process has begun by itself: then it
        is on the account that the process was launched with."""
        run, agent = self._lane.deps.ids.make_run(), self._lane.agent
        created = await self._turns.create_run(run, agent, claim.item)
        metadata = {**created.metadata, **metadata}
        created = replace(created, metadata=metadata, account=account)
        return await self._lane.outage.write(
            partial(self._store.change, claim, run, created), "start"
        )

    # -- budget and gate

    async def _count_usage(self, process: LiveProcess, used: UsageUpdated) -> None:
        """Report reached limits, and stop a run whose budget is spent."""
        run = self._lane.run
        if run is None or run.is_over:
            return
        reached = await run.budget.count_turn(used)
        if reached:
            await process.recorder.note(*reached)
        self._stop_overspent()

    def _stop_overspent(self) -> None:
        run = self._lane.run
        if run and run.budget.overspent and not run.is_over:
            self._control.stop_soon("budget", run.budget.overspent)

    async def _confirm_answer(self) -> None:
        """The provider has answered.

        A gate that waits for this run can open before the run ends.
        """
        probe = self._lane.run
        if probe is None or not probe.is_probe:
            return
        probe.is_probe = False
        run = await self._store.run(probe.id)
        report = ProviderAnswered(run.id, run.created_at)
        await self._store.update_gate(run.provider, report, account=run.account)
