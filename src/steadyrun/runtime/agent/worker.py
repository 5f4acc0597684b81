"""Runs the items of one agent, one after the other, in one process as far as possible.

A worker has the lane as long as it is occupied: held while an item runs, warm while only the
process waits for the next one. The CLI may begin a turn by itself at any moment; then the lane
continues with that turn, and the worker stays.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import NamedTuple, assert_never

import anyio
from anyio.abc import TaskGroup

from steadyrun.driver import JournalBatch
from steadyrun.errors import ChangeRefused, JournalPoisoned, LeaseLost
from steadyrun.model.agent import Agent
from steadyrun.model.event import ErrorFact
from steadyrun.model.item import Claim, Lease
from steadyrun.model.run import Finished, Orphaned, Run, StopReason
from steadyrun.runtime.agent.effects import EffectHandler
from steadyrun.runtime.agent.lane import AgentLane, LaneFailed, RunAttached, WorkerChange
from steadyrun.runtime.agent.process import Connected, Exited, LiveProcess, ProcessUpdate
from steadyrun.runtime.agent.process_slot import ProcessSlot
from steadyrun.runtime.agent.retries import find_retry
from steadyrun.runtime.agent.run_control import RunControl
from steadyrun.runtime.agent.starter import NEW_CONVERSATION, RunStarter, write_cut
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.log import log_event
from steadyrun.runtime.process_pool import ProcessPool
from steadyrun.runtime.prompt.builder import Turns
from steadyrun.runtime.recovery import AbandonedProcess
from steadyrun.runtime.run.active_run import ActiveRun, StopRequest
from steadyrun.runtime.run.retry import RetryDecision, build_metadata, is_new_conversation
from steadyrun.runtime.run.timeouts import Timeouts
from steadyrun.store import Started


class WorkerSetup(NamedTuple):
    """How a worker builds turns, which pool keeps its process (without a pool the process ends with
    the item), and whether it waits for a store that cannot be written."""

    turns: Turns
    pool: ProcessPool | None
    waits_for_store: bool = True


class AgentWorker:
    """Runs the items of one lane. Dispatcher and DirectRuns make it and call `work`.

        idle -> starting      `begin` (an item was claimed) or `adopt` (a holder is gone)
        starting -> running   `work` sends the turn; or the turn was sent or begun before
        running -> starting   the process is lost before the turn, or the item is retried
        running -> settling   the end of the turn is recorded (`handle_update`), or the run is cut
        settling -> running   the process begins a turn by itself (`handle_update`)
        settling -> warm      the item is settled, the pool keeps the process
        settling -> closed    the item is settled, the process has ended
        warm -> starting      `begin`
        warm -> running       the process begins a turn by itself (`handle_update`)
        warm -> closed        `ProcessSlot.leave`: the pool closes it, or the process has exited
        any -> closed         the lease is lost, or `give_up`

    What happens is reported to the owner through `on_change`, the only call upwards.
    """

    def __init__(
        self,
        deps: Deps,
        agent: Agent,
        tasks: TaskGroup,
        setup: WorkerSetup,
        on_change: "Callable[[AgentWorker, WorkerChange], None]",
    ) -> None:
        report, waits_for_store = partial(on_change, self), setup.waits_for_store
        self.lane = AgentLane(deps, agent, report, waits_for_store=waits_for_store)
        self.slot = ProcessSlot(self.lane, tasks, self.handle_update)
        self.control = RunControl(self.lane, tasks)
        self._effects = EffectHandler(self.lane, self.control, setup.turns)
        self._starter = RunStarter(self.lane, self.slot, self.control, setup.turns, setup.pool)
        self._pool = setup.pool
        self._store, self._clock = deps.store, deps.clock

    @property
    def agent(self) -> Agent:
        return self.lane.agent

    @property
    def run(self) -> ActiveRun | None:
        return self.lane.run

    @property
    def is_held(self) -> bool:
        return self.lane.lease.is_held

    # -- an item

    def begin(self, started: Started) -> None:
        """Attach this item as the next one. The caller then calls `work`."""
        self.lane.agent, self.lane.retry = started.agent, None
        run = self.lane.make_run(started.claim, started.run.id)
        run.is_probe = started.is_probe
        run.load(started.run, self._clock)
        self.lane.attach(run)

    def adopt(
        self,
        lease: Lease,
        run: Run | None,
        abandoned: AbandonedProcess | None,
        *,
        credit: timedelta = timedelta(),
    ) -> None:
        """Take over what an earlier holder has left: an item, then `work` is to be called, or only
        a process that waits. `credit` is time without a holder, which does not count."""
        lane = self.lane
        lane.lease.set(lease)
        if isinstance(lease, Claim) and run:
            active = lane.make_run(lease, run.id, is_adopted=True)
            active.load(run, self._clock, credit=credit)
            lane.retry = NEW_CONVERSATION if is_new_conversation(run) else None
            active.load_cancel_request()
            active.is_begun = lease.item.kind == "self" or lease.item.delivery == "own_turn"
            lane.attach(active)
        if abandoned:
            request = abandoned.request
            process = self.slot.follow(abandoned.process, request.rights, abandoned.snapshot)
            is_same = abandoned.process.provider == lane.agent.provider
            process.adopted_turn = request.turn if self.is_held and is_same else None
            if lane.run:
                self.control.bind(lane.run, process)

    async def work(self) -> None:
        """Run the item to its end, and every turn that the process begins by itself."""
        run = self._require_run()
        if not run.is_begun:
            await self._starter.send(self._require_run())
        else:
            await self.control.resume_stop(run)
        await self._finish()

    def _require_run(self) -> ActiveRun:
        assert self.lane.run
        return self.lane.run

    # -- settling

    async def _finish(self) -> None:
        """Wait for the end of what runs and of what follows by itself; then settle."""
        while True:
            if self.slot.process:
                await wait_until_idle(self.lane, self.slot.process, self.lane.deps.timeouts)
            run = self._require_run()
            if not run.is_over:
                run.end_by(Orphaned(self._clock.now()))
            retry = await self._decide_retry(run)
            if retry is not None and await self._retry(run, retry):
                await self._starter.send(self._require_run())
            elif await (
                self._settle_warm(run) if self._can_stay_warm() else self._settle_and_close(run)
            ):
                return

    def _can_stay_warm(self) -> bool:
        """Whether the process is kept; not with an open offer, whose outcome is unknown."""
        process = self.slot.process
        if process is None or not process.is_usable or process.offers.open:
            return False
        return self._pool is not None and self._pool.may_keep(self.slot)

    async def _decide_retry(self, run: ActiveRun) -> RetryDecision | None:
        await write_cut(self.lane, run)
        found = await self.lane.outage.write(partial(self._store.run, run.id), "settle")
        was_sent = found.started_at is not None if run.was_sent is None else run.was_sent
        return await find_retry(self.lane, found, was_sent=was_sent or run.is_begun)

    async def _retry(self, run: ActiveRun, retry: RetryDecision) -> bool:
        """Make a new run of the item; False if the item was cancelled."""
        await self.slot.end()
        if not self.lane.stop:
            await anyio.sleep(retry.after_seconds)
        try:
            again = partial(self._store.retry, run.claim, spends=retry.spends)
            claim = await self.lane.outage.write(again, "start")
        except ChangeRefused:
            return False
        self.lane.retry = retry
        found = await self._effects.create_run(claim, build_metadata(retry, claim.item.attempt))
        active = self.lane.make_run(claim, found.id)
        active.load(found, self._clock)
        self.lane.attach(active)
        return True

    async def _settle_warm(self, run: ActiveRun) -> bool:
        """Settle, and keep the process; False if it has begun another turn."""
        lane = self.lane
        async with lane.turn_lock:
            if lane.run is not run or not run.is_over:
                return False
            await self._settle(run, keep_warm=True)
            if lane.run is run:
                lane.release_run()
                self.slot.idle_since = self._clock.monotonic()
            return True

    async def _settle_and_close(self, run: ActiveRun) -> bool:
        """Let the process end, then settle; False if it has begun another turn."""
        process, lane = self.slot.process, self.lane
        if process and not process.is_gone:
            await process.close()
            if await self._wait_for_own_turn(process):
                return False
            await process.stop("shutdown")
        async with lane.turn_lock:
            if lane.run is not run or not run.is_over:
                return False
            await self.slot.end()
            await self._settle(run, keep_warm=False)
            lane.lease.is_held = False
        lane.detach()
        return True

    async def _settle(self, run: ActiveRun, *, keep_warm: bool) -> None:
        settle = partial(self._store.settle, run.claim, keep_warm=keep_warm)
        item = await self.lane.outage.write(settle, "settle")
        if not self.agent.is_direct:
            log_event("item.settled", agent=self.agent.name, item=item.id, status=item.status)

    async def _wait_for_own_turn(self, process: LiveProcess) -> bool:
        """Whether the process begins a turn by itself, in place of ending."""
        timeouts, run = self.lane.deps.timeouts, self.lane.run
        is_awaited = process.has_background and not self.lane.stop
        with anyio.move_on_after(
            (timeouts.idle_seconds if is_awaited else timeouts.close_seconds) or None
        ):
            while self.lane.run is run and not process.is_gone:
                await process.connection.wait_changed()
        return self.lane.run is not run

    async def give_up(self, ended: Finished) -> None:
        """End the run and the process in any state: following them has failed."""
        run, lane = self.lane.run, self.lane
        lease = lane.lease.current
        await self.slot.abandon()
        if run and self.is_held:
            await lane.outage.write(partial(self._store.settle, run.claim, ended), "settle")
        else:
            await lane.outage.write(partial(self._store.release_lane, lease), "settle")
        lane.lease.is_held = False
        lane.detach()

    async def stop(self, reason: StopReason) -> None:
        """Stop the run, and every run that would follow."""
        self.lane.stop = StopRequest(reason, None)
        if self.lane.run:
            await self.control.stop(self.lane.run, reason)

    # -- updates of the process

    async def handle_update(self, process: LiveProcess, update: ProcessUpdate) -> None:
        match update:
            case JournalBatch():
                await self._effects.handle(process, update)
            case Connected(driver):
                await self._effects.connect(process, driver)
                await self.lane.outage.write_notes(process.recorder)
                # The offers of an earlier holder are known now.
                self.lane.report(RunAttached())
            case Exited():
                await self._handle_exit(process)
            case _:
                assert_never(update)

    async def _handle_exit(self, process: LiveProcess) -> None:
        # A process whose end was requested is settled by the caller that has requested it.
        if self.slot.process is not process or self.is_held or process.is_closing:
            return
        try:
            await self.slot.leave()
        except LeaseLost:
            self.lane.detach()
        except Exception as error:  # noqa: BLE001 (one agent's failure must not stop the others)
            self.lane.report(LaneFailed(error))


async def set_aside(worker: AgentWorker, error: JournalPoisoned) -> None:
    """End the run and the process whose output ends its readers; its files are kept."""
    deps, process = worker.lane.deps, worker.slot.process
    if process:
        await deps.launcher.files.mark_aside(process.row.id, error.message)
        log_event("process.set_aside", agent=worker.agent.name, process=process.row.id)
    fact = ErrorFact(error.code, error.message, error.hint, retryable=True)
    await worker.give_up(Finished(deps.clock.now(), "failed", error=fact))


async def wait_until_idle(lane: AgentLane, process: LiveProcess, timeouts: Timeouts) -> None:
    """Wait until no turn is open, and no offer that could begin one.

    An offer that stays open too long is withdrawn; a turn has the timeouts of its run.
    """
    offers = process.offers
    # The offers of an earlier holder are known once the process is connected.
    await process.connection.wait_connected()
    while not process.is_gone:
        while not _is_over(lane) and not process.is_gone:
            await process.connection.wait_changed()
        if await _wait_for_turn(lane, process, timeouts.offer_seconds):
            continue
        if offers.open and not process.is_gone:
            await offers.withdraw_all()
            if await _wait_for_turn(lane, process, timeouts.interrupt_seconds):
                continue
        return


async def _wait_for_turn(lane: AgentLane, process: LiveProcess, limit: float) -> bool:
    """Whether an open offer begins a turn, before the limit and before all offers are settled."""
    with anyio.move_on_after(limit or None):
        while process.offers.open and _is_over(lane) and not process.is_gone:
            await process.connection.wait_changed()
    return not _is_over(lane) and not process.is_gone


def _is_over(lane: AgentLane) -> bool:
    return lane.run is None or lane.run.is_over
