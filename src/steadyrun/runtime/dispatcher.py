"""Claims items of lasting agents and starts their workers: many lanes, one item in each."""

import asyncio
import math
from collections import defaultdict
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import assert_never

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from steadyrun.errors import HolderGone, JournalPoisoned, LeaseLost, SteadyrunError, StoreFailed
from steadyrun.lib.notifier import FALLBACK_POLL_SECONDS, Hint, Waiter
from steadyrun.model.agent import Agent
from steadyrun.model.event import ErrorFact, Event
from steadyrun.model.gate import find_closed_gate, find_next_change
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.item import Claim, Item, Message
from steadyrun.model.run import Created, Finished, Run
from steadyrun.runtime.agent.lane import (
    LaneFailed,
    LaneLeft,
    ProcessLaunched,
    RateLimited,
    RunAttached,
    TurnStarted,
    WaitChanged,
    WorkerChange,
)
from steadyrun.runtime.agent.worker import AgentWorker, WorkerSetup, set_aside
from steadyrun.runtime.agent.workers import AgentWorkers
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.log import log_bug, log_event
from steadyrun.runtime.process_pool import ProcessPool
from steadyrun.runtime.prompt.builder import TurnBuilder
from steadyrun.runtime.recovery import AbandonedProcesses, find_process
from steadyrun.runtime.run.retry import carry_over
from steadyrun.runtime.slots import Slots
from steadyrun.store import AbandonedLane, Accepted, Start, Started

# How often gates are read when something has changed.
_GATES_SECONDS = 1.0


class GateTimer:
    """When the next gate opens: gates open without any notification."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._opens_at: datetime | None = None
        self._read_at = -math.inf

    def reset(self) -> None:
        """A gate has changed: read them again."""
        self._opens_at, self._read_at = None, -math.inf

    async def wait_seconds(self) -> float:
        """How long to wait for a notification at most."""
        now = self._deps.clock.now()
        if self._opens_at is None or self._opens_at <= now:
            wait = self._read_at + _GATES_SECONDS - self._deps.clock.monotonic()
            if wait > 0:
                return wait
            with suppress(StoreFailed):
                await self._read()
        if self._opens_at is None:
            return FALLBACK_POLL_SECONDS
        seconds = (self._opens_at - now).total_seconds()
        return min(FALLBACK_POLL_SECONDS, max(0.0, seconds))

    async def _read(self) -> None:
        self._read_at = self._deps.clock.monotonic()
        self._opens_at = find_next_change(await self._deps.store.gates(), self._deps.clock.now())


class Dispatcher:
    """Runs the items of lasting agents, as many at a time as there are slots.

    The daemon owns it. It claims items (`serve`, `accept`), adopts lanes (`adopt`), starts a task
    for each run, and ends them all (`drain`, `stop_all`). Workers report to `handle_change`.
    Invariants: one claim at a time; each run has a slot from its start until its task ends; nothing
    is claimed while the pool is draining.
    """

    def __init__(
        self, deps: Deps, tasks: TaskGroup, workers: AgentWorkers, pool: ProcessPool, *, key: bytes
    ) -> None:
        self.slots = Slots(pool.capacity.runs, pool.capacity.runs_of)
        self._deps, self._store = deps, deps.store
        self._tasks, self._workers, self._pool = tasks, workers, pool
        self._turns = TurnBuilder(deps, key)
        self._setup = WorkerSetup(self._turns, pool)
        self._gates = GateTimer(deps)
        self._waiter: Waiter | None = None
        # One claim at a time: the number of free slots is right again when its runs have theirs.
        self._claiming = asyncio.Lock()
        # Notes for the records of agents that have no process at present.
        self._notes: dict[AgentId, list[Event]] = defaultdict(list)

    # -- claiming

    async def serve(self) -> None:
        """Claim what is ready: run this in a task."""
        self._tasks.start_soon(self._pool.serve, self._tasks)
        with self._store.hints.watch(None, Hint.WORK) as self._waiter:
            while True:
                try:
                    await self._claim_ready()
                except StoreFailed as error:
                    log_event("store.failed", phase="start", code=error.code)
                await self._waiter.wait(await self._gates.wait_seconds())

    def wake(self) -> None:
        """Look for ready items again, and whether all runs have ended."""
        if self._waiter:
            self._waiter.notify()
        self._workers.left.notify()

    async def _claim_ready(self) -> None:
        while not self._pool.is_draining and self.slots.free:
            async with self._claiming:
                limit = 1 if self._pool.capacity.runs_of else self.slots.free
                start = self._make_start(limit)
                started = await self._store.start(
                    start.holder, start.create_run, limit, excluded=start.excluded
                )
                for each in started:
                    self._begin(each)
            if len(started) < limit:
                return

    async def accept(self, message: Message) -> Accepted:
        """Accept a message, and start it in the same commit if there is a free slot."""
        if not self._pool.is_draining and self.slots.free:
            with suppress(HolderGone):
                return await self._accept_and_begin(message)
        return await self._store.accept(message)

    async def _accept_and_begin(self, message: Message) -> Accepted:
        async with self._claiming:
            start = self._make_start(1) if self.slots.free else None
            accepted = await self._store.accept(message, start)
            if accepted.started:
                self._begin(accepted.started)
            return accepted

    def _make_start(self, limit: int) -> Start:
        # Ids are made here: the store may call `create` in another thread.
        runs = iter([self._deps.ids.make_run() for _ in range(limit)])
        now = self._deps.clock.now()

        def create(agent: Agent, item: Item) -> Created:
            return self._turns.make_run(next(runs), agent, item, now)

        return Start(self._deps.holder, create, self.slots.full_providers)

    def _begin(self, started: Started) -> None:
        agent, claim = started.agent, started.claim
        worker = self._workers.find(agent.id)
        if worker is None or worker.lane.lease.current.fence != claim.fence:
            # A worker that is about to leave has released the lane before.
            worker = self._make_worker(agent)
        worker.begin(started)
        self._start_task(worker, started.before)

    # -- adopting

    async def adopt(
        self,
        lane: AbandonedLane,
        processes: AbandonedProcesses,
        credit: timedelta,
    ) -> None:
        """Continue the lane of a lasting agent whose holder is gone, and use its process if that
        is among `processes`. `credit` is time that does not count for the run."""
        agent, lease = lane.agent, lane.lease
        log_event("lane.reaped", agent=agent.name, fence=lease.fence)
        process = await find_process(self._store, lane, processes)
        self._notes[agent.id] += processes.list_notes(lane)
        if isinstance(lease, Claim):
            run = lane.run or await self._create_missing_run(lease, agent)
            worker = self._make_worker(agent.with_provider(run.provider))
            worker.adopt(lease, run, process, credit=credit)
            self._workers.mark_probe(worker)
            self._start_task(worker)
        elif process:
            provider = process.process.provider
            self._make_worker(agent.with_provider(provider)).adopt(lease, None, process)
        else:
            await self._store.release_lane(lease)

    async def _create_missing_run(self, claim: Claim, agent: Agent) -> Run:
        """The holder was killed before it had created the run. A retry stays with its provider."""
        run, now = self._deps.ids.make_run(), self._deps.clock.now()
        before = await self._store.run(claim.item.before) if claim.item.before else None
        agent = agent.with_provider(before.provider) if before else agent
        created = self._turns.make_run(run, agent, claim.item, now)
        if before:
            created = replace(created, metadata={**created.metadata, **carry_over(before)})
        return await self._store.change(claim, run, created)

    def _make_worker(self, agent: Agent) -> AgentWorker:
        worker = AgentWorker(self._deps, agent, self._tasks, self._setup, self.handle_change)
        worker.lane.outage.notes += self._notes.pop(agent.id, [])
        self._workers.add(worker)
        return worker

    # -- running

    def _start_task(self, worker: AgentWorker, before: Run | None = None) -> None:
        self.slots.take(worker.agent.id, worker.agent.provider)
        self._tasks.start_soon(self._work, worker, before)

    async def _work(self, worker: AgentWorker, before: Run | None) -> None:
        agent, run = worker.agent, worker.run
        assert run
        log_event("run.started", agent=agent.name, run=run.id, item=run.claim.item.id)
        try:
            if before and (carried := carry_over(before)):
                created = self._turns.make_run(
                    run.id, agent, run.claim.item, self._deps.clock.now()
                )
                change = replace(created, metadata=carried)
                write = partial(self._store.change, run.claim, run.id, change)
                await worker.lane.outage.write(write, "start")
            await worker.work()
        except LeaseLost as error:
            log_event("lease.lost", agent=agent.name, fence=error.fence)
            worker.lane.detach()
        except Exception as error:  # noqa: BLE001 (one agent's failure must not stop the others)
            await self._give_up(worker, error)
        finally:
            # The next item of the agent may have been claimed already: then its run has the slot.
            if self._workers.find(agent.id) is not worker or not worker.is_held:
                self.slots.leave(agent.id)
            self.wake()

    async def _give_up(self, worker: AgentWorker, error: Exception) -> None:
        """End the run and its process, so that the next item of the agent can run."""
        try:
            if isinstance(error, JournalPoisoned):
                await set_aside(worker, error)
                return
            log_bug(error, agent=worker.agent.name)
            code = error.code if isinstance(error, SteadyrunError) else "internal"
            reason = ErrorFact(code, "steadyrun itself has failed")
            await worker.give_up(Finished(self._deps.clock.now(), "failed", error=reason))
        except Exception as failed:  # noqa: BLE001 (one agent's failure must not stop the others)
            log_bug(failed, agent=worker.agent.name)
            worker.lane.detach()

    def handle_change(self, worker: AgentWorker, change: WorkerChange) -> None:
        """A worker reports what has happened in its lane."""
        agent = worker.agent
        match change:
            case WaitChanged(for_person):
                self.slots.set_waiting(agent.id, for_person)
                self.wake()
            case RunAttached():
                self._workers.recheck_requests(agent.id)
            case TurnStarted(was_held):
                self._handle_unprompted(worker, was_held)
            case RateLimited():
                self._gates.reset()
            case ProcessLaunched():
                pass
            case LaneLeft():
                self._workers.remove(worker)
                self._notes[agent.id] += worker.lane.outage.take_notes()
                self.wake()
            case LaneFailed(error):
                self._tasks.start_soon(self._give_up, worker, error)
            case _:
                assert_never(change)

    def _handle_unprompted(self, worker: AgentWorker, was_held: bool) -> None:
        if not was_held:
            self._start_task(worker)
        self._tasks.start_soon(self._stop_forbidden, worker)

    async def _stop_forbidden(self, worker: AgentWorker) -> None:
        """Stop an unprompted turn of an agent that is not allowed to work now."""
        run = worker.run
        try:
            why = await _explain_forbidden(self._deps, worker.agent, run.id) if run else None
            if run and why:
                await worker.control.stop(run, "policy", why)
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 (one agent's failure must not stop the others)
            log_bug(error, agent=worker.agent.name)

    # -- stopping

    async def drain(self, seconds: float) -> None:
        """Claim nothing more, and wait for what runs."""
        self._pool.is_draining = True
        with anyio.move_on_after(seconds):
            await self._wait_for_runs()

    async def stop_all(self) -> None:
        """Stop every run, which is queued again, and close every process."""
        self._pool.is_draining = True
        async with anyio.create_task_group() as tasks:
            for worker in self._workers:
                if worker.is_held:
                    tasks.start_soon(worker.stop, "shutdown")
        await self._wait_for_runs()
        await self._pool.close_all()

    async def _wait_for_runs(self) -> None:
        while any(worker.is_held for worker in self._workers):
            await self._workers.left.wait()


async def _explain_forbidden(deps: Deps, agent: Agent, run: RunId) -> str | None:
    if (await deps.store.lane(agent.id)).is_paused:
        return "the agent is paused"
    account = (await deps.store.run(run)).account
    gates = await deps.store.gates(include_others=True)
    gates = [gate for gate in gates if gate.account == account]
    gate = find_closed_gate(gates, agent.provider, deps.clock.now())
    is_closed = gate is not None and gate.is_closed and gate.probe != run
    return "its provider is closed" if is_closed else None
