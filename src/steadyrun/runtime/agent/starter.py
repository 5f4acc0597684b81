"""Sends the turn of a run to a process that fits, and launches one if there is none."""

from functools import partial

import anyio
from msgspec.structs import replace

from steadyrun.dialect import TurnEnded
from steadyrun.errors import ConversationBusy, LaunchFailed, LeaseLost, SteadyrunError, StoreFailed
from steadyrun.model.event import ErrorFact, Note
from steadyrun.model.gate import ProgramLaunched
from steadyrun.model.run import LAUNCH_FAILED, Finished
from steadyrun.runtime.agent.lane import AgentLane, RunAttached
from steadyrun.runtime.agent.process import LiveProcess
from steadyrun.runtime.agent.process_slot import ProcessSlot
from steadyrun.runtime.agent.run_control import RunControl
from steadyrun.runtime.process_pool import ProcessPool
from steadyrun.runtime.prompt.builder import TurnPlan, TurnRequest, Turns
from steadyrun.runtime.run.active_run import ActiveRun
from steadyrun.runtime.run.retry import RetryDecision

# How often a lasting agent looks whether its conversation is free.
BUSY_SECONDS = 0.5
NEW_CONVERSATION = RetryDecision(False, 0.0, is_fresh=True, one_shot=False, why="conversation")


async def write_cut(lane: AgentLane, run: ActiveRun) -> None:
    """Record the end of a run that its process has not reported."""
    if run.cut is not None:
        change = partial(lane.deps.store.change, run.claim, run.id, run.cut)
        await lane.outage.write(change, "settle")


class RunStarter:
    """Starts the runs of one lane. AgentWorker owns it."""

    def __init__(
        self,
        lane: AgentLane,
        slot: ProcessSlot,
        control: RunControl,
        turns: Turns,
        pool: ProcessPool | None,
    ) -> None:
        self._lane, self._slot, self._control = lane, slot, control
        self._turns, self._pool = turns, pool
        self._clock = lane.deps.clock

    async def send(self, run: ActiveRun) -> None:
        """Send the turn to a process, and to another one if that is lost before."""
        lane = self._lane
        while not run.is_over:
            present = self._slot.process
            if run.stop and not (present and present.adopted_turn):
                # The turn was sent to no process.
                run.end_by(run.conclude(TurnEnded("cancelled"), None, self._clock.now()))
                return
            try:
                plan = await self._plan(run)
                process = await self._find_or_launch(run, plan)
            except (LeaseLost, StoreFailed):
                raise
            except SteadyrunError as error:
                run.end_by(self._explain_failure(error))
                return
            lane.conversation.may_restart = plan.or_fresh
            await self._control.send_turn(run, process, plan.turn)
            if lane.conversation.is_missing:
                await self._restart_conversation(run, process)
            elif not run.is_over:
                await self._handle_lost_process(run, process)
            process.is_new = False

    def _explain_failure(self, error: SteadyrunError) -> Finished:
        """How a run ends whose turn was not sent. If the machine is the cause, the item of a
        lasting agent is not: it waits until the provider can be started."""
        fact = ErrorFact(error.code, error.message, error.hint, error.retryable)
        is_waiting = isinstance(error, LaunchFailed) and error.is_of_the_machine
        if not is_waiting or self._lane.agent.is_direct:
            return Finished(self._clock.now(), "failed", error=fact)
        fact = replace(fact, retryable=True)
        return Finished(self._clock.now(), "failed", LAUNCH_FAILED, error=fact)

    async def _plan(self, run: ActiveRun) -> TurnPlan:
        """What is sent, and to which process. The process that the plan is made for may exit while
        it is made: then another plan is needed."""
        while True:
            present = self._slot.describe()
            request = TurnRequest(self._lane.agent, run.claim, run.id, present, self._lane.retry)
            plan = await self._lane.outage.write(partial(self._turns.build, request), "start")
            if self._slot.describe() == present:
                return plan

    async def _find_or_launch(self, run: ActiveRun, plan: TurnPlan) -> LiveProcess:
        process, present = self._slot.process, self._slot.describe()
        if process and (present.adopted_turn or (plan.seal and plan.seal == present.seal)):
            process.adopted_turn = None
            return process
        await self._slot.end()
        if self._pool:
            await self._pool.make_room(self._slot)
        process = await self._launch(run, plan)
        if run.is_probe:
            await self._confirm_launch(run, process)
        self._lane.outage.notes += map(Note, plan.notes)
        return process

    async def _launch(self, run: ActiveRun, plan: TurnPlan) -> LiveProcess:
        """Launch a process. A lasting agent waits for a direct run that works in its
        conversation."""
        while True:
            try:
                return await self._slot.launch(plan)
            except ConversationBusy:
                if self._lane.agent.is_direct or run.stop:
                    raise
            await anyio.sleep(BUSY_SECONDS)

    async def _confirm_launch(self, run: ActiveRun, process: LiveProcess) -> None:
        """A gate that failed launches have closed need not wait for the answer of the provider."""
        store, row = self._lane.deps.store, process.row
        report = ProgramLaunched(run.id, row.opened_at)
        update = partial(store.update_gate, row.provider, report, account=row.account)
        await self._lane.outage.write(update, "start")

    async def _restart_conversation(self, run: ActiveRun, process: LiveProcess) -> None:
        """The conversation does not exist any more, and a new one may take its place."""
        self._lane.retry = NEW_CONVERSATION
        note = Note("the conversation to resume does not exist: a new one begins")
        await process.connection.note(note)
        await process.end(self._lane.deps.timeouts.close_seconds)
        await process.offers.give_up("the conversation does not exist")
        await self._slot.end()
        self._lane.conversation.is_missing = run.is_over = False
        self._lane.report(RunAttached())

    async def _handle_lost_process(self, run: ActiveRun, process: LiveProcess) -> None:
        """The process is gone, and the run has not ended."""
        now = self._clock.now()
        if run.stop:
            was_sent = bool(run.was_sent)
            run.end_by(run.conclude(TurnEnded("cancelled"), None, now, was_sent=was_sent))
        elif process.is_new or run.was_sent:
            error = ErrorFact("exited", "the process ended before the turn began", retryable=True)
            run.end_by(run.conclude(TurnEnded("failed", error=error), None, now))
        # First: a process that is closed without a change of its run has done nothing.
        await write_cut(self._lane, run)
        await self._slot.end()
