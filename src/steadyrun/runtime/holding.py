"""Which lanes does this process hold, and who runs them? One runner for each."""

import contextlib

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import KeeperGone, LeaseLost
from steadyrun.model.agent import Agent
from steadyrun.model.ids import RunId
from steadyrun.model.item import Claim, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Orphaned
from steadyrun.runtime.around import Ask, Surroundings
from steadyrun.runtime.runner import Runner
from steadyrun.store import Lost


class Holding:
    """The runs this process drives, each in a task of its own."""

    def __init__(self, around: Surroundings, tasks: TaskGroup) -> None:
        self.around = around
        self._tasks = tasks
        self._runners: dict[RunId, Runner] = {}
        self._ended: dict[RunId, anyio.Event] = {}

    async def start(self, agent: Agent, run: RunId, prompt: str, ask: Ask) -> None:
        """Accept a message for a new agent, claim its lane and run it."""
        store = self.around.store
        await store.hire(agent, Message(agent.id, prompt, kind="call"))
        [claim] = await store.claim(self.around.holder, agent=agent.id)
        runner = Runner(self.around, claim, agent, run)
        await runner.create(ask)
        self._run(runner, ask)

    async def adopt(self) -> list[RunId]:
        """Take up every direct run whose holder is gone; lasting agents have their own people."""
        lost = await self.around.store.reap(self.around.holder, lasting=False)
        # Nobody here keeps a lane warm: each is held, for the item of its claim.
        return [await self._adopt(each, each.hold) for each in lost if isinstance(each.hold, Claim)]

    def runner(self, run: RunId) -> Runner | None:
        """Who drives the run, if this process does."""
        # A runner goes on with other runs: its process may begin turns of its own.
        return next((each for each in self._runners.values() if each.run == run), None)

    async def wait(self, run: RunId) -> None:
        """Wait until this process has nothing more to do for the run."""
        ended = self._ended.get(run)
        if ended:
            await ended.wait()

    async def _adopt(self, lost: Lost, claim: Claim) -> RunId:
        run = await self._run_of(claim, lost.agent)
        if lost.processes:
            self._run(Runner(self.around, claim, lost.agent, run), lost.processes[-1])
        else:
            await self.around.store.settle(claim, Orphaned(self.around.clock.now()))
        return run

    async def _run_of(self, claim: Claim, agent: Agent) -> RunId:
        """The item's run; its holder may have been killed before there was one."""
        around, run = self.around, claim.item.run
        if run is None:
            run, now = around.ids.run(), around.clock.now()
            created = Created(run, agent.id, claim.item.id, agent.provider, now, agent.model)
            await around.store.change(claim, run, created)
        return run

    def _run(self, runner: Runner, begin: Ask | Process) -> None:
        self._runners[runner.run] = runner
        self._ended[runner.run] = anyio.Event()
        self._tasks.start_soon(self._see_through, runner, begin)

    async def _see_through(self, runner: Runner, begin: Ask | Process) -> None:
        # Somebody else has the claim, or will find out what became of the process.
        with contextlib.suppress(LeaseLost, KeeperGone):
            await self._driven(runner, begin)

    async def _driven(self, runner: Runner, begin: Ask | Process) -> None:
        first = runner.run
        try:
            await (runner.adopt(begin) if isinstance(begin, Process) else runner.start(begin))
        finally:
            del self._runners[first]
            self._ended[first].set()
