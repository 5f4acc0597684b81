"""How is one run seen through? What it was asked, how long it may take, and how it has ended."""

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial

import anyio
from msgspec.structs import replace

from steadyrun.dialect import Turn, TurnEnded, Verdict
from steadyrun.driver import Driver
from steadyrun.errors import StoreFailed
from steadyrun.model.agent import Agent
from steadyrun.model.approval import BY_TIMEOUT, Approval, ApprovalAnswer, build_approval_id
from steadyrun.model.budget import Budget
from steadyrun.model.event import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetReached,
    Emitted,
    ErrorFact,
    Event,
    Foreign,
    ProviderRetrying,
    StallWarned,
    UsageUpdated,
)
from steadyrun.model.ids import ApprovalId, RunId
from steadyrun.model.item import Claim, build_cancel_fact
from steadyrun.model.run import STOPPED, Created, Finished, Orphaned, Run, StopReason, Touched
from steadyrun.model.usage import Cost, Usage, add_costs, add_usage
from steadyrun.runtime.agent.process import LiveProcess
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.log import log_event
from steadyrun.runtime.run.budget import (
    BudgetMeter,
    budget_question,
    load_budget_meter,
    spent_of,
    why_reached,
)
from steadyrun.runtime.run.timeouts import Activity, asked_seconds, next_deadline, why_stopped

# Where a run keeps how long it may take, and why it is being stopped.
WALL, STOP = "wall_seconds", "stopping"

Deed = Callable[[], Awaitable[None]]


class ActiveRun:
    """One run, from its beginning or from where an earlier holder has left it."""

    def __init__(
        self, around: Deps, claim: Claim, agent: Agent, run: RunId, *, is_adopted: bool
    ) -> None:
        self.id = run
        self.claim = claim
        self.is_over = False
        # Whether its turn was told, by whomever; None: nobody has looked.
        self.was_told: bool | None = None
        self.is_adopted = is_adopted
        # Its turn has begun by itself: nobody is to tell it.
        self.is_begun = False
        # How it ends where no process could say so.
        self.cut: Finished | Orphaned | None = None
        # Its provider lets nobody else through before it is answered.
        self.is_probe = False
        # What a person was asked, and when; since when there is anything to be answered.
        self.approvals: dict[str, float] = {}
        self._asked_at = 0.0
        # Whether we have been there from the beginning, or know what was before.
        self._knows_all = not is_adopted
        # Why the turn before this one was to be stopped.
        self.missed: StopReason | None = None
        self._store, self._clock = around.store, around.clock
        self._limits, self._budgets = around.limits, around.budgets
        self._agent = agent
        self._live: LiveProcess | None = None
        self.stopped: StopReason | None = None
        self._why: str | None = None
        self._is_ending = False
        self._started_at = self._clock.monotonic()
        # What the provider has used in this run before its own turn.
        self._spent: tuple[Usage, Cost] | None = None
        # What its own turn has used and cost so far, as far as it was told.
        self._heard: UsageUpdated | None = None
        # Which limits it has reached.
        self._reached: list[BudgetReached] = []
        self._meter: BudgetMeter | None = None
        self._told_at: float | None = None
        # The provider has said that it will try again at this time.
        self._patient_until = 0.0
        self._warned_of: float | None = None
        self._denied: set[ApprovalId] = set()
        # When we last were asleep.
        self._awake_at = 0.0
        # Nothing can be due before: what is heard only makes it later.
        self._look_at = 0.0

    def know_wish(self) -> None:
        """Somebody may have wanted its end before we came: its claim says so, and why."""
        item = self.claim.item
        if item.cancel_requested:
            self.stopped, self._why = "user_stop", item.cancel_reason

    def know(self, run: Run, credit: timedelta | None = None) -> None:
        """Go by what the record says of it. `credit`: somebody else has begun it, and of the time
        since so much does not count. By our own clock we know better: the time of day may be
        set."""
        self.is_over = run.is_terminal
        # What it has reached is read from the record again.
        self._meter, self._reached = None, []
        if (run.usage, run.cost) != (Usage(), Cost()):
            self._spent = (run.usage, run.cost)
        self._know_stop(run.metadata.get(STOP))
        wall = run.metadata.get(WALL)
        self._limits = replace(self._limits, wall=wall)
        if credit is not None:
            passed = (self._clock.now() - run.created_at - credit).total_seconds()
            self._started_at = self._clock.monotonic() - max(0.0, passed)

    def _know_stop(self, wish: object) -> None:
        """Who was here before us may have begun to end it."""
        match wish:
            case {"reason": str(reason), "why": why} if reason in STOPPED and not self.stopped:
                self.stopped, self._why = reason, why if isinstance(why, str) else None
            case _:
                pass

    # -- seeing it through

    async def see_through(self, live: LiveProcess, turn: Turn) -> None:
        """Tell the turn, and wait for its end or that of the process."""
        self._live, self._is_ending = live, False
        if self.stopped:
            await self._end_turn(self.stopped)
        elif not self.is_over:
            await self._tell(live, turn)
        while not self.is_over and not live.is_gone:
            await live.changed()
        self.was_told = live.has_told(turn)

    async def _tell(self, live: LiveProcess, turn: Turn) -> None:
        async def begin(driver: Driver) -> bool:
            # From here on a word is due; of whom we have taken over, only if we tell the turn.
            self._told_at = None if self.is_adopted else self._clock.monotonic()
            self._look_at = 0.0
            return await driver.begin(turn, is_wanted=lambda: self.stopped is None)

        is_told = await live.say(begin)
        if is_told or not self.is_adopted:
            self._told_at = self._clock.monotonic()
            self._look_at = 0.0

    async def go_on(self) -> None:
        """Nothing is to be told; a wish to end it may be older than we are."""
        if self.stopped and self._live and not self.is_over:
            await self._end_turn(self.stopped)

    def sit_at(self, live: LiveProcess) -> None:
        """It goes on with this process."""
        self._live = live

    def go_on_from(self, live: LiveProcess, before: "ActiveRun | None") -> None:
        """Its turn has begun by itself, maybe after that of another run."""
        self._live, self.is_begun = live, True
        self.missed = before.stopped if before else None

    def end_by(self, change: Finished | Orphaned) -> None:
        """It has ended, and no process has said so."""
        self.cut, self.is_over = change, True

    def judged(self, ended: TurnEnded, token: str | None) -> Finished:
        """A turn that was stopped and did not complete ended because it was stopped."""
        status, reason, error = ended.status, ended.stop_reason, ended.error
        # Who was here before us may have stopped it for that.
        stopped = self.stopped or ("budget" if self.overspent else None)
        if stopped and status != "completed":
            status, reason = STOPPED[stopped], stopped
            error = self._fact(stopped) or error
        elif status == "cancelled":
            # What was meant for the turn before may have come too late, and hit this one.
            reason = reason or self.missed
        usage, cost = self._with_spent(ended)
        return Finished(
            self._clock.now(),
            status,
            reason,
            text=ended.text,
            usage=usage,
            cost=cost,
            resume_token=token,
            exit_code=ended.exit_code,
            error=error,
            diagnostic=ended.diagnostic,
        )

    def _fact(self, stopped: StopReason) -> ErrorFact | None:
        """Why it was stopped, in words."""
        if stopped in {"user_stop", "shutdown"}:
            return build_cancel_fact(self._why)
        if stopped != "budget":
            is_retryable = stopped != "policy"
            return ErrorFact(stopped, self._why, retryable=is_retryable) if self._why else None
        why = self._why or self.overspent or "its budget is spent"
        is_direct = self._agent.is_direct
        hint = "Allow more: --max-cost" if is_direct else "Its owner is asked: steadyrun approvals"
        return ErrorFact("max_cost", why, hint)

    def early(self, ended: TurnEnded) -> Touched:
        """A turn of the provider's own has ended before the run's: what it used is the run's."""
        usage, cost = self._with_spent(ended)
        self._spent, self._heard = (usage or Usage(), cost or Cost()), None
        return Touched(self._clock.now(), usage, cost)

    def _with_spent(self, ended: TurnEnded) -> tuple[Usage | None, Cost | None]:
        """Of a turn that was cut off nobody says what it has used in all: what was told before."""
        heard = self._heard
        if ended.usage is None and heard:
            return self._in_all(heard.usage, heard.cost)
        if self._spent is None:
            return ended.usage, ended.cost
        return self._in_all(ended.usage or Usage(), ended.cost or Cost())

    def _in_all(self, usage: Usage, cost: Cost) -> tuple[Usage, Cost]:
        if self._spent is None:
            return usage, cost
        before, paid = self._spent
        return add_usage(before, usage), add_costs(paid, cost)

    # -- what it spends

    async def spends(self, heard: UsageUpdated) -> list[BudgetReached]:
        """Its turn has used so much so far: what is to be told of its budget."""
        self._heard = heard
        return await self._metered(*self._in_all(heard.usage, heard.cost))

    async def has_spent(self, change: Finished | Touched) -> list[BudgetReached]:
        """As `spends`, of a turn that has ended; its change has what was used in all."""
        return await self._metered(change.usage or Usage(), change.cost or Cost())

    async def _metered(self, usage: Usage, cost: Cost) -> list[BudgetReached]:
        if self._agent.policy.budget == Budget():
            return []
        if self._meter is None:
            store, agent, rules = self._store, self._agent, self._budgets
            self._meter = await load_budget_meter(store, agent, self.id, rules, self._reached)
        reached = self._meter.hear(usage, cost)
        self._reached += reached
        return reached

    @property
    def overspent(self) -> str | None:
        """Why it may not go on, if it has spent all it may."""
        spent = spent_of(self._reached)
        return why_reached(spent[0]) if spent else None

    def question(self, change: Finished | Touched) -> tuple[ApprovalRequested, ...]:
        """What the owner of its agent is asked at its end. A run that was done in spite of its own
        limit does not keep the next one from work."""
        spent = spent_of(self._reached)
        if self._agent.is_direct or not isinstance(change, Finished) or not spent:
            return ()
        if change.stop_reason != "budget":
            spent = [each for each in spent if each.limit != "run"]
        return (budget_question(self.id, spent),) if spent else ()

    def note(self, event: Event | Foreign) -> None:
        """Remember what an event says of the time it may take."""
        match event:
            case ApprovalRequested(about="tool"):
                self._ask(event.approval)
            case ApprovalResolved():
                self._answer(event.approval)
            case BudgetReached():
                self._reached.append(event)
            case ProviderRetrying():
                self._patient_until = self._clock.monotonic() + (event.delay_ms or 0) / 1000
            case _:
                pass
        self._look_at = 0.0

    def recall(self, seen: Sequence[Emitted]) -> None:
        """Go by what the record says of questions to a person, and of the time they took."""
        if not self._knows_all:
            asked = asked_seconds(seen, self._clock.now())
            self._started_at = min(self._clock.monotonic(), self._started_at + asked)
            self._knows_all = True
        for each in seen:
            self.note(each.event)

    def _ask(self, approval: str) -> None:
        now = self._clock.monotonic()
        self._asked_at = self._asked_at if self.approvals else now
        self.approvals[approval] = now

    def _answer(self, approval: str) -> None:
        """The time that a person took is not the run's."""
        if self.approvals.pop(approval, None) is not None and not self.approvals:
            self._started_at += self._clock.monotonic() - self._asked_at

    # -- stopping

    async def pass_on(self, approval: Approval) -> None:
        """Tell the provider what it was answered. Said again it is not told again."""
        live, answer = self._live, approval.answer
        if live is None or answer is None or live.process.id != approval.process:
            return
        verdict = Verdict(
            answer.is_allowed, answer.reason, answer.input, answer.ends_turn, answer.always
        )
        await live.say(lambda driver: driver.decide(approval.name, verdict))

    async def _deny(self, approval: ApprovalId) -> None:
        """Nobody has answered in time; who answers at this very moment is heard."""
        answer = ApprovalAnswer(False, BY_TIMEOUT, self._clock.now(), "nobody answered in time")
        try:
            await self._store.answer(approval, answer)
        except StoreFailed:
            self._denied.discard(approval)
            raise

    async def cancel(self, why: str | None) -> None:
        """Somebody wants it to end. The wish is written down first: it outlives us."""
        if not self.stopped and not self.is_over:
            self._why = why
            await self._store.cancel(self.claim.item.id, why)
            await self.stop("user_stop", why)

    async def stop(self, reason: StopReason, why: str | None = None) -> None:
        """End the turn: politely, then for good. Said again it changes nothing."""
        if self.stopped or self.is_over:
            return
        self.stopped, self._why = reason, why or self._why
        if self._live:
            await self._end_turn(reason)

    async def _end_turn(self, reason: StopReason) -> None:
        live = self._live
        assert live
        if self._is_ending:
            return
        self._is_ending = True
        await self._write_down(reason)
        await live.offers.recall()
        if await live.say(lambda driver: driver.interrupt()):
            with anyio.move_on_after(self._limits.interrupt or None):
                while not self.is_over and not live.is_gone:
                    await live.changed()
        if not self.is_over:
            await live.say(lambda driver: driver.stop(reason))

    async def _write_down(self, reason: StopReason) -> None:
        """The wish outlives us: a turn that ends half-way ends for this reason, whoever hears it.
        That somebody wants it is written down already."""
        if reason == "user_stop":
            return
        item, now = self.claim.item.id, self._clock.now()
        wish = {STOP: {"reason": reason, "why": self._why}}
        agent = self._agent
        created = Created(self.id, agent.id, item, agent.provider, now, metadata=wish)
        try:
            await self._store.change(self.claim, self.id, created)
        except StoreFailed as error:
            # It ends all the same.
            log_event("store.failed", phase="stop", code=error.code)

    # -- clocks

    def due(self, now: float) -> Iterator[Deed]:
        """What is to be done by now because something has taken too long."""
        live = self._live
        driver = live.driver if live else None
        if live is None or driver is None or now < self._look_at:
            return
        limit = self._limits.approval or math.inf
        for name, asked_at in self.approvals.items():
            approval = build_approval_id(live.process.id, name)
            if now > asked_at + limit and approval not in self._denied:
                self._denied.add(approval)
                yield partial(self._deny, approval)
        alarm = (
            None
            if self.is_over or self.stopped
            else next_deadline(self._limits, self._signs(driver))
        )
        if alarm is None:
            return
        if alarm.at > now:
            # A person may answer at any time, and a tool end: then a clock begins to run.
            self._look_at = 0.0 if self._is_waiting(driver) else alarm.at
        elif alarm.reason:
            reason = alarm.reason
            why = why_stopped(reason, self._limits, now - driver.output_at)
            yield lambda: self.stop(reason, why)
        else:
            self._warned_of = driver.output_at
            silence = StallWarned(round((now - driver.output_at) * 1000))
            yield lambda: live.note(silence)

    def shift(self, seconds: float) -> None:
        """We were asleep so long: nobody else is to blame for that silence, nor for the time."""
        self._awake_at = self._clock.monotonic()
        self._started_at += seconds
        self._asked_at += seconds
        self.approvals = {name: at + seconds for name, at in self.approvals.items()}
        self._look_at = 0.0

    def _signs(self, driver: Driver) -> Activity:
        return Activity(
            self._started_at,
            self._told_at,
            driver.output_at,
            max(driver.input_at, self._awake_at),
            is_waiting=self._is_waiting(driver),
            is_asking=bool(self.approvals),
            is_one_shot="multi_turn" not in driver.abilities,
            is_warned=self._warned_of == driver.output_at,
        )

    def _is_waiting(self, driver: Driver) -> bool:
        is_patient = self._clock.monotonic() < self._patient_until
        has_offers = self._live is not None and bool(self._live.offers.open)
        return driver.has_open_tools or bool(self.approvals) or has_offers or is_patient
