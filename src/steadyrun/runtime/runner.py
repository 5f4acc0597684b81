"""How is one claimed item run? From launch, or from what an earlier holder left, to the settling.

Nobody else may write for the lane meanwhile; when the claim is lost, `LeaseLost` ends everything
here and the process goes on for its new driver.
"""

import math
from typing import TypeGuard

import anyio
from msgspec.structs import replace

from steadyrun.errors import AbilityMissing, KeeperGone, NotFound, SteadyrunError
from steadyrun.model.agent import Agent
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    Emitted,
    ErrorFact,
    Event,
    FollowupAbsorbed,
    FollowupReturned,
    Foreign,
    Note,
    ProviderRetrying,
    StallWarned,
)
from steadyrun.model.ids import ItemId, RunId
from steadyrun.model.item import Claim, Message
from steadyrun.model.process import Process
from steadyrun.model.run import STOPPED, Created, Finished, Orphaned, Run, StopReason
from steadyrun.provider import (
    RESUME_NOT_FOUND,
    Began,
    Driver,
    Ended,
    Heard,
    LaunchRequest,
    Stretch,
    Turn,
    Verdict,
)
from steadyrun.runtime.around import Ask, Surroundings
from steadyrun.runtime.clocks import Signs, next_alarm
from steadyrun.runtime.feed import Feed
from steadyrun.runtime.followups import Followups
from steadyrun.runtime.recorder import Recorder
from steadyrun.tasks import task_group

# How often the clocks are looked at.
_TICK_SECONDS = 0.5
_WALL = "wall_seconds"
_ALL = 1_000_000
# The events that ask something of us.
_ASKING = frozenset(
    {FollowupAbsorbed, FollowupReturned, ApprovalRequested, ApprovalResolved, ProviderRetrying}
)


_PLAIN = frozenset({Emitted})


def _is_asking(heard: Heard) -> TypeGuard[Emitted]:
    return type(heard) is Emitted and type(heard.event) in _ASKING


class Runner:
    """Runs the item of one claim, and what its process goes on with by itself."""

    def __init__(self, around: Surroundings, claim: Claim, agent: Agent, run: RunId) -> None:
        self.feed = Feed(around.scrubber)
        self.run = run
        self._around = around
        self._store, self._clock = around.store, around.clock
        self._claim, self._agent = claim, agent
        self._abilities = around.drivers.abilities(agent.provider)
        self._driver: Driver | None = None
        self._recorder: Recorder | None = None
        self._followups: Followups | None = None
        # What a person was asked, and when.
        self._approvals: dict[str, float] = {}
        self._stop: StopReason | None = None
        self._why: str | None = None
        # Why the turn before this one was to be stopped.
        self._missed: StopReason | None = None
        self._started_at = self._clock.monotonic()
        self._told_at: float | None = None
        # The provider has said that it will try again at this time.
        self._patient_until = 0.0
        self._limits = around.limits
        self._is_over = self._is_adopted = False
        # What to ask for instead if the conversation to resume is missing.
        self._fallback: Ask | None = None
        self._changed = anyio.Event()

    # -- from the beginning

    async def create(self, ask: Ask) -> None:
        """Write down that there will be a run: whoever has its name may ask for it."""
        agent = self._agent
        wall = ask.wall_seconds or self._around.drivers.wall_seconds(agent.provider)
        created = Created(
            self.run,
            agent.id,
            self._claim.item.id,
            agent.provider,
            self._clock.now(),
            agent.model,
            agent.policy.allowed_tools,
            {_WALL: wall} if wall else {},
        )
        await self._store.change(self._claim, self.run, created)

    async def start(self, ask: Ask) -> Run:
        """Launch a process for the item, drive it to the end of the run and settle."""
        self._fallback = replace(ask, resume=None) if ask.resume and ask.or_fresh else None
        process = self._new_process()
        await self._store.open_process(self._claim, process)
        turn = Turn(self.run, self._claim.item.text, ask.images, ask.schema)
        try:
            await self._around.drivers.launch(process, self._request(turn, ask))
        except SteadyrunError as error:
            fact = ErrorFact(error.code, error.message, error.hint, error.retryable)
            return await self._settle(process, Finished(self._clock.now(), "failed", error=fact))
        return await self._drive_on(process, turn)

    def _new_process(self) -> Process:
        around, agent = self._around, self._agent
        process, now = around.ids.process(), self._clock.now()
        place = around.drivers.place(process)
        return Process(process, agent.id, agent.provider, around.machine, place, now)

    def _request(self, turn: Turn, ask: Ask) -> LaunchRequest:
        agent = self._agent
        return LaunchRequest(
            turn,
            agent.home,
            resume=ask.resume,
            model=agent.model,
            mode=agent.policy.mode,
            tools=agent.policy.allowed_tools,
            system=agent.system,
            max_turns=agent.max_turns,
            max_cost_usd=agent.policy.budget.run,
        )

    # -- from what is there

    async def adopt(self, process: Process) -> Run:
        """Go on with a process that an earlier holder has started, or was about to."""
        self._is_adopted = True
        try:
            turn = await self._around.drivers.told(process)
        except NotFound:
            return await self._settle(process, Orphaned(self._clock.now()))
        return await self._drive_on(process, turn)

    # -- driving

    async def _drive_on(self, process: Process, turn: Turn) -> Run:
        """Drive it to its end, from where the record is whenever its keeper was out of reach."""
        while True:
            try:
                return await self._drive(process, turn)
            except KeeperGone:
                await anyio.sleep(_TICK_SECONDS)
                process = await self._store.process(process.id)

    async def _drive(self, process: Process, turn: Turn) -> Run:
        around = self._around
        self._recorder = Recorder(
            self._store,
            self._claim,
            process,
            agent=self._agent,
            feed=self.feed,
            clock=self._clock,
        )
        async with around.drivers.drive(
            process, holder=around.holder, fence=self._claim.fence, sink=self._hear
        ) as driver:
            self._driver = driver
            self._followups = Followups(
                self._store, driver, self._recorder, abilities=self._abilities
            )
            await self._resume_record(self._recorder)
            await self._take_up()
            self._tell_change()
            async with task_group() as tasks:
                tasks.start_soon(self._recorder.serve)
                tasks.start_soon(self._see_through, turn)
                tasks.start_soon(self._watch_lane)
                tasks.start_soon(self._watch_clocks)
                await driver.follow()
                await self._recorder.flush()
                tasks.cancel_scope.cancel()
        if self._fallback and await self._is_unsaid():
            return await self._begin_anew(process, self._fallback)
        return await self._settle(process)

    async def _is_unsaid(self) -> bool:
        """The process ended its turn, and the run did not: it was not its conversation."""
        return self._is_over and not (await self._store.run(self.run)).is_terminal

    async def _begin_anew(self, process: Process, ask: Ask) -> Run:
        if self._stop:
            return await self._settle(process, self._judged(Ended("cancelled")))
        note = "the conversation to go on with is not there any more: a new one begins"
        await self._recording().note(Note(note))
        await self._store.close_process(self._claim, process.id)
        self._is_over = False
        return await self.start(ask)

    async def _resume_record(self, recorder: Recorder) -> None:
        """Know which run is open; a process for one turn has it open from the start."""
        run = await self._store.run(self.run)
        session = await self._store.session(self._agent.id, self._agent.provider)
        recorder.token = session.current.token if session and session.current else None
        self._set_wall(run)
        self._is_over = run.is_terminal
        if run.status == "running":
            recorder.run = run.id
        elif run.status == "starting" and "multi_turn" not in self._abilities:
            await recorder.begin(run.id, (), recorder.offset)

    def _set_wall(self, run: Run) -> None:
        wall = run.metadata.get(_WALL)
        self._limits = replace(self._around.limits, wall=wall)
        passed = (self._clock.now() - run.created_at).total_seconds()
        self._started_at = self._clock.monotonic() - max(0.0, passed)

    async def _see_through(self, turn: Turn) -> None:
        """Tell the turn, wait for its end and for every offer's, then let the process go."""
        driver = self._driving()
        if self._stop:
            await self._end_turn(self._stop)
        elif not self._is_over:
            # From here on a word is due; of whom we have taken over, only if we tell the turn.
            self._told_at = None if self._is_adopted else self._clock.monotonic()
            if await driver.begin(turn) or not self._is_adopted:
                self._told_at = self._clock.monotonic()
        await self._wait_until_done()
        await driver.close()
        while await self._begins_again():
            await self._wait_until_done()
        await driver.stop("shutdown")

    async def _begins_again(self) -> bool:
        """Whether it goes on with a turn of its own, in place of ending."""
        is_busy, limits = self._driving().has_background, self._limits
        with anyio.move_on_after((limits.idle if is_busy else limits.close) or None):
            while self._is_over:
                await self._changed.wait()
        return not self._is_over

    async def _wait_until_done(self) -> None:
        """No turn is open and no offer either; what stays open too long is called back."""
        while not self._is_over:
            await self._changed.wait()
        with anyio.move_on_after(self._limits.offer or None):
            while self._offers.open or not self._is_over:
                await self._changed.wait()
        await self._offers.recall()

    async def _settle(self, process: Process, change: Finished | Orphaned | None = None) -> Run:
        await self._store.close_process(self._claim, process.id)
        await self._store.settle(self._claim, change)
        self._is_over = True
        self._tell_change()
        self.feed.end()
        return await self._store.run(self.run)

    # -- hearing

    async def _hear(self, stretch: Stretch) -> None:
        is_plain = set(map(type, stretch.heard)) <= _PLAIN
        if is_plain:
            events: list[Emitted] = stretch.heard  # type: ignore[assignment]
            await self._recording().write(events, stretch.offset, has_more=stretch.has_more)
        else:
            await self._hear_turn(stretch)
        asking = [each for each in stretch.heard if _is_asking(each)]
        for heard in asking:
            await self._note(heard.event)
        if asking or not is_plain:
            self._tell_change()

    async def _hear_turn(self, stretch: Stretch) -> None:
        """Record one frame with a turn's beginning or end in it; events go where they belong."""
        recorder, events = self._recording(), list[Emitted]()
        begun: RunId | None = None
        for heard in stretch.heard:
            match heard:
                case Emitted():
                    events.append(heard)
                case Began():
                    # What its frame says before is of this turn, too: one frame, one commit.
                    begun = await self._begun(heard.input)
                case Ended() if self._falls_back(heard):
                    self._is_over = True
                case Ended():
                    await self._end(heard, begun, events, stretch)
                    events, begun = [], None
        if begun:
            await recorder.begin(begun, events, stretch.offset)
        else:
            await recorder.write(events, stretch.offset, has_more=stretch.has_more)

    def _falls_back(self, ended: Ended) -> bool:
        """Whether the conversation was not there, and a new one will do."""
        is_missing = ended.error is not None and ended.error.code == RESUME_NOT_FOUND
        return is_missing and self._fallback is not None

    async def _end(
        self, ended: Ended, begun: RunId | None, events: list[Emitted], stretch: Stretch
    ) -> None:
        recorder = self._recording()
        if begun:
            await recorder.begin(begun, (), recorder.offset)
        await recorder.end(self._judged(ended), events, stretch)
        self._is_over = True

    async def _begun(self, took: str | None) -> RunId:
        """The run of a turn that has begun. One that is not ours yet is for a follow-up that the
        CLI kept for later, or for nobody."""
        if not self._is_over:
            return self.run
        around, agent = self._around, self._agent
        offer = ItemId(took) if took in self._offers.open else None
        to = offer or Message(agent.id, "", kind="self")
        self._claim = await self._store.go_on(self._claim, to)
        self._recording().claim = self._claim
        self.run = around.ids.run()
        created = Created(
            self.run, agent.id, self._claim.item.id, agent.provider, self._clock.now(), agent.model
        )
        await self._store.change(self._claim, self.run, created)
        self._offers.open.discard(self._claim.item.id)
        self._missed, self._stop, self._why = self._stop, None, None
        self._started_at = self._clock.monotonic()
        self._is_over = False
        return self.run

    def _judged(self, ended: Ended) -> Finished:
        """A turn that was stopped and did not complete ended because it was stopped."""
        status, reason, error = ended.status, ended.stop_reason, ended.error
        if self._stop and status != "completed":
            status, reason = STOPPED[self._stop], self._stop
            error = ErrorFact("cancelled", self._why) if self._why else error
        elif status == "cancelled":
            # What was meant for the turn before may have come too late, and hit this one.
            reason = reason or self._missed
        return Finished(
            self._clock.now(),
            status,
            reason,
            text=ended.text,
            usage=ended.usage,
            cost=ended.cost,
            resume_token=self._recording().token,
            exit_code=ended.exit_code,
            error=error,
            diagnostic=ended.diagnostic,
        )

    async def _note(self, event: Event | Foreign) -> None:
        """Do what an event asks of us."""
        match event:
            case FollowupAbsorbed() | FollowupReturned():
                await self._recording().flush()
                await self._offers.note(event)
            case ApprovalRequested():
                self._approvals[event.approval] = self._clock.monotonic()
            case ApprovalResolved():
                self._approvals.pop(event.approval, None)
            case ProviderRetrying():
                self._patient_until = self._clock.monotonic() + (event.delay_ms or 0) / 1000
            case _:
                pass

    # -- stopping

    async def decide(self, approval: str, verdict: Verdict) -> None:
        """Answer what the provider has asked."""
        if verdict.input is not None and "change_input" not in self._abilities:
            raise AbilityMissing(self._agent.provider, "change_input", asked="input")
        while self._driver is None and not self._is_over:
            await self._changed.wait()
        if self._driver:
            await self._driver.decide(approval, verdict)

    async def cancel(self, why: str | None) -> None:
        """Somebody wants it to end. The wish is written down first: it outlives us."""
        if not self._stop and not self._is_over:
            self._why = why
            await self._store.cancel(self._claim.item.id)
            await self.stop("user_stop", why)

    async def stop(self, reason: StopReason, why: str | None = None) -> None:
        """End the turn: politely, then for good. Said again it changes nothing."""
        if self._stop or self._is_over:
            return
        self._stop, self._why = reason, why or self._why
        if self._driver:
            await self._end_turn(reason)

    async def _end_turn(self, reason: StopReason) -> None:
        driver = self._driving()
        await self._offers.recall()
        if await driver.interrupt():
            with anyio.move_on_after(self._limits.interrupt or None):
                while not self._is_over:
                    await self._changed.wait()
        if not self._is_over:
            await driver.stop(reason)

    async def _watch_lane(self) -> None:
        """Follow-ups and the wish to cancel come through the store, from whichever process."""
        with self._store.hints.watch(self._agent.id, of_events=False) as watch:
            await self._offers.offer_again()
            while True:
                await self._offers.take()
                self._tell_change()
                if (await self._store.item(self._claim.item.id)).cancel_requested:
                    await self.stop("user_stop")
                await watch.wait()

    async def _take_up(self) -> None:
        """Know what an earlier holder has left open, and what it was asked for."""
        if (await self._store.item(self._claim.item.id)).cancel_requested:
            self._stop = self._stop or "user_stop"
        await self._offers.take_up(self.run)
        for seen in await self._store.last_events(run=self.run, limit=_ALL):
            if isinstance(seen.event, ApprovalRequested | ApprovalResolved):
                await self._note(seen.event)

    async def _watch_clocks(self) -> None:
        warned_of: float | None = None
        while True:
            signs = self._signs(is_warned=warned_of == self._driving().heard_at)
            is_at_rest = self._is_over or self._stop
            alarm = None if is_at_rest else next_alarm(self._limits, signs)
            now = self._clock.monotonic()
            await self._deny_unanswered(now)
            if alarm is None or alarm.at > now:
                await anyio.sleep(_TICK_SECONDS)
            elif alarm.reason:
                await self.stop(alarm.reason)
            else:
                warned_of = signs.heard_at
                await self._recording().note(StallWarned(round((now - signs.heard_at) * 1000)))

    async def _deny_unanswered(self, now: float) -> None:
        limit = self._limits.approval or math.inf
        for approval, asked_at in list(self._approvals.items()):
            if now > asked_at + limit:
                await self.decide(approval, Verdict(False, "nobody answered in time"))

    def _signs(self, *, is_warned: bool) -> Signs:
        driver = self._driving()
        is_patient = self._clock.monotonic() < self._patient_until
        return Signs(
            self._started_at,
            self._told_at,
            driver.heard_at,
            driver.said_at,
            is_waiting=driver.has_open_tools
            or bool(self._approvals or self._offers.open)
            or is_patient,
            is_one_shot="multi_turn" not in self._abilities,
            is_warned=is_warned,
        )

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    @property
    def _offers(self) -> Followups:
        assert self._followups
        return self._followups

    def _driving(self) -> Driver:
        assert self._driver
        return self._driver

    def _recording(self) -> Recorder:
        assert self._recorder
        return self._recorder
