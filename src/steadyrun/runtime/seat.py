"""Who sits in an agent's lane? Its process, the run that is going on, and what follows it.

A seat has the lane as long as it is occupied: held while an item runs, warm while only the process
waits for the next one. The CLI may begin a turn by itself at any moment; then the lane goes on with
that, and whoever was about to leave stays.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import ChangeRefused, LeaseLost, SteadyrunError, StoreFailed
from steadyrun.model.agent import Agent
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    ErrorFact,
    Note,
)
from steadyrun.model.ids import ItemId, RunId
from steadyrun.model.item import Claim, Hold, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Finished, Metadata, Orphaned, Run
from steadyrun.provider import RESUME_NOT_FOUND, Ability, Driver, Ended, Stretch
from steadyrun.runtime.again import Again, metadata_of
from steadyrun.runtime.around import Surroundings
from steadyrun.runtime.bridge import Order
from steadyrun.runtime.feed import Feed
from steadyrun.runtime.hearing import hear
from steadyrun.runtime.patience import written
from steadyrun.runtime.process import LiveProcess
from steadyrun.runtime.runner import Runner
from steadyrun.store import Call

Answer = TypeVar("Answer")

_ALL = 1_000_000


class Manner(Protocol):
    """How items are run in a seat: once and by themselves, or one after the other for good."""

    # Whether to wait for a store that cannot be written.
    is_patient: bool

    async def order(self, seat: "Seat", runner: Runner, *, is_fresh: bool) -> Order:
        """What is to be told, and to which process; `is_fresh`: in a new conversation."""

    async def make_room(self, seat: "Seat") -> None:
        """A process is about to be launched."""

    def keeps(self, seat: "Seat") -> bool:
        """Whether the process may wait for the next item."""

    async def again(self, seat: "Seat", run: Run, *, was_told: bool) -> Again | None:
        """A run has ended: whether its item is run once more. `was_told`: its turn may have been
        told."""

    def waits(self, seat: "Seat", *, for_a_person: bool) -> None:
        """The run waits for the answer of a person, or has it."""

    def woken(self, seat: "Seat") -> None:
        """The process has begun a turn while nothing ran: `work` is to be called."""

    def left(self, seat: "Seat") -> None:
        """The lane is not ours any more."""


class Seat:
    """One agent's lane in this process."""

    def __init__(
        self, around: Surroundings, agent: Agent, manner: Manner, tasks: TaskGroup
    ) -> None:
        self.agent = agent
        self.feed = Feed(around.scrubber, around.hub)
        self.runner: Runner | None = None
        self.live: LiveProcess | None = None
        self.idle_since = around.clock.monotonic()
        self._around, self._store, self._clock = around, around.store, around.clock
        self._manner = manner
        self._tasks = tasks
        self._hold: Hold | None = None
        # Whether an item runs; else only the process is kept, if there is one.
        self.is_held = False
        self._is_taken_up = False
        # The process that was launched last.
        self._launched: str | None = None
        # Whether the item goes on in a new conversation, may, and has to.
        self._is_fresh = self._may_begin_anew = self._is_missing = False
        # Whoever ends or begins a run has it: the two must not meet.
        self._turning = asyncio.Lock()
        self._ending = asyncio.Lock()
        self._calling = asyncio.Lock()
        self._seated = anyio.Event()

    @property
    def _abilities(self) -> frozenset[Ability]:
        return self._around.drivers.abilities(self.agent.provider)

    # -- an item

    def begin(self, claim: Claim, run: Run) -> None:
        """This item is the next: `work` is to be called."""
        self._sit(claim, self._runner(claim, run.id))
        self._running().know(run)

    def take_up(
        self,
        hold: Hold,
        run: Run | None,
        process: Process | None,
        *,
        credit: timedelta = timedelta(),
    ) -> None:
        """Go on with what an earlier holder has left: an item, then `work` is to be called, or only
        a process that waits. `credit`: for so long nobody could have done anything."""
        self._hold = hold
        if isinstance(hold, Claim) and run:
            runner = self._runner(hold, run.id, is_adopted=True)
            runner.know(run, credit)
            runner.stopped = "user_stop" if hold.item.cancel_requested else None
            runner.is_begun = hold.item.kind == "self" or hold.item.delivery == "own_turn"
            self._sit(hold, runner)
        if process:
            self._is_taken_up = True
            live = self._hear_from(process)
            if self.runner:
                self.runner.sit_at(live)

    async def work(self) -> None:
        """Run the item to its end, and what its process goes on with by itself."""
        if not self._running().is_begun:
            await self._tell()
        await self._finish()

    def _sit(self, claim: Claim, runner: Runner) -> None:
        self._hold, self.runner, self.is_held = claim, runner, True
        if self.live:
            self.live.hold = self.live.recorder.claim = claim
            self.live.offers.claim = claim
        self._seated.set()

    def _runner(self, claim: Claim, run: RunId, *, is_adopted: bool = False) -> Runner:
        return Runner(self._around, claim, self.agent, run, is_adopted=is_adopted)

    # -- telling it

    async def _tell(self) -> None:
        """Tell the item's turn to a process, and to another one if that is gone before."""
        runner = self._running()
        while not runner.is_over:
            try:
                order = await self._manner.order(self, runner, is_fresh=self._is_fresh)
                live = await self._process_for(order)
            except (LeaseLost, StoreFailed):
                raise
            except SteadyrunError as error:
                fact = ErrorFact(error.code, error.message, error.hint, error.retryable)
                runner.end_by(Finished(self._clock.now(), "failed", error=fact))
                return
            self._may_begin_anew = order.or_fresh and not self._is_fresh
            await runner.see_through(live, order.turn)
            if self._is_missing:
                await self._begin_anew(runner, live)
            elif not runner.is_over:
                await self._take_stock(runner, live, order)

    async def _begin_anew(self, runner: Runner, live: LiveProcess) -> None:
        """The conversation was not there, and a new one will do."""
        self._is_missing, self._is_fresh = False, True
        if runner.stopped:
            runner.end_by(runner.judged(Ended("cancelled"), None))
            return
        await live.note(Note("the conversation to go on with is not there: a new one begins"))
        await self._end_process()
        runner.is_over = False

    async def _take_stock(self, runner: Runner, live: LiveProcess, order: Order) -> None:
        """The process is gone, and the run has not ended."""
        if runner.stopped:
            runner.end_by(runner.judged(Ended("cancelled"), None))
        elif self._launched == live.process.id or live.has_told(order.turn):
            error = ErrorFact("exited", "the process ended before the turn began", retryable=True)
            runner.end_by(runner.judged(Ended("failed", error=error), None))
        # First: a process that is closed without a word of its run has done nothing.
        await self._write_cut(runner)
        await self._end_process()

    async def _process_for(self, order: Order) -> LiveProcess:
        live = self.live
        if live and (self._is_taken_up or self.serves(order.seal)):
            self._is_taken_up = False
            return live
        await self._end_process()
        await self._manner.make_room(self)
        return await self._launch(order)

    def serves(self, seal: str) -> bool:
        """Whether a process with this seal is there and can be told."""
        live = self.live
        if live is None or live.is_gone or live.is_closing:
            return False
        return self._is_taken_up or (bool(seal) and live.process.seal == seal)

    @property
    def serves_many(self) -> bool:
        """Whether its processes serve one turn after the other."""
        return "multi_turn" in self._abilities

    @property
    def is_idle(self) -> bool:
        """Whether there is only a process that waits."""
        return not self.is_held and self.live is not None and not self.live.is_closing

    async def _launch(self, order: Order) -> LiveProcess:
        around, agent = self._around, self.agent
        name, now = around.ids.process(), self._clock.now()
        place = around.drivers.place(name)
        process = Process(
            name, agent.id, agent.provider, around.machine, place, now, seal=order.seal
        )
        await self._store.open_process(self._held(), process)
        try:
            await around.drivers.launch(process, order.request, env=order.env)
        except SteadyrunError:
            await self._store.close_process(self._held(), process.id)
            raise
        self._launched = process.id
        return self._hear_from(process)

    def _hear_from(self, process: Process) -> LiveProcess:
        live = LiveProcess(
            self._around, self._held(), self.agent, process, ear=self, feed=self.feed
        )
        self.live = live
        self._tasks.start_soon(self._serve, live)
        return live

    async def _serve(self, live: LiveProcess) -> None:
        await live.serve()
        if self.live is live and not self.is_held:
            await self.leave()

    # -- ending it

    async def _finish(self) -> None:
        """See to the end what runs and what follows by itself, then settle and stay or go."""
        while True:
            await self._until_quiet()
            runner = self._running()
            if not runner.is_over:
                runner.end_by(Orphaned(self._clock.now()))
            again = await self._next(runner)
            if again is not None and await self._try_again(runner, again):
                await self._tell()
            elif self._manner.keeps(self) and self.live and not self.live.is_gone:
                if await self._rest(runner):
                    return
            elif await self._go(runner):
                return

    async def _until_quiet(self) -> None:
        """No turn is open and no offer either; what stays open too long is called back."""
        live, limits = self.live, self._around.limits
        if live is None:
            return
        while not self._running().is_over and not live.is_gone:
            await live.changed()
        await self._wait_for_offers(live, limits.offer)
        if live.offers.open and not live.is_gone:
            await live.offers.recall()
            await self._wait_for_offers(live, limits.interrupt)

    async def _wait_for_offers(self, live: LiveProcess, limit: float | None) -> None:
        with anyio.move_on_after(limit or None):
            while (live.offers.open or not self._running().is_over) and not live.is_gone:
                await live.changed()

    async def _next(self, runner: Runner) -> Again | None:
        """Whether the item is run once more."""
        await self._write_cut(runner)
        run = await self._store.run(runner.id)
        # Of whom we have taken over, nobody can say what it was told before it began.
        was_told = run.started_at is not None or runner.is_told or runner.is_adopted
        return await self._manner.again(self, run, was_told=was_told)

    async def _write_cut(self, runner: Runner) -> None:
        claim, run, cut = runner.claim, runner.id, runner.cut
        if cut is not None:
            await self._written(lambda: self._store.change(claim, run, cut))

    async def _try_again(self, runner: Runner, again: Again) -> bool:
        """Make a new run of the item; False if somebody does not want that any more."""
        await self._end_process()
        await anyio.sleep(again.after_seconds)
        try:
            claim = await self._store.again(runner.claim, spends=again.spends)
        except ChangeRefused:
            return False
        self._is_fresh = again.is_fresh
        metadata = metadata_of(again, claim.item.attempt)
        self._sit(claim, self._runner(claim, await self._create(claim, metadata)))
        return True

    async def _rest(self, runner: Runner) -> bool:
        """Settle, and keep the process; False if it has begun something else meanwhile."""
        async with self._turning:
            if self.runner is not runner or not runner.is_over:
                return False
            await self._written(lambda: self._store.rest(runner.claim))
            self.is_held, self.runner = False, None
            self._is_fresh = False
            self._seated = anyio.Event()
            self.idle_since = self._clock.monotonic()
            return True

    async def _go(self, runner: Runner) -> bool:
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
            await self._end_process()
            await self._written(lambda: self._store.settle(runner.claim))
            self.is_held = False
        self._leave()
        return True

    async def _begins_again(self, live: LiveProcess) -> bool:
        """Whether it goes on with a turn of its own, in place of ending."""
        limits, runner = self._around.limits, self.runner
        with anyio.move_on_after((limits.idle if live.has_background else limits.close) or None):
            while self.runner is runner and not live.is_gone:
                await live.changed()
        return self.runner is not runner

    async def leave(self) -> None:
        """Nothing runs: end the process that waits, and give up the lane."""
        hold = self._held()
        await self._end_process()
        try:
            await self._written(lambda: self._store.let_go(hold))
        except ChangeRefused:
            # An item has come meanwhile, and is ours.
            return
        except LeaseLost:
            pass
        self._leave()

    async def give_up(self, ended: Finished) -> None:
        """End whatever runs here, however it is."""
        runner, live = self.runner, self.live
        if live:
            await live.stop("shutdown")
        if runner and self.is_held:
            await self._end_process()
            await self._store.settle(runner.claim, ended)
        self._leave()

    def _leave(self) -> None:
        self.feed.end()
        self._manner.left(self)

    async def _end_process(self) -> None:
        """End the process, if there is one, and write that down."""
        async with self._ending:
            live = self.live
            if live is None:
                return
            await live.end(self._around.limits.close)
            hold, process = self._held(), live.process.id
            await self._written(lambda: self._store.close_process(hold, process))
            self.live = None

    # -- hearing

    async def reached(self, live: LiveProcess, driver: Driver) -> None:
        recorder, runner = live.recorder, self.runner
        session = await self._store.session(self.agent.id, self.agent.provider)
        recorder.token = session.current.token if session and session.current else None
        if runner is None:
            return
        recorder.claim = live.offers.claim = runner.claim
        run = await self._store.run(runner.id)
        runner.know(run)
        if run.status == "running":
            recorder.run = run.id
        elif run.status == "starting" and "multi_turn" not in self._abilities:
            await recorder.begin(run.id, (), recorder.offset)
        await live.offers.take_up(runner.id)
        for seen in await self._store.last_events(run=runner.id, limit=_ALL):
            if isinstance(seen.event, ApprovalRequested | ApprovalResolved):
                runner.note(seen.event)
        self._tasks.start_soon(self._offer_again, live)

    async def _offer_again(self, live: LiveProcess) -> None:
        try:
            await live.offers.offer_again()
            await live.offers.take()
        except LeaseLost:
            return

    async def hear(self, live: LiveProcess, stretch: Stretch) -> None:
        await hear(self, live, stretch)

    def judged(self, ended: Ended, token: str | None) -> Finished | None:
        """A turn has ended, and so will its run; None: it goes on in another conversation."""
        if self._is_gone_conversation(ended):
            self._is_missing = self._running().is_over = True
            return None
        return self._running().judged(ended, token)

    def over(self) -> None:
        """The end of the run is in the record."""
        self._running().is_over = True

    def waits(self) -> None:
        """What the run waits for may have changed."""
        if self.runner:
            self._manner.waits(self, for_a_person=bool(self.runner.approvals))

    def offer(self, live: LiveProcess) -> None:
        """A turn is open: it may be told what waits for it."""
        self._tasks.start_soon(self._offer_again, live)

    def _is_gone_conversation(self, ended: Ended) -> bool:
        """Whether the conversation was not there, and a new one will do."""
        is_missing = ended.error is not None and ended.error.code == RESUME_NOT_FOUND
        return is_missing and self._may_begin_anew

    async def begun(self, live: LiveProcess, took: str | None) -> RunId:
        """The run of a turn that has begun. One that is not ours yet is for a follow-up that the
        CLI kept for later, or for nobody."""
        async with self._turning:
            before = self.runner
            if before and not before.is_over:
                return before.id
            was_held = self.is_held
            claim = await self._claim_for(live, took)
            if claim is not None:
                runner = self._runner(claim, await self._create(claim, {}))
                runner.go_on_from(live, before)
                self._sit(claim, runner)
                live.offers.open.pop(claim.item.id, None)
                if not was_held:
                    self._manner.woken(self)
                return runner.id
        # An item was started at the same moment: it will sit down, and this comes before it.
        await self._seated.wait()
        return self._running().id

    async def _claim_for(self, live: LiveProcess, took: str | None) -> Claim | None:
        unasked = Message(self.agent.id, "", kind="self")
        if self.is_held:
            offer = ItemId(took) if took in live.offers.open else None
            return await self._store.go_on(self._running().claim, offer or unasked)
        try:
            return await self._store.wake(self._held(), unasked)
        except ChangeRefused:
            return None

    async def _create(self, claim: Claim, metadata: Metadata) -> RunId:
        agent, run = self.agent, self._around.ids.run()
        created = Created(
            run, agent.id, claim.item.id, agent.provider, self._clock.now(), agent.model,
            metadata=metadata,
        )  # fmt: skip
        await self._store.change(claim, run, created)
        return run

    # -- what others want

    async def called(self, call: Call) -> None:
        """Somebody wants something of the run, or of what was offered to it."""
        runner, live = self.runner, self.live
        if runner is None or live is None or self._calling.locked():
            return
        async with self._calling:
            if runner.claim.item.id in call.cancelled:
                await runner.stop("user_stop")
            for item in set(call.cancelled) & live.offers.open.keys():
                await live.offers.take_back(item)
            if call.has_steerable:
                await live.offers.take()
                live.tell_change()

    async def failed(self, error: StoreFailed) -> bool:
        return self._manner.is_patient and error.retryable

    async def _written(self, verb: Callable[[], Awaitable[Answer]]) -> Answer:
        return await written(verb, self.failed)

    def _running(self) -> Runner:
        assert self.runner
        return self.runner

    def _held(self) -> Hold:
        assert self._hold
        return self._hold
