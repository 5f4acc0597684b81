"""Keeps the workers of this process, checks their timeouts and passes requests on to them.

One task checks all timeouts, and one reads the requests of users: a run costs nothing for them.
"""

from collections.abc import Iterator
from functools import partial

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import ChangeRefused, KeeperGone, LeaseLost, StoreFailed
from steadyrun.lib.notifier import Hint, Waiter
from steadyrun.lib.signal import Signal
from steadyrun.lib.task_group import task_group
from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.runtime.agent.run_control import DueAction
from steadyrun.runtime.agent.worker import AgentWorker
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.log import log_bug, log_event
from steadyrun.runtime.process_pool import ProcessPool
from steadyrun.store import PendingRequests

# How often timeouts are checked, and how late a check may be before the time is taken out.
_TICK_SECONDS = 0.5
_LATE_SECONDS = 1.0


class AgentWorkers:
    """All workers of this process, by agent."""

    def __init__(self, deps: Deps, pool: ProcessPool | None = None) -> None:
        self.pool = pool
        # Notified when a worker has left.
        self.left = Signal()
        # Runs of other holders that a gate waits for.
        self.probes: set[RunId] = set()
        self._deps = deps
        self._workers: dict[AgentId, AgentWorker] = {}
        # The agents with requests that could not be handled; None if requests were not read, as
        # there was no worker.
        self._unhandled: set[AgentId] | None = None
        self._waiter: Waiter | None = None

    def __iter__(self) -> Iterator[AgentWorker]:
        return iter(list(self._workers.values()))

    def add(self, worker: AgentWorker) -> None:
        self._workers[worker.agent.id] = worker
        if self.pool:
            self.pool.add(worker.slot)
        self.recheck_requests(worker.agent.id)

    def remove(self, worker: AgentWorker) -> None:
        if self.pool:
            self.pool.remove(worker.slot)
        if self._workers.get(worker.agent.id) is worker:
            del self._workers[worker.agent.id]
            self.left.notify()

    def find(self, agent: AgentId) -> AgentWorker | None:
        return self._workers.get(agent)

    def find_run(self, run: RunId) -> AgentWorker | None:
        """The worker that runs it."""
        return next((each for each in self if each.run and each.run.id == run), None)

    def mark_probe(self, worker: AgentWorker) -> None:
        """Another holder has started this run, and a gate may wait for it."""
        if worker.run:
            worker.run.is_probe = worker.run.id in self.probes

    def recheck_requests(self, agent: AgentId) -> None:
        """Read requests again that came before the worker could handle them: a lane belongs to this
        holder before its run is attached."""
        if self._waiter and (self._unhandled is None or agent in self._unhandled):
            self._waiter.notify()

    async def serve(self) -> None:
        """Check timeouts and read requests: run this in a task."""
        async with task_group() as tasks:
            tasks.start_soon(self._check_timeouts, tasks)
            tasks.start_soon(self._read_requests, tasks)

    async def _check_timeouts(self, tasks: TaskGroup) -> None:
        # Lateness is measured by the clock that the sleep uses.
        last = anyio.current_time()
        while True:
            await anyio.sleep(_TICK_SECONDS)
            late, last = anyio.current_time() - last - _TICK_SECONDS, anyio.current_time()
            now = self._deps.clock.monotonic()
            for worker in self:
                if worker.run and late > _LATE_SECONDS:
                    worker.run.timer.add_downtime(late)
                for action in worker.control.find_due(now):
                    tasks.start_soon(_perform, worker, action)

    async def _read_requests(self, tasks: TaskGroup) -> None:
        with self._deps.store.hints.watch(None, Hint.WORK) as self._waiter:
            while True:
                self._unhandled = await self._handle_requests(tasks)
                await self._waiter.wait()

    async def _handle_requests(self, tasks: TaskGroup) -> set[AgentId] | None:
        if not self._workers:
            return None
        try:
            pending = await self._deps.store.pending_requests(self._deps.holder)
        except StoreFailed as error:
            # Nothing is lost: requests stay in the store until they are handled.
            log_event("store.failed", phase="calls", code=error.code)
            return None
        for each in pending:
            worker = self._workers.get(each.agent)
            if worker:
                handle = partial(worker.control.handle_requests, each, worker.slot.process)
                tasks.start_soon(_perform, worker, handle)
        return {each.agent for each in pending if not self._can_handle(each)}

    def _can_handle(self, requests: PendingRequests) -> bool:
        """Whether every cancelled item can be stopped now, and every answer be sent."""
        worker = self._workers.get(requests.agent)
        run = worker.run if worker else None
        if worker is None or run is None or run.is_over:
            return False
        process = worker.slot.process
        if requests.answers and process is None:
            return False
        offered = process.offers.open.keys() if process else set[ItemId]()
        return offered | {run.claim.item.id} >= set(requests.cancelled)


async def _perform(worker: AgentWorker, action: DueAction) -> None:
    try:
        await action()
    except (LeaseLost, KeeperGone, ChangeRefused):
        # The lane belongs to another holder, or the run is over: the record has the outcome.
        return
    except Exception as error:  # noqa: BLE001 (one agent's failure must not stop the others)
        log_bug(error, agent=worker.agent.name)
