"""Drives runs that belong to no lasting agent: each in a worker of its own, to its end."""

import contextlib
from typing import assert_never

import anyio
from anyio.abc import TaskGroup

from steadyrun.dialect import Turn
from steadyrun.errors import (
    ChangeRefused,
    ConversationBusy,
    JournalPoisoned,
    KeeperGone,
    LeaseLost,
    ProviderClosed,
)
from steadyrun.model.agent import Agent
from steadyrun.model.gate import find_closed_gate, find_opening_time
from steadyrun.model.ids import RunId
from steadyrun.model.item import Claim, Item, Message
from steadyrun.model.run import Created, Orphaned, Run
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
from steadyrun.runtime.log import log_bug
from steadyrun.runtime.prompt.builder import DirectTurns, build_created, with_wall
from steadyrun.runtime.recovery import AbandonedProcesses, find_abandoned, find_process
from steadyrun.runtime.run.options import RunOptions
from steadyrun.store import PAGE, AbandonedLane


class DirectRuns:
    """The direct runs of this process, each in a task of its own.

    In a daemon they share `workers` with lasting agents. A program that uses the library has
    workers for them alone: then an error of a run is raised in its task group.
    """

    def __init__(self, deps: Deps, tasks: TaskGroup, workers: AgentWorkers | None = None) -> None:
        self.deps = deps
        self._tasks = tasks
        self._workers = workers or AgentWorkers(deps)
        # Lasting agents work in the same process: a direct run must not disturb them, and may wait
        # for a store that cannot be written. A caller alone gets the error at once.
        self._is_in_daemon = workers is not None
        self._ended: dict[RunId, anyio.Event] = {}
        # The runs that are being started. The event is set when another holder could continue.
        self._starting: dict[RunId, anyio.Event] = {}
        if workers is None:
            tasks.start_soon(self._workers.serve)

    async def start(self, agent: Agent, run: RunId, prompt: str, options: RunOptions) -> None:
        """Accept a message for a new agent, claim its lane and run it: one step, or none.

        Returns when the process is launched or the run has ended. From then on the run is not lost
        when this process ends: the next holder continues it.
        """
        deps = self.deps
        await self._require_open(agent.provider)
        await self._require_free(agent, options.get("resume"))
        wall = options.get("timeout_seconds") or deps.launcher.find_wall_seconds(agent.provider)
        metadata = with_wall(options.get("metadata", {}), wall)

        def create(agent: Agent, item: Item) -> Created:
            return build_created(run, agent, item, deps.clock.now(), metadata)

        message = Message(agent.id, prompt, kind="call")
        try:
            started = await deps.store.start_direct(deps.holder, agent, message, create)
        except ChangeRefused:
            # The gate may have been closed in between.
            await self._require_open(agent.provider)
            raise
        worker = self._make_worker(agent, options)
        worker.begin(started)
        self._starting[run] = launched = anyio.Event()
        self._start_task(worker, run)
        # The run is in the store: a caller that is cancelled now must not leave it without process.
        with anyio.CancelScope(shield=True):
            await launched.wait()

    async def adopt_all(self) -> list[RunId]:
        """Adopt every direct run whose holder is gone; the daemon adopts lasting agents."""
        lanes = await self.deps.store.reap(self.deps.holder, lasting=False)
        processes = await find_abandoned(self.deps, lanes)
        # No direct run keeps a lane warm: each lease is the claim of an item.
        return [
            await self.adopt(each, each.lease, processes)
            for each in lanes
            if isinstance(each.lease, Claim)
        ]

    async def adopt(
        self, lane: AbandonedLane, claim: Claim, processes: AbandonedProcesses
    ) -> RunId:
        """Continue a direct run whose holder is gone, in its process if `processes` has it."""
        store, agent = self.deps.store, lane.agent
        run = lane.run or await self._create_missing_run(claim, agent)
        found = await find_process(store, lane, processes)
        if found:
            worker = self._make_worker(agent, found.request.turn)
            worker.adopt(claim, run, found)
            self._workers.mark_probe(worker)
            self._start_task(worker, run.id)
        else:
            await store.settle(claim, Orphaned(self.deps.clock.now()))
        return run.id

    def find_worker(self, run: RunId) -> AgentWorker | None:
        """The worker of a run, if this process drives it."""
        return self._workers.find_run(run)

    async def wait(self, run: RunId) -> None:
        """Wait until this process has nothing more to do for the run."""
        ended = self._ended.get(run)
        if ended:
            await ended.wait()

    async def _require_open(self, provider: str) -> None:
        now = self.deps.clock.now()
        gate = find_closed_gate(await self.deps.store.gates(), provider, now)
        if gate:
            raise ProviderClosed(provider, until=find_opening_time(gate, now), reason=gate.reason)

    async def _require_free(self, agent: Agent, token: str | None) -> None:
        """Refuse a conversation that another process began and still works in. The keepers refuse
        one that two processes resume."""
        store, provider = self.deps.store, agent.provider
        if token is None or not await store.sessions(provider=provider, token=token):
            return
        for owner in await store.agents():
            is_owned = await store.sessions(owner.id, provider=provider, token=token)
            if is_owned and (await store.lane(owner.id)).status in {"held", "warm"}:
                raise ConversationBusy(token)
        for run in await store.runs(limit=PAGE):
            if run.resume_token == token and run.provider == provider and not run.is_terminal:
                raise ConversationBusy(token)

    async def _create_missing_run(self, claim: Claim, agent: Agent) -> Run:
        """The holder was killed before it had created the run."""
        run = self.deps.ids.make_run()
        turns = DirectTurns(self.deps, {})
        created = await turns.create_run(run, agent, claim.item)
        return await self.deps.store.change(claim, run, created)

    def _make_worker(self, agent: Agent, asked: RunOptions | Turn) -> AgentWorker:
        turns, waits_for_store = DirectTurns(self.deps, asked), self._is_in_daemon
        setup = WorkerSetup(turns, None, waits_for_store=waits_for_store)
        return AgentWorker(self.deps, agent, self._tasks, setup, self.handle_change)

    def handle_change(self, worker: AgentWorker, change: WorkerChange) -> None:
        """A worker reports what has happened in its lane. Most of it concerns lasting agents only:
        a direct run has no slot, and its caller reads the record."""
        match change:
            case RunAttached():
                self._workers.recheck_requests(worker.agent.id)
            case ProcessLaunched():
                if worker.run:
                    self._end_start(worker.run.id)
            case LaneLeft():
                self._workers.remove(worker)
            case LaneFailed(error):
                raise error
            case WaitChanged() | TurnStarted() | RateLimited():
                pass
            case _:
                assert_never(change)

    def _start_task(self, worker: AgentWorker, run: RunId) -> None:
        self._workers.add(worker)
        self._ended[run] = anyio.Event()
        self._tasks.start_soon(self._work, worker, run)

    async def _work(self, worker: AgentWorker, run: RunId) -> None:
        try:
            # Another holder has the claim, or will read the outcome of the process.
            with contextlib.suppress(LeaseLost, KeeperGone):
                try:
                    await worker.work()
                except JournalPoisoned as error:
                    await set_aside(worker, error)
        except Exception as error:
            if not self._is_in_daemon:
                raise
            log_bug(error, run=run)
        finally:
            self._workers.remove(worker)
            self._ended[run].set()
            self._end_start(run)

    def _end_start(self, run: RunId) -> None:
        launched = self._starting.pop(run, None)
        if launched:
            launched.set()
