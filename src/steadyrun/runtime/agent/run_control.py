"""Sends the turn of a run to its process, stops it, and carries out its timeouts."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import assert_never

import anyio
from anyio.abc import TaskGroup

from steadyrun.dialect import Turn, Verdict
from steadyrun.errors import ChangeRefused, KeeperGone, LeaseLost, StoreFailed
from steadyrun.model.approval import BY_TIMEOUT, Approval, ApprovalAnswer, build_approval_id
from steadyrun.model.event import StallWarned
from steadyrun.model.run import Created, StopReason
from steadyrun.runtime.agent.lane import AgentLane
from steadyrun.runtime.agent.process import LiveProcess
from steadyrun.runtime.log import log_event
from steadyrun.runtime.run.active_run import ActiveRun, StopRequest
from steadyrun.runtime.run.timeouts import (
    DenyApproval,
    ProcessActivity,
    StopForTimeout,
    TimeoutAction,
    WarnOfStall,
)
from steadyrun.store import PendingRequests

DueAction = Callable[[], Awaitable[None]]


def is_early(run: ActiveRun | None, process: LiveProcess) -> bool:
    """Whether an open turn is not that of the run, as the run's own turn was not sent yet."""
    if run is None or run.is_begun or run.is_over:
        return False
    if "multi_turn" not in process.connection.abilities:
        return False
    return not process.connection.has_received(Turn(run.id, ""))


class RunControl:
    """Everything that is sent to the process of the current run. AgentWorker owns it.

    A run is bound to a process when its turn is about to be sent, or was begun there. A stop before
    that only sets `ActiveRun.stop`, and the turn is never sent.
    """

    def __init__(self, lane: AgentLane, tasks: TaskGroup) -> None:
        self._lane, self._tasks = lane, tasks
        self._store, self._clock = lane.deps.store, lane.deps.clock
        self._run: ActiveRun | None = None
        self._process: LiveProcess | None = None
        # The stop request was sent to the process.
        self._is_ending = False

    def bind(self, run: ActiveRun, process: LiveProcess) -> None:
        """The run uses this process from now on."""
        self._run, self._process, self._is_ending = run, process, False

    def _find_process(self, run: ActiveRun) -> LiveProcess | None:
        return self._process if self._run is run else None

    # -- the turn

    async def send_turn(self, run: ActiveRun, process: LiveProcess, turn: Turn) -> None:
        """Send the turn, and wait for its end or that of the process."""
        self.bind(run, process)
        connection = process.connection
        if run.stop:
            await self._end_turn(run, process)
        elif not run.is_over:
            was_sent = await connection.begin(
                turn, is_wanted=lambda: run.stop is None, on_attempt=run.timer.start_sending
            )
            run.timer.finish_sending(was_sent=was_sent)
        while not run.is_over and not connection.is_gone:
            await connection.wait_changed()
        run.was_sent = connection.has_received(turn)

    async def resume_stop(self, run: ActiveRun) -> None:
        """There is no turn to send; a stop request may be older than this holder's lease."""
        process = self._find_process(run)
        if run.stop and process and not run.is_over:
            await self._end_turn(run, process)

    # -- stopping

    async def cancel(self, why: str | None) -> None:
        """A user ends the run. The request is stored first, for a later holder."""
        run = self._lane.run
        if run and not run.stop and not run.is_over:
            await self._store.cancel(run.claim.item.id, why)
            await self.stop(run, "user_stop", why)

    async def stop(self, run: ActiveRun, reason: StopReason, why: str | None = None) -> None:
        """End the turn: by request first, then by ending the process. Only the first call has an
        effect."""
        if run.stop or run.is_over:
            return
        run.stop = StopRequest(reason, why)
        process = self._find_process(run)
        if process:
            await self._end_turn(run, process)

    def stop_soon(self, reason: StopReason, why: str) -> None:
        """Stop the current run in a background task, so that its output is still read."""
        if self._lane.run and not self._lane.run.stop:
            self._tasks.start_soon(self._stop_quietly, self._lane.run, reason, why)

    async def _stop_quietly(self, run: ActiveRun, reason: StopReason, why: str) -> None:
        # Another holder has the lane or the process, and records how the run ends.
        with suppress(LeaseLost, KeeperGone):
            await self.stop(run, reason, why)

    async def _end_turn(self, run: ActiveRun, process: LiveProcess) -> None:
        if self._is_ending or run.stop is None:
            return
        self._is_ending = True
        await self._store_request(run, run.stop)
        await process.offers.withdraw_all()
        connection = process.connection
        if await connection.send(lambda driver: driver.interrupt()):
            with anyio.move_on_after(self._lane.deps.timeouts.interrupt_seconds or None):
                while not run.is_over and not connection.is_gone:
                    await connection.wait_changed()
        if not run.is_over:
            reason = run.stop.reason
            await connection.send(lambda driver: driver.stop(reason))

    async def _store_request(self, run: ActiveRun, stop: StopRequest) -> None:
        """Record the request: if the turn ends before it is complete, this is its reason, also for
        a later holder. The request of a user is stored with the item.
        """
        if stop.reason == "user_stop":
            return
        claim, agent = run.claim, self._lane.agent
        created = Created(
            run.id, agent.id, claim.item.id, agent.provider, self._clock.now(),
            metadata=stop.to_metadata(),
        )  # fmt: skip
        try:
            await self._store.change(claim, run.id, created)
        except StoreFailed as error:
            # The run is stopped nevertheless.
            log_event("store.failed", phase="stop", code=error.code)

    # -- requests of others

    async def handle_requests(self, requests: PendingRequests, process: LiveProcess | None) -> None:
        """Carry out the requests of the store for the run, or for what was offered to it."""
        run = self._lane.run
        if run is None:
            return
        if run.claim.item.id in requests.cancelled and not run.stop:
            item = await self._store.item(run.claim.item.id)
            await self.stop(run, "user_stop", item.cancel_reason)
        if process is None:
            return
        for approval in requests.answers:
            await self._send_answer(run, approval)
        for offer in set(requests.cancelled) & process.offers.open.keys():
            await process.offers.withdraw(offer)
        if requests.has_steerable:
            self.offer_soon(process)

    async def _send_answer(self, run: ActiveRun, approval: Approval) -> None:
        """Send the provider the answer of a person; the driver sends it once."""
        process, answer = self._find_process(run), approval.answer
        if process is None or answer is None or process.row.id != approval.process:
            return
        verdict = Verdict(
            answer.is_allowed, answer.reason, answer.input, answer.ends_turn, answer.always
        )
        await process.connection.send(lambda driver: driver.decide(approval.name, verdict))

    def offer_soon(self, process: LiveProcess) -> None:
        """Send waiting follow-ups in a background task: a turn is open, or an item was queued."""
        self._tasks.start_soon(self._offer, process)

    async def _offer(self, process: LiveProcess) -> None:
        try:
            if is_early(self._lane.run, process):
                process.offers.postpone()
            else:
                await process.offers.send_waiting()
                process.connection.notify()
        except (LeaseLost, ChangeRefused, KeeperGone):
            # The run has ended, or belongs to another holder: the record has the outcome.
            return
        except StoreFailed as error:
            if not self._lane.outage.should_retry(error):
                raise

    # -- timeouts

    def find_due(self, now: float) -> list[DueAction]:
        """What is to be done because something has taken too long."""
        run = self._lane.run
        process = self._find_process(run) if run else None
        driver = process.connection.driver if process else None
        if run is None or process is None or driver is None or not run.timer.is_due(now):
            return []
        activity = ProcessActivity(
            driver.output_at,
            driver.input_at,
            is_one_shot="multi_turn" not in driver.abilities,
            is_busy=driver.has_open_tools or bool(process.offers.open),
        )
        is_stopping = run.is_over or run.stop is not None
        due = run.timer.find_due(now, activity, is_stopping=is_stopping)
        return [partial(self._perform, run, process, action) for action in due]

    async def _perform(self, run: ActiveRun, process: LiveProcess, action: TimeoutAction) -> None:
        match action:
            case DenyApproval(name):
                await self._deny(run, process, name)
            case StopForTimeout(reason, why):
                await self.stop(run, reason, why)
            case WarnOfStall(silent_ms):
                await process.connection.note(StallWarned(silent_ms))
            case _:
                assert_never(action)

    async def _deny(self, run: ActiveRun, process: LiveProcess, name: str) -> None:
        """Deny an approval that was not answered in time.

        An answer that is stored first counts instead.
        """
        answer = ApprovalAnswer(False, BY_TIMEOUT, self._clock.now(), "no answer came in time")
        try:
            await self._store.answer(build_approval_id(process.row.id, name), answer)
        except StoreFailed:
            run.timer.retry_denial(name)
            raise
