"""Who takes the next item? Claim, bridge, run, settle: many lanes at a time, one item in each.

The worker is the manner of every lasting agent's seat: it says what is told to whom, which process
may wait for more, and whether an item is run again.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.errors import HolderGone, LeaseLost, SteadyrunError, StoreFailed
from steadyrun.lib.notifier import FALLBACK_POLL_SECONDS, Hint, Waiter
from steadyrun.lib.signal import Signal
from steadyrun.model.agent import Agent, choose_provider
from steadyrun.model.event import ErrorFact, Event
from steadyrun.model.gate import find_closed_gate, find_next_change, find_unavailable_providers
from steadyrun.model.ids import AgentId, ProcessId, RunId
from steadyrun.model.item import Claim, Item, Message
from steadyrun.model.policy import compute_rights
from steadyrun.model.run import Created, Finished, Run
from steadyrun.runtime.agent.worker import AgentWorker
from steadyrun.runtime.agent.workers import AgentWorkers
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.log import log_bug, log_closed_gate, log_event
from steadyrun.runtime.prompt.builder import TurnBuilder, TurnPlan
from steadyrun.runtime.recovery import AbandonedProcess
from steadyrun.runtime.run.active_run import WALL, ActiveRun
from steadyrun.runtime.run.retry import (
    RetryDecision,
    carry_over,
    decide_retry,
    is_refused,
    with_corruption,
)
from steadyrun.runtime.slots import Slots
from steadyrun.store import AbandonedLane, Accepted, Start, Started

_TICK_SECONDS = 1.0
# How often gates are looked at when there is news.
_GATES_SECONDS = 1.0


class Capacity(Struct, frozen=True):
    """How much may there be at a time, and how long may it wait?

    `idle_seconds` of 0 is for ever. A process that has printed `journal_bytes` is not kept: whoever
    takes over would have to read them. What one has left is deleted after `keep_seconds`; 0: never.
    """

    runs: int = 5
    runs_of: Mapping[str, int] = {}
    processes: int = 5
    idle_seconds: float = 300.0
    journal_bytes: int = 64 * 1024 * 1024
    keep_seconds: float = 7 * 86400.0


class Dispatcher:
    """Runs the items of lasting agents, as many at a time as there is room for."""

    is_patient = True

    def __init__(
        self,
        around: Deps,
        tasks: TaskGroup,
        seats: AgentWorkers,
        room: Capacity,
        bridge: TurnBuilder,
    ) -> None:
        self.room = room
        self.slots = Slots(room.runs, room.runs_of)
        self.is_draining = False
        self._around, self._store, self._clock = around, around.store, around.clock
        self._tasks = tasks
        self._seats = seats
        # Also who drives no lasting agent is waited for.
        seats.on_leave = self.ring
        self._bridge = bridge
        self._bell: Waiter | None = None
        self._quiet = Signal()
        # One at a time: how much room there is is known again when what was started has its place.
        self._starting = asyncio.Lock()
        # What the record of an agent still has to say of itself, when it has a process again.
        self._untold: dict[AgentId, list[Event]] = {}
        # When the next gate opens, as far as we know; and when we have looked.
        self._opens_at: datetime | None = None
        self._looked_at = -math.inf

    # -- taking items in

    async def serve(self) -> None:
        """Take in what is ready and close what has waited long enough: run this in a task."""
        self._tasks.start_soon(self._close_idle)
        with self._store.hints.watch(None, Hint.WORK) as self._bell:
            while True:
                try:
                    await self._take_in()
                except StoreFailed as error:
                    log_event("store.failed", phase="start", code=error.code)
                await self._bell.wait(await self._patience())

    def ring(self) -> None:
        """There may be something to do."""
        if self._bell:
            self._bell.notify()
        self._quiet.notify()

    async def _take_in(self) -> None:
        while not self.is_draining and self.slots.free:
            async with self._starting:
                limit = 1 if self.room.runs_of else self.slots.free
                started = await self._start(limit)
            if len(started) < limit:
                return

    async def _start(self, limit: int) -> list[Started]:
        start = self._start_of(limit)
        started = await self._store.start(start.holder, start.opened, limit, but_not=start.but_not)
        for each in started:
            self._begin(each)
        return started

    async def accept(self, message: Message) -> Accepted:
        """Take a message in, and begin it in the same commit if there is room."""
        if not self.is_draining and self.slots.free:
            with suppress(HolderGone):
                return await self._accept_and_begin(message)
        return await self._store.accept(message)

    async def _accept_and_begin(self, message: Message) -> Accepted:
        async with self._starting:
            start = self._start_of(1) if self.slots.free else None
            accepted = await self._store.accept(message, start)
            if accepted.started:
                self._begin(accepted.started)
            return accepted

    def _start_of(self, limit: int) -> Start:
        # Made here: whoever starts them may be another thread.
        runs = iter([self._around.ids.new_run() for _ in range(limit)])
        now = self._clock.now()

        def opened(agent: Agent, item: Item) -> Created:
            return self._created(next(runs), agent, item, now)

        return Start(self._around.holder, opened, self.slots.full_providers)

    def _created(self, run: RunId, agent: Agent, item: Item, now: datetime) -> Created:
        wall = agent.wall_seconds or self._around.drivers.find_wall_seconds(agent.provider)
        metadata = {**item.payload.metadata, **({WALL: wall} if wall else {})}
        tools = compute_rights(agent.policy).tools
        return Created(run, agent.id, item.id, agent.provider, now, agent.model, tools, metadata)

    def _begin(self, started: Started) -> None:
        agent, claim = started.agent, started.claim
        seat = self._seats.of(agent.id)
        if seat is None or seat.hold.fence != claim.fence:
            # One that is about to leave has let go of the lane before.
            seat = self._seat(agent)
        seat.agent = agent
        seat.begin(started)
        self._see_to(seat, started.before)

    async def take(
        self, lost: AbandonedLane, left: Mapping[ProcessId, AbandonedProcess], credit: timedelta
    ) -> None:
        """Go on with what a holder that is gone has left of a lasting agent; `left` has its
        process, if there is one. So much of the time since does not count: `credit`."""
        agent, hold = lost.agent, lost.hold
        log_event("lane.reaped", agent=agent.name, fence=hold.fence)
        found = await self._found(lost, left)
        if isinstance(hold, Claim):
            run = lost.run or await self._run_of(hold, agent)
            seat = self._seat(agent.with_provider(run.provider))
            seat.take_up(hold, run, found, credit=credit)
            self._seats.know_probe(seat)
            self._see_to(seat)
        elif found:
            self._seat(agent.with_provider(found.process.provider)).take_up(hold, None, found)
        else:
            await self._store.release_lane(hold)

    async def _found(
        self, lost: AbandonedLane, left: Mapping[ProcessId, AbandonedProcess]
    ) -> AbandonedProcess | None:
        """The process that was left, if it ever was started."""
        found = None
        for process in lost.processes:
            if process.id in left:
                log_event("process.adopted", agent=lost.agent.name, process=process.id)
                found = left[process.id]
            else:
                await self._store.close_process(lost.hold, process.id)
        return found

    async def _run_of(self, claim: Claim, agent: Agent) -> Run:
        """Its holder was killed before there was one; what is tried again stays where it was."""
        run, now = self._around.ids.new_run(), self._clock.now()
        before = await self._store.run(claim.item.before) if claim.item.before else None
        agent = agent.with_provider(before.provider) if before else agent
        created = self._created(run, agent, claim.item, now)
        if before:
            created = replace(created, metadata={**created.metadata, **carry_over(before)})
        return await self._store.change(claim, run, created)

    def _seat(self, agent: Agent) -> AgentWorker:
        seat = AgentWorker(self._around, agent, self, self._tasks)
        seat.trouble.notes += self._untold.pop(agent.id, [])
        self._seats.add(seat)
        return seat

    # -- running them

    def _see_to(self, seat: AgentWorker, before: Run | None = None) -> None:
        self.slots.take(seat.agent.id, seat.agent.provider)
        self._tasks.start_soon(self._work, seat, before)

    async def _work(self, seat: AgentWorker, before: Run | None) -> None:
        agent = seat.agent
        runner = seat.runner
        assert runner
        log_event("run.started", agent=agent.name, run=runner.id, item=runner.claim.item.id)
        try:
            if before and (more := carry_over(before)):
                run, now = runner.id, self._clock.now()
                created = self._created(run, agent, runner.claim.item, now)
                created = replace(created, metadata=more)
                claim = runner.claim
                await seat.write(lambda: self._store.change(claim, run, created), "start")
            await seat.work()
        except LeaseLost as error:
            log_event("lease.lost", agent=agent.name, fence=error.fence)
            seat.leave_behind()
        except Exception as error:  # noqa: BLE001 (one agent's trouble is not that of the others)
            await self.broken(seat, error)
        finally:
            # The next item of the agent may have come already: then its run has the slot.
            if self._seats.of(agent.id) is not seat or not seat.is_held:
                self.slots.leave(agent.id)
            self.ring()

    async def broken(self, seat: AgentWorker, error: Exception) -> None:
        """End the run and its process, so that the agent can go on."""
        log_bug(error, agent=seat.agent.name)
        code = error.code if isinstance(error, SteadyrunError) else "internal"
        ended = Finished(
            self._clock.now(), "failed", error=ErrorFact(code, "steadyrun itself has failed")
        )
        try:
            await seat.give_up(ended)
        except Exception as failed:  # noqa: BLE001 (whatever it is, the others go on)
            log_bug(failed, agent=seat.agent.name)
            seat.leave_behind()

    # -- the manner of a seat

    async def order(
        self, seat: AgentWorker, runner: ActiveRun, *, again: RetryDecision | None
    ) -> TurnPlan:
        return await self._bridge.order(seat, runner, again=again)

    async def created(self, seat: AgentWorker, run: RunId, item: Item) -> Created:
        return self._created(run, seat.agent, item, self._clock.now())

    async def make_room(self, seat: AgentWorker) -> None:
        """Close whoever has waited longest, as long as there are too many."""
        while len(self._alive(but=seat)) >= self.room.processes:
            waiting = sorted(self._waiting(), key=lambda each: each.idle_since)
            if not waiting:
                return
            log_event("process.evicted", agent=waiting[0].agent.name)
            await self.close(waiting[0])

    def keeps(self, seat: AgentWorker) -> bool:
        live = seat.live
        if live is None or self.is_draining or not live.serves_many:
            return False
        if live.has_background:
            # Whoever closes it ends what it still does.
            return True
        is_small = live.recorder.offset < self.room.journal_bytes
        return is_small and len(self._alive(but=seat)) < self.room.processes

    async def again(self, seat: AgentWorker, run: Run, *, was_told: bool) -> RetryDecision | None:
        log_event("run.ended", agent=seat.agent.name, run=run.id, status=run.status)
        runner = seat.runner
        assert runner
        if run.status == "rate_limited":
            await self._limited(seat, run)
        item = await self._store.item(runner.claim.item.id)
        found = decide_retry(await self._suspected(run), item, was_told=was_told)
        if found:
            log_event("run.retried", agent=seat.agent.name, run=run.id, why=found.why)
        return found

    async def _limited(self, seat: AgentWorker, run: Run) -> None:
        """Its gate knows already. If nobody else of its chain can go on, the agent may not want to
        go on by itself."""
        self._opens_at, self._looked_at = None, -math.inf
        await log_closed_gate(self._store, self._clock, run.provider)
        if seat.agent.on_limited == "wait":
            return
        closed, _ = find_unavailable_providers(await self._store.gates(), self._clock.now())
        if choose_provider(seat.agent.providers, closed) is None:
            await seat.write(lambda: self._store.pause(seat.agent.id), "settle")

    async def _suspected(self, run: Run) -> Run:
        """The run, with what its predecessor tells of its end."""
        if not is_refused(run):
            return run
        before = await self._store.runs(run.agent, before=run.id, limit=1)
        return with_corruption(run, before[0] if before else None)

    def waits(self, seat: AgentWorker, *, for_a_person: bool) -> None:
        if for_a_person:
            self.slots.step_aside(seat.agent.id)
        else:
            self.slots.step_back(seat.agent.id)
        self.ring()

    def begun(self, seat: AgentWorker, *, was_held: bool) -> None:
        if not was_held:
            self._see_to(seat)
        self._tasks.start_soon(self._stop_unwanted, seat)

    def settled(self, seat: AgentWorker, item: Item) -> None:
        log_event("item.settled", agent=seat.agent.name, item=item.id, status=item.status)

    def left(self, seat: AgentWorker) -> None:
        self._seats.remove(seat)
        if seat.trouble.notes:
            self._untold[seat.agent.id], seat.trouble.notes = seat.trouble.notes, []

    async def _stop_unwanted(self, seat: AgentWorker) -> None:
        """A turn that nobody asked for is not for an agent that shall do nothing."""
        runner = seat.runner
        try:
            why = await self._unwanted(seat.agent, runner.id) if runner else None
            if runner and why:
                await runner.stop("policy", why)
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 (one agent's trouble is not that of the others)
            log_bug(error, agent=seat.agent.name)

    async def _unwanted(self, agent: Agent, run: RunId) -> str | None:
        if (await self._store.lane(agent.id)).is_paused:
            return "the agent is paused"
        account = (await self._store.run(run)).account
        gates = await self._store.gates(include_others=True)
        gates = [gate for gate in gates if gate.account == account]
        gate = find_closed_gate(gates, agent.provider, self._clock.now())
        is_closed = gate is not None and gate.is_closed and gate.probe != run
        return "its provider is closed" if is_closed else None

    def _alive(self, *, but: AgentWorker) -> list[AgentWorker]:
        return [each for each in self._seats if each.live and each is not but]

    def _waiting(self) -> Iterator[AgentWorker]:
        for seat in self._seats:
            if seat.live and seat.is_idle and not seat.live.has_background:
                yield seat

    # -- time

    async def _close_idle(self) -> None:
        while True:
            await anyio.sleep(_TICK_SECONDS)
            limit = self._clock.monotonic() - self.room.idle_seconds
            for seat in self._waiting() if self.room.idle_seconds else ():
                if seat.idle_since < limit:
                    self._tasks.start_soon(self.close, seat)

    async def close(self, seat: AgentWorker) -> None:
        """Close a process that waits."""
        try:
            await seat.leave()
        except LeaseLost as error:
            log_event("lease.lost", agent=seat.agent.name, fence=error.fence)
            seat.leave_behind()
        except Exception as error:  # noqa: BLE001 (one agent's trouble is not that of the others)
            await self.broken(seat, error)

    async def _look_at_gates(self) -> None:
        self._looked_at = self._clock.monotonic()
        self._opens_at = find_next_change(await self._store.gates(), self._clock.now())

    async def _patience(self) -> float:
        """How long to wait for news: gates open without any."""
        now = self._clock.now()
        if self._opens_at is None or self._opens_at <= now:
            wait = self._looked_at + _GATES_SECONDS - self._clock.monotonic()
            if wait > 0:
                return wait
            with suppress(StoreFailed):
                await self._look_at_gates()
        if self._opens_at is None:
            return FALLBACK_POLL_SECONDS
        left = (self._opens_at - now).total_seconds()
        return min(FALLBACK_POLL_SECONDS, max(0.0, left))

    # -- stopping

    async def drain(self, seconds: float) -> None:
        """Take nothing in any more, and wait for what runs."""
        self.is_draining = True
        with anyio.move_on_after(seconds):
            while self._held():
                await self._quiet.wait()

    async def stop_all(self) -> None:
        """End every run, which is queued again, and every process."""
        self.is_draining = True
        async with anyio.create_task_group() as tasks:
            for seat in self._held():
                tasks.start_soon(seat.stop, "shutdown")
        while self._held():
            await self._quiet.wait()
        await self.close_waiting()

    async def close_waiting(self) -> None:
        """Close every process that waits for its next item."""
        async with anyio.create_task_group() as tasks:
            for seat in self._seats:
                if seat.is_idle:
                    tasks.start_soon(self.close, seat)

    def _held(self) -> list[AgentWorker]:
        return [seat for seat in self._seats if seat.is_held]
