"""How is a run driven that belongs to no lasting agent? In a seat of its own, to its end."""

import contextlib
from collections.abc import Mapping

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from steadyrun.dialect import Turn
from steadyrun.errors import ChangeRefused, KeeperGone, LeaseLost, NotFound, ProviderClosed
from steadyrun.model.agent import Agent
from steadyrun.model.gate import find_closed_gate, find_opening_time
from steadyrun.model.ids import ProcessId, RunId
from steadyrun.model.item import Claim, Item, Message
from steadyrun.model.policy import compute_rights
from steadyrun.model.run import Created, Orphaned, Run
from steadyrun.runtime.agent.worker import AgentWorker
from steadyrun.runtime.agent.workers import AgentWorkers
from steadyrun.runtime.deps import Deps, RunRequest
from steadyrun.runtime.log import log_bug, log_closed_gate
from steadyrun.runtime.prompt.builder import TurnPlan, build_direct, build_launch_request
from steadyrun.runtime.prompt.system import SystemPrompt
from steadyrun.runtime.recovery import AbandonedProcess, look_for
from steadyrun.runtime.run.active_run import WALL, ActiveRun
from steadyrun.runtime.run.retry import RetryDecision
from steadyrun.store import AbandonedLane


class DirectRuns:
    """The direct runs of this process, each in a task of its own."""

    def __init__(self, around: Deps, tasks: TaskGroup, seats: AgentWorkers | None = None) -> None:
        self.around = around
        self._tasks = tasks
        self._seats = seats or AgentWorkers(around)
        # Whether lasting agents work in the same process: they must not suffer.
        self.is_beside_others = seats is not None
        self._ended: dict[RunId, anyio.Event] = {}
        if seats is None:
            tasks.start_soon(self._seats.serve)

    async def start(self, agent: Agent, run: RunId, prompt: str, ask: RunRequest) -> None:
        """Accept a message for a new agent, claim its lane and run it: one step, or none."""
        store, around = self.around.store, self.around
        await self._require_open(agent.provider)
        wall = ask.wall_seconds or around.drivers.find_wall_seconds(agent.provider)
        metadata = {**ask.metadata, **({WALL: wall} if wall else {})}

        def opened(agent: Agent, item: Item) -> Created:
            tools, now = compute_rights(agent.policy).tools, around.clock.now()
            return Created(
                run, agent.id, item.id, agent.provider, now, agent.model, tools, metadata
            )

        message = Message(agent.id, prompt, kind="call")
        try:
            started = await store.start_direct(around.holder, agent, message, opened)
        except ChangeRefused:
            # The gate may have been closed since we looked.
            await self._require_open(agent.provider)
            raise
        seat = AgentWorker(around, agent, _Once(self, ask), self._tasks)
        seat.begin(started)
        self._run(seat, run)

    async def adopt(self) -> list[RunId]:
        """Take up every direct run whose holder is gone; lasting agents have their own people."""
        lost = await self.around.store.reap(self.around.holder, lasting=False)
        left = await look_for(self.around, lost)
        # Nobody here keeps a lane warm: each is held, for the item of its claim.
        return [
            await self.take(each, each.hold, left) for each in lost if isinstance(each.hold, Claim)
        ]

    async def take(
        self, lost: AbandonedLane, claim: Claim, left: Mapping[ProcessId, AbandonedProcess]
    ) -> RunId:
        """Go on with a direct run whose holder is gone; `left` has its process, if there is one."""
        store, agent = self.around.store, lost.agent
        run = lost.run or await self._run_of(claim, agent)
        process = lost.processes[-1] if lost.processes else None
        found = left.get(process.id) if process else None
        if found:
            seat = AgentWorker(self.around, agent, _Once(self, found.request.turn), self._tasks)
            seat.take_up(claim, run, found)
            self._seats.know_probe(seat)
            self._run(seat, run.id)
        else:
            if process:
                await store.close_process(claim, process.id)
            await store.settle(claim, Orphaned(self.around.clock.now()))
        return run.id

    def seat(self, run: RunId) -> AgentWorker | None:
        """Where the run goes on, if this process drives it."""
        return self._seats.running(run)

    async def wait(self, run: RunId) -> None:
        """Wait until this process has nothing more to do for the run."""
        ended = self._ended.get(run)
        if ended:
            await ended.wait()

    def left(self, seat: AgentWorker) -> None:
        self._seats.remove(seat)

    async def _require_open(self, provider: str) -> None:
        now = self.around.clock.now()
        gate = find_closed_gate(await self.around.store.gates(), provider, now)
        if gate:
            raise ProviderClosed(provider, until=find_opening_time(gate, now), reason=gate.reason)

    async def _run_of(self, claim: Claim, agent: Agent) -> Run:
        """Its holder was killed before there was one."""
        run = self.around.ids.new_run()
        created = await self.created(agent, run, claim.item)
        return await self.around.store.change(claim, run, created)

    async def created(self, agent: Agent, run: RunId, item: Item) -> Created:
        """A run that goes on where another has ended: it may take as long."""
        store, now, tools = (
            self.around.store,
            self.around.clock.now(),
            compute_rights(agent.policy).tools,
        )
        [before, *_] = await store.runs(agent.id, limit=1)
        wall = before.metadata.get(WALL)
        metadata = {WALL: wall} if wall else {}
        return Created(run, agent.id, item.id, agent.provider, now, agent.model, tools, metadata)

    def _run(self, seat: AgentWorker, run: RunId) -> None:
        self._seats.add(seat)
        self._ended[run] = anyio.Event()
        self._tasks.start_soon(self._see_through, seat, run)

    async def _see_through(self, seat: AgentWorker, run: RunId) -> None:
        try:
            # Somebody else has the claim, or will find out what became of the process.
            with contextlib.suppress(LeaseLost, KeeperGone):
                await seat.work()
        except Exception as error:
            if not self.is_beside_others:
                raise
            log_bug(error, run=run)
        finally:
            self._seats.remove(seat)
            self._ended[run].set()


class _Once:
    """One item, and the process ends with it."""

    def __init__(self, holding: DirectRuns, asked: RunRequest | Turn) -> None:
        """A turn is one that an earlier holder has told, or was about to."""
        self._holding = holding
        self._asked = asked

    @property
    def is_patient(self) -> bool:
        """Whoever waits for the run is told at once; a daemon has all the time there is."""
        return self._holding.is_beside_others

    async def order(
        self, seat: AgentWorker, runner: ActiveRun, *, again: RetryDecision | None
    ) -> TurnPlan:
        agent, item, asked = seat.agent, runner.claim.item, self._asked
        if isinstance(asked, Turn):
            if seat.live is None:
                raise NotFound("launch of", runner.id)
            return TurnPlan(asked, build_launch_request(agent, asked, None, SystemPrompt(None)))
        ask = replace(asked, resume=None) if again and again.is_fresh else asked
        return await build_direct(self._holding.around, agent, item, runner.id, ask)

    async def created(self, seat: AgentWorker, run: RunId, item: Item) -> Created:
        return await self._holding.created(seat.agent, run, item)

    async def make_room(self, seat: AgentWorker) -> None:
        """There always is."""

    def keeps(self, _: AgentWorker) -> bool:
        return False

    async def again(self, _: AgentWorker, run: Run, *, was_told: bool) -> RetryDecision | None:
        """Whoever has asked for it decides."""
        if run.status == "rate_limited":
            around = self._holding.around
            await log_closed_gate(around.store, around.clock, run.provider)
        return None

    def waits(self, seat: AgentWorker, *, for_a_person: bool) -> None:
        """Nobody else waits for it."""

    def begun(self, _: AgentWorker, *, was_held: bool) -> None:
        """Its lane is held to the end."""

    def settled(self, _: AgentWorker, __: Item) -> None:
        """Whoever waits for it reads the record."""

    async def broken(self, seat: AgentWorker, error: Exception) -> None:
        raise error

    def left(self, seat: AgentWorker) -> None:
        self._holding.left(seat)
