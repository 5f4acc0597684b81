"""Tests that a gate keeps its rules for any news at any time, against a table of the rules.

Each row gives for a state and a piece of news what becomes of the gate. The rows are tried in their
order, the first that fits counts, and one always does.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from steadyrun.model.gate import (
    LONGEST,
    Booted,
    Closed,
    Dispatched,
    Gate,
    GateReport,
    GateRules,
    Limited,
    NotLaunched,
    Opened,
    ProgramLaunched,
    ProviderAnswered,
    RunInconclusive,
    Suspected,
    can_dispatch,
    step_gate,
)
from steadyrun.model.ids import RunId

START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = GateRules(timedelta(minutes=15), timedelta(hours=1), 2.0, attempts=4)
SECOND = timedelta(seconds=1)
EXAMPLES, STEPS = 250, 60
NO_LAUNCHES: dict[str, Any] = {
    "failed_launches": 0, "launch_failed_at": None, "is_closed_by_launch": False,
}  # fmt: skip


class At(NamedTuple):
    """A gate that gets one report at a time, in the words of the table."""

    gate: Gate
    news: Any
    now: datetime

    @property
    def is_over(self) -> bool:
        """Closed, and its time is over."""
        gate = self.gate
        return gate.is_closed and gate.until is not None and gate.until <= self.now

    @property
    def is_new(self) -> bool:
        """The run was let through after the gate had closed."""
        return self.gate.since is None or self.news.created_at >= self.gate.since

    @property
    def stated(self) -> datetime | None:
        stated = self.news.stated
        return stated if stated and self.now < stated <= self.now + LONGEST else None

    @property
    def hit(self) -> Gate:
        return replace(self.gate, hit_at=self.now, run=self.news.run)

    @property
    def is_news(self) -> bool:
        """The run was created after the last failed launch."""
        failed_at = self.gate.launch_failed_at
        return failed_at is None or self.news.created_at >= failed_at

    @property
    def unlaunched(self) -> Gate:
        """The gate after one more failed launch, without its effect."""
        return replace(
            self.hit, probe=self.without_probe, launch_failed_at=self.now,
            failed_launches=self.gate.failed_launches + 1,
        )  # fmt: skip

    @property
    def launch_wait(self) -> datetime:
        seconds: int = min(2 ** (self.gate.failed_launches + 1), 300)
        return self.now + seconds * SECOND

    def shut(self, level: int, reason: str) -> Gate:
        minutes = min(15 * 2**level, 60)
        until = self.stated or self.now + timedelta(minutes=minutes)
        why = reason if self.stated else f"{reason}, until no known time"
        return replace(
            self.hit, is_closed=True, until=until, is_stated=self.stated is not None,
            since=self.now, level=level, reason=why, **NO_LAUNCHES,
        )  # fmt: skip

    @property
    def without_probe(self) -> RunId | None:
        return None if self.gate.probe == self.news.run else self.gate.probe


class Row(NamedTuple):
    news: type
    fits: Callable[[At], bool]
    becomes: Callable[[At], Gate]


def _held_again(at: At) -> Gate:
    level = at.gate.level + 1
    why = f"{at.news.reason}, as {level} were before: open it by hand"
    return replace(
        at.hit, until=None, is_stated=False, since=at.now, level=level, reason=why,
        probe=at.without_probe, **NO_LAUNCHES,
    )  # fmt: skip


def _coalesced(at: At) -> Gate:
    until = at.stated
    if at.gate.is_stated and at.gate.until and until:
        until = max(until, at.gate.until)
    return replace(at.hit, until=until, is_stated=True, reason=at.news.reason)


def _booted(at: At) -> Gate:
    gate, now = at.gate, at.now
    if gate.until and gate.until > now + LONGEST:
        wait = timedelta(minutes=min(15 * 2**gate.level, 60))
        gate = replace(gate, until=now + wait, is_stated=False)
    if gate.suspect_until and gate.suspect_until > now + 60 * SECOND:
        gate = replace(gate, suspect_until=None)
    return replace(
        gate,
        probe=None if at.news.is_probe_over else gate.probe,
        since=min(gate.since, now) if gate.since else None,
        hit_at=min(gate.hit_at, now) if gate.hit_at else None,
        launch_failed_at=min(gate.launch_failed_at, now) if gate.launch_failed_at else None,
    )


def _suspect(at: At) -> Gate:
    delay = 5 * SECOND if at.news.delay is None else at.news.delay
    until = at.now + min(max(delay, 0 * SECOND), 60 * SECOND)
    reason = at.gate.reason if at.gate.is_closed else at.news.reason
    is_longer = at.gate.suspect_until is None or until > at.gate.suspect_until
    return replace(at.gate, suspect_until=until, reason=reason) if is_longer else at.gate


def _open(at: At) -> Gate:
    gate = at.gate
    return Gate("p", "mine", suspect_until=gate.suspect_until, hit_at=gate.hit_at, run=gate.run)


def _closed_by_launch(at: At) -> Gate:
    is_by_launch = not at.gate.is_closed or at.gate.is_closed_by_launch
    return replace(
        at.unlaunched, is_closed=True, until=at.launch_wait, is_stated=False, since=at.now,
        reason=at.news.reason, is_closed_by_launch=is_by_launch,
    )  # fmt: skip


def _suspect_by_launch(at: At) -> Gate:
    until = max(at.launch_wait, at.gate.suspect_until or at.launch_wait)
    return replace(at.unlaunched, suspect_until=until, reason=at.news.reason)


TABLE: tuple[Row, ...] = (
    # A failed launch is a suspicion first; the next ones close the gate for longer and longer.
    Row(NotLaunched, lambda at: not at.is_news,
        lambda at: replace(at.gate, probe=at.without_probe)),
    Row(NotLaunched, lambda at: not at.gate.is_closed and not at.gate.failed_launches,
        _suspect_by_launch),
    Row(NotLaunched, lambda at: not at.gate.is_closed, _closed_by_launch),
    Row(NotLaunched, lambda at: at.gate.until is not None and at.gate.until < at.launch_wait,
        _closed_by_launch),
    Row(NotLaunched, lambda _: True, lambda at: at.unlaunched),
    # A launch opens only what failed launches have closed.
    Row(ProgramLaunched, lambda at: not at.gate.failed_launches or not at.is_news,
        lambda at: at.gate),
    Row(ProgramLaunched, lambda at: at.gate.is_closed_by_launch, _open),
    Row(ProgramLaunched, lambda _: True, lambda at: replace(at.gate, **NO_LAUNCHES)),
    # A limit while the gate is open closes it, unless its time has come already.
    Row(Limited, lambda at: not at.gate.is_closed and at.news.stated is not None
        and at.news.created_at < at.news.stated <= at.now, lambda at: at.hit),
    Row(Limited, lambda at: not at.gate.is_closed, lambda at: at.shut(0, at.news.reason)),
    # One that was let through when the time was over counts; after so many a person decides.
    Row(Limited, lambda at: at.is_over and at.is_new and at.gate.level + 1 >= RULES.attempts,
        _held_again),
    Row(Limited, lambda at: at.is_over and at.is_new,
        lambda at: replace(at.shut(at.gate.level + 1, at.news.reason), probe=at.without_probe)),
    # All others are the same refusal; a stated time wins, and only a longer one over a stated one.
    Row(Limited, lambda at: at.gate.until is not None and at.stated is not None, _coalesced),
    Row(Limited, lambda _: True, lambda at: at.hit),
    # Only an answer to one that was let through opens it.
    Row(ProviderAnswered, lambda at: at.is_over and at.is_new, _open),
    Row(ProviderAnswered, lambda at: not at.gate.is_closed and at.is_news,
        lambda at: replace(at.gate, **NO_LAUNCHES)),
    Row(ProviderAnswered, lambda _: True, lambda at: at.gate),
    # One probe at a time.
    Row(Dispatched, lambda at: at.is_over and at.gate.probe is None,
        lambda at: replace(at.gate, probe=at.news.run)),
    Row(Dispatched, lambda _: True, lambda at: at.gate),
    Row(RunInconclusive, lambda at: at.gate.probe == at.news.run,
        lambda at: replace(at.gate, probe=None)),
    Row(RunInconclusive, lambda _: True, lambda at: at.gate),
    # A person decides; a suspicion is for moments.
    Row(Opened, lambda _: True, lambda at: replace(_open(at), suspect_until=None)),
    Row(Closed, lambda _: True, lambda at: replace(
        at.gate, is_closed=True, until=at.news.until, is_stated=True, since=at.now,
        reason=at.news.reason, probe=None, **NO_LAUNCHES)),
    Row(Suspected, lambda _: True, _suspect),
    Row(Booted, lambda _: True, _booted),
)  # fmt: skip

moments = st.sampled_from([0, 1, 59, 60, 899, 900, 1800, 3600, 86_400 * 7, 86_400 * 8])
runs = st.integers(0, 3)


class GateMachine(RuleBasedStateMachine):
    """One gate, and four runs that come and go."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.now = Gate("p", "mine"), START
        self.began = dict.fromkeys(range(4), START)

    @rule(seconds=moments)
    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @rule(seconds=moments)
    def set_the_clock_back(self, seconds: int) -> None:
        self.now = max(START, self.now - seconds * SECOND)

    @rule(run=runs)
    def begin(self, run: int) -> None:
        """As an engine does: only if the gate lets a run through, or if a turn begins by itself."""
        self.began[run] = self.now
        self._tell(Dispatched(self._id(run)))

    @rule(run=runs, ahead=st.none() | moments, is_before=st.booleans())
    def limit(self, run: int, ahead: int | None, is_before: bool) -> None:
        stated = None if ahead is None else self.now + ahead * SECOND * (-1 if is_before else 1)
        self._tell(Limited(self._id(run), self.began[run], stated, "limit"))

    @rule(run=runs)
    def answer(self, run: int) -> None:
        self._tell(ProviderAnswered(self._id(run), self.began[run]))

    @rule(run=runs)
    def end(self, run: int) -> None:
        self._tell(RunInconclusive(self._id(run)))

    @rule(run=runs)
    def fail_to_launch(self, run: int) -> None:
        self._tell(NotLaunched(self._id(run), self.began[run], "launch_failed"))

    @rule(run=runs)
    def launch(self, run: int) -> None:
        self._tell(ProgramLaunched(self._id(run), self.began[run]))

    @rule(delay=st.none() | moments)
    def suspect(self, delay: int | None) -> None:
        self._tell(Suspected(None if delay is None else delay * SECOND, "wait"))

    @rule(ahead=st.none() | moments)
    def close(self, ahead: int | None) -> None:
        self._tell(Closed(None if ahead is None else self.now + ahead * SECOND, "by hand"))

    @rule()
    def open(self) -> None:
        self._tell(Opened())

    @rule(is_over=st.booleans())
    def boot(self, is_over: bool) -> None:
        self._tell(Booted(is_over))

    def _tell(self, news: GateReport) -> None:
        before = self.gate
        self.gate = step_gate(before, news, self.now, RULES)
        at = At(before, news, self.now)
        row = next(row for row in TABLE if row.news is type(news) and row.fits(at))
        assert self.gate == row.becomes(at)
        self._check_level(before, news)
        type(self).steps += 1

    def _check_level(self, before: Gate, news: GateReport) -> None:
        if self.gate.level > before.level:
            assert self.gate.level == before.level + 1
            assert isinstance(news, Limited)
            assert before.since is None or news.created_at >= before.since
        if isinstance(news, Suspected):
            assert (self.gate.is_closed, self.gate.until) == (before.is_closed, before.until)

    @invariant()
    def one_predicate(self) -> None:
        gate, now = self.gate, self.now
        is_suspect = gate.suspect_until is not None and gate.suspect_until > now
        is_over = gate.until is not None and gate.until <= now
        may = not gate.is_closed or (is_over and gate.probe is None)
        assert can_dispatch(gate, now) == (may and not is_suspect)

    @invariant()
    def it_is_always_the_gate_of_the_same_account(self) -> None:
        assert (self.gate.provider, self.gate.account) == ("p", "mine")

    @invariant()
    def an_open_gate_has_nothing_left_over(self) -> None:
        gate = self.gate
        if not gate.is_closed:
            left = (gate.until, gate.is_stated, gate.since, gate.level, gate.probe)
            assert left == (None, False, None, 0, None)
            assert not gate.is_closed_by_launch

    def _id(self, run: int) -> RunId:
        return RunId(f"run_{run}")


def test_gate_follows_its_table_through_ten_thousand_steps() -> None:
    GateMachine.steps = 0
    limits = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)

    run_state_machine_as_test(GateMachine, settings=limits)

    assert GateMachine.steps >= 10_000
