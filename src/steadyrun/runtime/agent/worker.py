"""Who sits in an agent's lane? Its process, the run that is going on, and what follows it.

A seat has the lane as long as it is occupied: held while an item runs, warm while only the process
waits for the next one. The CLI may begin a turn by itself at any moment; then the lane goes on with
that, and whoever was about to leave stays.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from steadyrun.dialect import Turn, TurnEnded
from steadyrun.driver import Driver, JournalBatch
from steadyrun.errors import ChangeRefused, KeeperGone, LeaseLost, SteadyrunError, StoreFailed
from steadyrun.lib.signal import Signal
from steadyrun.model.agent import Agent
from steadyrun.model.event import ErrorFact, Note, RecordPhase
from steadyrun.model.ids import ItemId, RunId
from steadyrun.model.item import Claim, Item, Lease, Message
from steadyrun.model.run import Finished, Metadata, Orphaned, Run, StopReason
from steadyrun.runtime.agent.ingest import hear, is_early, reached
from steadyrun.runtime.agent.manner import Manner
from steadyrun.runtime.agent.outage import StoreOutage, retry_write
from steadyrun.runtime.agent.process import LiveProcess
from steadyrun.runtime.agent.process_slot import ProcessSlot
from steadyrun.runtime.agent.quiet import until_quiet
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.events.bus import EventPublisher
from steadyrun.runtime.prompt.builder import TurnPlan
from steadyrun.runtime.recovery import AbandonedProcess
from steadyrun.runtime.run.active_run import ActiveRun
from steadyrun.runtime.run.retry import RetryDecision, begins_anew, metadata_of
from steadyrun.store import PendingRequests, Started

Answer = TypeVar("Answer")

_ANEW = RetryDecision(False, 0.0, is_fresh=True, one_shot=False, why="conversation")


class AgentWorker:
    """One agent's lane in this process."""

    def __init__(
        self, around: Deps, agent: Agent, manner: "Manner[AgentWorker]", tasks: TaskGroup
    ) -> None:
        self.agent = agent
        self.feed = EventPublisher(around.scrubber, around.hub)
        self.runner: ActiveRun | None = None
        # Called when there is somebody again who can see to what others want.
        self.on_sit: Callable[[], None] = lambda: None
        self.idle_since = around.clock.monotonic()
        self._around, self._store, self._clock = around, around.store, around.clock
        self._manner = manner
        self._tasks = tasks
        self._hold: Lease | None = None
        # Whether an item runs; else only the process is kept, if there is one.
        self.is_held = False
        self._own = ProcessSlot(around, self, tasks)
        self.trouble = StoreOutage(agent.name, self.feed, around.clock)
        # How the item is run, if not for the first time; whether its conversation is gone, and may.
        self._again: RetryDecision | None = None
        self.is_missing = self.may_begin_anew = False
        self._stopping: StopReason | None = None
        # A turn has begun whose run is not made yet: it is made when the turn is heard again.
        self._unseated: Claim | None = None
        # Whoever ends or begins a run has it: the two must not meet.
        self._turning = asyncio.Lock()
        self._seated = Signal()

    @property
    def live(self) -> LiveProcess | None:
        return self._own.live

    @property
    def hold(self) -> Lease:
        assert self._hold
        return self._hold

    @property
    def is_idle(self) -> bool:
        """Whether there is only a process that waits."""
        return not self.is_held and self.live is not None and not self.live.is_closing

    @property
    def taken_up(self) -> Turn | None:
        """What an earlier holder has launched its process for, as long as that runs."""
        return self._own.taken_up

    def serves(self, seal: str) -> bool:
        """Whether a process with this seal is there and can be told."""
        return self._own.serves(seal)

    # -- an item

    def begin(self, started: Started) -> None:
        """This item is the next: `work` is to be called."""
        self._again = None
        self._sit(started.claim, self._runner(started.claim, started.run.id))
        self._running().know(started.run)
        self._running().is_probe = started.is_probe

    def take_up(
        self,
        hold: Lease,
        run: Run | None,
        left: AbandonedProcess | None,
        *,
        credit: timedelta = timedelta(),
    ) -> None:
        """Go on with what an earlier holder has left: an item, then `work` is to be called, or only
        a process that waits. `credit`: for so long nobody could have done anything."""
        self._hold = hold
        if isinstance(hold, Claim) and run:
            runner = self._runner(hold, run.id, is_adopted=True)
            runner.know(run, credit)
            self._again = _ANEW if begins_anew(run) else None
            runner.know_wish()
            runner.is_begun = hold.item.kind == "self" or hold.item.delivery == "own_turn"
            self._sit(hold, runner)
        if left:
            live = self._own.hear(left.process, left.request.rights, left.known)
            is_of_it = left.process.provider == self.agent.provider
            self._own.taken_up = left.request.turn if self.is_held and is_of_it else None
            if self.runner:
                self.runner.sit_at(live)

    async def work(self) -> None:
        """Run the item to its end, and what its process goes on with by itself."""
        if not self._running().is_begun:
            await self._tell()
        else:
            await self._running().go_on()
        await self._finish()

    def _sit(self, claim: Claim, runner: ActiveRun) -> None:
        self._hold, self.runner, self.is_held = claim, runner, True
        if self.live:
            self.live.claimed(claim)
        self._seated.notify()
        self.on_sit()

    def _runner(self, claim: Claim, run: RunId, *, is_adopted: bool = False) -> ActiveRun:
        runner = ActiveRun(self._around, claim, self.agent, run, is_adopted=is_adopted)
        runner.stopped = self._stopping
        return runner

    # -- telling it

    async def _tell(self) -> None:
        """Tell the item's turn to a process, and to another one if that is gone before."""
        runner = self._running()
        while not runner.is_over:
            if runner.stopped and not self.taken_up:
                # Nobody knows of it yet.
                runner.end_by(runner.judged(TurnEnded("cancelled"), None))
                return
            try:
                order = await self.write(self._ordered, "start")
                live = await self._process_for(order)
            except (LeaseLost, StoreFailed):
                raise
            except SteadyrunError as error:
                fact = ErrorFact(error.code, error.message, error.hint, error.retryable)
                runner.end_by(Finished(self._clock.now(), "failed", error=fact))
                return
            self.may_begin_anew = order.or_fresh
            await runner.see_through(live, order.turn)
            if self.is_missing:
                await self._begin_anew(runner, live)
            elif not runner.is_over:
                await self._take_stock(runner, live)
            self._own.has_served()

    async def _ordered(self) -> TurnPlan:
        return await self._manner.order(self, self._running(), again=self._again)

    async def _begin_anew(self, runner: ActiveRun, live: LiveProcess) -> None:
        """The conversation was not there, and a new one will do."""
        self._again = _ANEW
        await live.note(Note("the conversation to go on with is not there: a new one begins"))
        await live.end(self._around.limits.close)
        await live.offers.give_up("the conversation is not there")
        await self._own.end()
        self.is_missing = runner.is_over = False
        self.on_sit()

    async def _take_stock(self, runner: ActiveRun, live: LiveProcess) -> None:
        """The process is gone, and the run has not ended."""
        if runner.stopped:
            runner.end_by(runner.judged(TurnEnded("cancelled"), None))
        elif self._own.was_launched(live) or runner.was_told:
            error = ErrorFact("exited", "the process ended before the turn began", retryable=True)
            runner.end_by(runner.judged(TurnEnded("failed", error=error), None))
        # First: a process that is closed without a word of its run has done nothing.
        await self._write_cut(runner)
        await self._own.end()

    async def _process_for(self, order: TurnPlan) -> LiveProcess:
        live, own = self.live, self._own
        if live and (own.taken_up or own.serves(order.seal)):
            own.taken_up = None
            return live
        await own.end()
        await self._manner.make_room(self)
        live = await own.launch(order)
        self.trouble.notes += map(Note, order.notes)
        return live

    # -- ending it

    async def _finish(self) -> None:
        """See to the end what runs and what follows by itself, then settle and stay or go."""
        while True:
            if self.live:
                await until_quiet(self, self.live, self._around.limits)
            runner = self._running()
            if not runner.is_over:
                runner.end_by(Orphaned(self._clock.now()))
            again = await self._next(runner)
            if again is not None and await self._try_again(runner, again):
                await self._tell()
            elif (self._keeps() and await self._rest(runner)) or (
                not self._keeps() and await self._go(runner)
            ):
                return

    def _keeps(self) -> bool:
        """Whether the process waits; not with an offer that nobody knows the fate of."""
        live = self.live
        if live is None or live.is_gone or live.is_closing or live.offers.open:
            return False
        return self._manner.keeps(self)

    async def _next(self, runner: ActiveRun) -> RetryDecision | None:
        """Whether the item is run once more."""
        await self._write_cut(runner)
        run = await self.write(lambda: self._store.run(runner.id), "settle")
        was_told = run.started_at is not None if runner.was_told is None else runner.was_told
        return await self._manner.again(self, run, was_told=was_told or runner.is_begun)

    async def _write_cut(self, runner: ActiveRun) -> None:
        claim, run, cut = runner.claim, runner.id, runner.cut
        if cut is not None:
            await self.write(lambda: self._store.change(claim, run, cut), "settle")

    async def _try_again(self, runner: ActiveRun, again: RetryDecision) -> bool:
        """Make a new run of the item; False if somebody does not want that any more."""
        await self._own.end()
        if not self._stopping:
            await anyio.sleep(again.after_seconds)
        old, spends = runner.claim, again.spends
        try:
            claim = await self.write(lambda: self._store.retry(old, spends=spends), "start")
        except ChangeRefused:
            return False
        self._again = again
        run = await self._create(claim, metadata_of(again, claim.item.attempt))
        self._sit(claim, self._runner(claim, run.id))
        self._running().know(run)
        return True

    async def _rest(self, runner: ActiveRun) -> bool:
        """Settle, and keep the process; False if it has begun something else meanwhile."""
        async with self._turning:
            if self.runner is not runner or not runner.is_over:
                return False
            item = await self.write(lambda: self._store.rest(runner.claim), "settle")
            self._manner.settled(self, item)
            if self.runner is runner:
                self.is_held, self.runner = False, None
                self._seated = Signal()
                self.idle_since = self._clock.monotonic()
            return True

    async def _go(self, runner: ActiveRun) -> bool:
        """Let the process end, then settle; False if it has begun something else meanwhile."""
        live = self.live
        if live and not live.is_gone:
            await live.close()
            if await self._begins_again(live):
                return False
            await live.stop("shutdown")
        async with self._turning:
            if self.runner is not runner or not runner.is_over:
                return False
            await self._own.end()
            item = await self.write(lambda: self._store.settle(runner.claim), "settle")
            self._manner.settled(self, item)
            self.is_held = False
        self.leave_behind()
        return True

    async def _begins_again(self, live: LiveProcess) -> bool:
        """Whether it goes on with a turn of its own, in place of ending."""
        limits, runner = self._around.limits, self.runner
        is_awaited = live.has_background and not self._stopping
        with anyio.move_on_after((limits.idle if is_awaited else limits.close) or None):
            while self.runner is runner and not live.is_gone:
                await live.changed()
        return self.runner is not runner

    async def leave(self) -> None:
        """End the process that waits, and give up the lane, unless an item comes meanwhile."""
        hold = self.hold
        try:
            if not await self._own.end_idle():
                return
            await self.write(lambda: self._store.release_lane(hold), "settle")
        except ChangeRefused:
            # An item has come meanwhile, and is ours.
            return
        self.leave_behind()

    async def give_up(self, ended: Finished) -> None:
        """End whatever is here, however it is."""
        runner, hold = self.runner, self.hold
        await self._own.abandon()
        if runner and self.is_held:
            await self.write(lambda: self._store.settle(runner.claim, ended), "settle")
        else:
            await self.write(lambda: self._store.release_lane(hold), "settle")
        self.is_held = False
        self.leave_behind()

    def leave_behind(self) -> None:
        """The lane is not ours any more: say nothing more of it."""
        self.feed.close()
        self._manner.left(self)

    async def gone(self, live: LiveProcess) -> None:
        # What was asked to end is seen to by whoever has asked.
        if self.live is not live or self.is_held or live.is_closing:
            return
        try:
            await self.leave()
        except LeaseLost:
            self.leave_behind()
        except Exception as error:  # noqa: BLE001 (one agent's trouble is not that of the others)
            await self._manner.broken(self, error)

    # -- hearing

    async def reached(self, live: LiveProcess, driver: Driver) -> None:
        await reached(self, live, driver)
        await self.trouble.tell(live.recorder)
        # Offers of an earlier holder are known now.
        self.on_sit()

    async def hear(self, live: LiveProcess, stretch: JournalBatch) -> None:
        await hear(self, live, stretch)

    def over(self) -> None:
        """The end of the run is in the record."""
        self._running().is_over = True

    def waits(self) -> None:
        """What the run waits for may have changed."""
        if self.runner:
            self._manner.waits(self, for_a_person=bool(self.runner.approvals))

    async def begun(self, live: LiveProcess, took: str | None) -> RunId | None:
        """The run of a turn that has begun. One that is not ours yet is for a follow-up that the
        CLI kept for later, or for nobody; None: without its conversation nothing comes of it."""
        async with self._turning:
            if self.is_missing:
                return None
            before = self.runner
            if before and not before.is_over:
                return before.id
            was_held = self.is_held
            self._unseated = self._unseated or await self._claim_for(live, took)
            claim = self._unseated
            if claim is not None:
                run = await self._create(claim, {}, live)
                runner = self._runner(claim, run.id)
                runner.know(run)
                runner.go_on_from(live, before)
                self._again, self._unseated = None, None
                self._sit(claim, runner)
                live.offers.forget(claim.item.id)
                self._tell_begun(claim.item, was_held=was_held)
                return runner.id
        # An item was started at the same moment: it will sit down, and this comes before it.
        await self._seated.wait(since=0)
        return self._running().id

    def _tell_begun(self, item: Item, *, was_held: bool) -> None:
        if not was_held or item.kind == "self":
            self._manner.begun(self, was_held=was_held)

    async def _claim_for(self, live: LiveProcess, took: str | None) -> Claim | None:
        unasked = Message(self.agent.id, "", kind="self")
        if self.is_held:
            offer = ItemId(took) if took in live.offers.open else None
            return await self._store.continue_with(self._running().claim, offer or unasked)
        try:
            return await self._store.start_unprompted(self.hold, unasked)
        except ChangeRefused:
            return None

    async def _create(
        self, claim: Claim, metadata: Metadata, live: LiveProcess | None = None
    ) -> Run:
        """What a process has begun by itself is on the account that it was launched with."""
        run, account = self._around.ids.new_run(), live.process.account if live else None
        created = await self._manner.created(self, run, claim.item)
        metadata = {**created.metadata, **metadata}
        created = replace(created, metadata=metadata, account=account)
        return await self.write(lambda: self._store.change(claim, run, created), "start")

    # -- what others want

    async def called(self, call: PendingRequests) -> None:
        """Somebody wants something of the run, or of what was offered to it."""
        runner, live = self.runner, self.live
        if runner is None:
            return
        if runner.claim.item.id in call.cancelled and not runner.stopped:
            item = await self._store.item(runner.claim.item.id)
            await runner.stop("user_stop", item.cancel_reason)
        if live is None:
            return
        for approval in call.answers:
            await runner.pass_on(approval)
        for offer in set(call.cancelled) & live.offers.open.keys():
            await live.offers.take_back(offer)
        if call.has_steerable:
            self.offer(live)

    async def stop(self, reason: StopReason) -> None:
        """End what runs, and begin nothing more."""
        self._stopping = reason
        if self.runner:
            await self.runner.stop(reason)

    def end_run(self, reason: StopReason, why: str) -> None:
        """End what runs, by whoever hears it: that goes on hearing meanwhile."""
        if self.runner and not self.runner.stopped:
            self._tasks.start_soon(self._end_run, self.runner, reason, why)

    async def _end_run(self, runner: ActiveRun, reason: StopReason, why: str) -> None:
        # It is not ours any more: its record tells what becomes of it.
        with suppress(LeaseLost, KeeperGone):
            await runner.stop(reason, why)

    def offer(self, live: LiveProcess) -> None:
        """A turn is open, or there is something to offer: it may be told what waits for it."""
        self._tasks.start_soon(self._offer, live)

    async def _offer(self, live: LiveProcess) -> None:
        try:
            if is_early(self, live):
                live.offers.put_off()
            else:
                await live.offers.look()
                live.tell_change()
        except (LeaseLost, ChangeRefused, KeeperGone):
            # The run has ended meanwhile, or is not ours: the record tells what became of it.
            return
        except StoreFailed as error:
            if not await self.failed(error):
                raise

    # -- a record that cannot be written

    async def failed(self, error: StoreFailed, phase: RecordPhase = "append") -> bool:
        """Whether to try again later."""
        if not self._manner.is_patient or not error.retryable:
            return False
        self.trouble.note(error, phase, self.runner.id if self.runner else None)
        return True

    async def write(self, verb: Callable[[], Awaitable[Answer]], phase: RecordPhase) -> Answer:
        answer = await retry_write(verb, lambda error: self.failed(error, phase))
        if self.live and self.live.driver:
            await self.trouble.try_to_tell(self.live.recorder)
        return answer

    def _running(self) -> ActiveRun:
        assert self.runner
        return self.runner
