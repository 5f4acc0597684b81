"""Decides whether runs may be dispatched to a provider: a state machine without a clock.

A gate is open, closed until a time, or closed until a user opens it. When its time has passed it is
ready: one run, the probe, may start, and no other until the probe shows whether the provider works.
A provider that announces a retry makes its gate suspect for some seconds, in addition to its state.

A provider whose program cannot be started has a suspect gate first, then a closed one. Each failed
launch doubles the wait. The first launch that succeeds opens the gate.

A result of a run counts by the start of the run: a run that started before the gate was closed is a
straggler, and its result does not count for the runs that were started since.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.model.agent import choose_provider
from steadyrun.model.event import Event, GateClosed, GateOpened, GateSuspect
from steadyrun.model.ids import RunId
from steadyrun.model.run import LAUNCH_FAILED, Created, Run, RunChange
from steadyrun.model.usage import Usage

# The present account of each provider; one that is missing uses the login of the machine.
Accounts = Mapping[str, str]
OWN_LOGIN = ""

# The state of a gate at a time. Only a gate that would be open is reported as suspect.
GateState = Literal["open", "suspect", "closed", "held", "ready", "probing"]

# The longest limits of accounts last a week: a later time is an error.
LONGEST = timedelta(days=7)
# How long a retry makes a gate suspect without a stated delay, and at most.
UNANNOUNCED = timedelta(seconds=5)
MOST_SUSPECT = timedelta(seconds=60)
# How long a gate is suspect after a failed launch. Each later one in a row doubles the time.
FIRST_LAUNCH_WAIT = timedelta(seconds=2)
LONGEST_LAUNCH_WAIT = timedelta(minutes=5)
# States that may last long: runs use the next provider of their chain.
_PASSED = frozenset({"closed", "held", "probing"})


class GateRules(Struct, frozen=True):
    """How long a gate is closed if the provider states no time: `first`, then `factor` times as
    long after each refused probe, at most `most`. After `attempts` refused probes a user has to
    open the gate."""

    first: timedelta = timedelta(minutes=15)
    most: timedelta = timedelta(hours=1)
    factor: float = 2.0
    attempts: int = 10

    def compute_window(self, level: int) -> timedelta:
        """How long a gate is closed after `level` refused probes."""
        window = self.first
        for _ in range(level):
            if window >= self.most:
                break
            window *= self.factor
        return min(window, self.most)


class Gate(Struct, frozen=True, omit_defaults=True):
    """The gate of one provider and account. Limits of one account do not apply to another."""

    provider: str
    account: str = OWN_LOGIN
    is_closed: bool = False
    # Until when it is closed; None: until a user opens it.
    until: datetime | None = None
    # Whether the provider or a user has stated `until`; else it is computed.
    is_stated: bool = False
    suspect_until: datetime | None = None
    # Since when it is closed: runs that started before are stragglers.
    since: datetime | None = None
    # How many probes were refused.
    level: int = 0
    probe: RunId | None = None
    reason: str | None = None
    # The last refusal and its run; kept when the gate is open again.
    hit_at: datetime | None = None
    run: RunId | None = None
    # How many launches have failed in a row, and when the last one did.
    failed_launches: int = 0
    launch_failed_at: datetime | None = None
    # Whether it is closed only because of failed launches.
    is_closed_by_launch: bool = False


# -- reports to a gate


class Suspected(Struct, frozen=True):
    """The provider retries by itself, in `delay` if it states one."""

    delay: timedelta | None
    reason: str


class Limited(Struct, frozen=True):
    """A run ended by a rate limit; `stated` is when it ends, if the provider has stated it."""

    run: RunId
    created_at: datetime
    stated: datetime | None
    reason: str


class NotLaunched(Struct, frozen=True):
    """The program of the provider could not be started for a run."""

    run: RunId
    created_at: datetime
    reason: str


class ProgramLaunched(Struct, frozen=True):
    """The program of the provider was started for a run."""

    run: RunId
    created_at: datetime


class ProviderAnswered(Struct, frozen=True):
    """A run got an answer: the provider accepts work."""

    run: RunId
    created_at: datetime


class RunInconclusive(Struct, frozen=True):
    """A run ended without information about the provider."""

    run: RunId


class Dispatched(Struct, frozen=True):
    """A run was dispatched to the provider."""

    run: RunId


class Opened(Struct, frozen=True):
    """A user opens the gate."""


class Closed(Struct, frozen=True):
    """A user closes the gate, until a time or until a user opens it."""

    until: datetime | None
    reason: str


class Booted(Struct, frozen=True):
    """A daemon starts. The clock may have been wrong, and the probe may have ended."""

    is_probe_over: bool


GateReport = (
    Suspected
    | Limited
    | NotLaunched
    | ProgramLaunched
    | ProviderAnswered
    | RunInconclusive
    | Dispatched
    | Opened
    | Closed
    | Booted
)


def compute_launch_wait(count: int) -> timedelta:
    """How long no run is dispatched after so many failed launches in a row."""
    wait = FIRST_LAUNCH_WAIT
    for _ in range(count - 1):
        if wait >= LONGEST_LAUNCH_WAIT:
            break
        wait *= 2
    return min(wait, LONGEST_LAUNCH_WAIT)


def compute_gate_state(gate: Gate, now: datetime) -> GateState:
    if not gate.is_closed:
        return "suspect" if _is_suspect(gate, now) else "open"
    if gate.until is None:
        return "held"
    if now < gate.until:
        return "closed"
    return "probing" if gate.probe else "ready"


def can_dispatch(gate: Gate, now: datetime) -> bool:
    """Whether a run may be dispatched to the provider now."""
    return compute_gate_state(gate, now) in {"open", "ready"} and not _is_suspect(gate, now)


def find_account(provider: str, accounts: Accounts) -> str:
    return accounts.get(provider, OWN_LOGIN)


def is_present_account(provider: str, account: str, accounts: Accounts) -> bool:
    """Whether a run that is dispatched to the provider now uses this account."""
    return account == find_account(provider, accounts)


def set_account(change: RunChange, accounts: Accounts) -> RunChange:
    """Set the account in the change that creates a run, unless it has one."""
    if not isinstance(change, Created) or change.account is not None:
        return change
    return replace(change, account=find_account(change.provider, accounts))


def find_closed_gate(gates: Iterable[Gate], provider: str, now: datetime) -> Gate | None:
    """The gate that prevents runs of this provider, if there is one."""
    of_it = (gate for gate in gates if gate.provider == provider)
    return next((gate for gate in of_it if not can_dispatch(gate, now)), None)


class UnavailableProviders(NamedTuple):
    """The providers that get no runs: `closed` ones, for which a chain uses its next provider, and
    `suspect` ones, for which a run waits. A suspicion lasts only seconds."""

    closed: frozenset[str]
    suspect: frozenset[str]


def find_unavailable_providers(gates: Iterable[Gate], now: datetime) -> UnavailableProviders:
    shut = [gate for gate in gates if not can_dispatch(gate, now)]
    closed = frozenset(gate.provider for gate in shut if compute_gate_state(gate, now) in _PASSED)
    return UnavailableProviders(closed, frozenset(gate.provider for gate in shut) - closed)


def find_awaited_gate(gates: Sequence[Gate], chain: Sequence[str], now: datetime) -> Gate | None:
    """The gate that a chain waits for if none of its providers is available: the gate that is known
    to open first."""
    closed, suspect = find_unavailable_providers(gates, now)
    chosen = choose_provider(chain, closed)
    if chosen is not None and chosen not in suspect:
        return None
    asked = chain if chosen is None else (chosen,)
    shut = [gate for provider in asked if (gate := find_closed_gate(gates, provider, now))]
    return min(
        shut, key=lambda gate: find_opening_time(gate, now) or datetime.max.replace(tzinfo=UTC)
    )


def find_opening_time(gate: Gate, now: datetime) -> datetime | None:
    """When the gate opens by time alone; None: it is open, or the time is unknown."""
    known = [gate.until if gate.is_closed else None, gate.suspect_until]
    ahead = [time for time in known if time is not None and time > now]
    return (
        max(ahead) if ahead and compute_gate_state(gate, now) not in {"held", "probing"} else None
    )


def find_next_change(gates: Iterable[Gate], now: datetime) -> datetime | None:
    """When the first of these gates opens by time alone."""
    times = (find_opening_time(gate, now) for gate in gates)
    return min((time for time in times if time is not None), default=None)


def step_gate(gate: Gate, report: GateReport, now: datetime, rules: GateRules) -> Gate:
    """Apply a report to a gate. Every report is accepted in every state."""
    return _STEPS[type(report)](gate, report, now, rules)


def report_run_end(run: Run) -> GateReport:
    """What the end of a run means for the gate of its provider."""
    if run.status == "rate_limited":
        stated = run.error.retry_at if run.error else None
        return Limited(run.id, run.created_at, stated, f"{run.id} was rate limited")
    if run.stop_reason == LAUNCH_FAILED:
        problem = run.error.message if run.error else run.id
        return NotLaunched(run.id, run.created_at, f"{LAUNCH_FAILED}: {problem}")
    if run.status == "completed" or run.tools or run.usage != Usage():
        return ProviderAnswered(run.id, run.created_at)
    return RunInconclusive(run.id)


def build_gate_event(before: Gate, after: Gate, now: datetime) -> Event | None:
    """The event of a change of a gate; None if the change has no effect on runs."""
    if after.is_closed:
        if (before.is_closed, before.until) == (after.is_closed, after.until):
            return None
        return GateClosed(
            after.provider, after.until, after.reason or "", after.level, after.account
        )
    if before.is_closed:
        return GateOpened(after.provider, after.account)
    if _is_suspect(after, now) and not _is_suspect(before, now):
        return GateSuspect(after.provider, after.suspect_until, after.reason or "", after.account)
    return None


# -- the steps


def _suspect(gate: Gate, report: Suspected, now: datetime, _: GateRules) -> Gate:
    """Suspect the provider for some seconds. This does not close a gate or shorten a suspicion."""
    announced = UNANNOUNCED if report.delay is None else max(report.delay, timedelta())
    until = now + min(announced, MOST_SUSPECT)
    if gate.suspect_until is not None and gate.suspect_until >= until:
        return gate
    return replace(
        gate, suspect_until=until, reason=gate.reason if gate.is_closed else report.reason
    )


def _limit(gate: Gate, report: Limited, now: datetime, rules: GateRules) -> Gate:
    gate = replace(gate, hit_at=now, run=report.run)
    stated = report.stated if report.stated and now < report.stated <= now + LONGEST else None
    match compute_gate_state(gate, now):
        case "open" | "suspect" if _is_past(report, now):
            return gate
        case "open" | "suspect":
            return _refuse(
                replace(_forget_launches(gate), level=0), stated, report.reason, now, rules
            )
        case "ready" | "probing" if _was_let_through(gate, report.created_at, now):
            return _refuse_probe(_forget_launches(gate), stated, report, now, rules)
        case _:
            return _coalesce(gate, stated, report.reason)


def _fail_launch(gate: Gate, report: NotLaunched, now: datetime, _: GateRules) -> Gate:
    """Suspect the provider after the first failed launch, and close the gate after the next ones.
    A gate that is closed for another reason stays closed at least as long as for this one."""
    if gate.probe == report.run:
        gate = replace(gate, probe=None)
    if not _is_after_failed_launch(gate, report.created_at):
        return gate
    count = gate.failed_launches + 1
    gate = replace(gate, hit_at=now, run=report.run, failed_launches=count, launch_failed_at=now)
    until = now + compute_launch_wait(count)
    if not gate.is_closed and count == 1:
        until = max(until, gate.suspect_until or until)
        return replace(gate, suspect_until=until, reason=report.reason)
    if gate.is_closed and (gate.until is None or gate.until >= until):
        return gate
    is_new = gate.is_closed_by_launch or not gate.is_closed
    gate = replace(gate, is_closed_by_launch=is_new, is_stated=False, reason=report.reason)
    return _close(gate, until, now)


def _launch(gate: Gate, report: ProgramLaunched, _: datetime, __: GateRules) -> Gate:
    """The program can be started again. A gate that is closed for another reason stays closed."""
    if not gate.failed_launches or not _is_after_failed_launch(gate, report.created_at):
        return gate
    return _open(gate) if gate.is_closed_by_launch else _forget_launches(gate)


def _answer(gate: Gate, report: ProviderAnswered, now: datetime, _: GateRules) -> Gate:
    if _was_let_through(gate, report.created_at, now):
        return _open(gate)
    is_over = not gate.is_closed and _is_after_failed_launch(gate, report.created_at)
    return _forget_launches(gate) if is_over else gate


def _end(gate: Gate, report: RunInconclusive, _: datetime, __: GateRules) -> Gate:
    """A probe without a result is removed: another run may become the probe."""
    return replace(gate, probe=None) if gate.probe == report.run else gate


def _dispatch(gate: Gate, report: Dispatched, now: datetime, _: GateRules) -> Gate:
    return replace(gate, probe=report.run) if compute_gate_state(gate, now) == "ready" else gate


def _open_by_hand(gate: Gate, _: Opened, __: datetime, ___: GateRules) -> Gate:
    return replace(_open(gate), suspect_until=None)


def _close_by_hand(gate: Gate, report: Closed, now: datetime, _: GateRules) -> Gate:
    gate = replace(_forget_launches(gate), is_stated=True, reason=report.reason, probe=None)
    return _close(gate, report.until, now)


def _boot(gate: Gate, report: Booted, now: datetime, rules: GateRules) -> Gate:
    """Correct times of a clock that was ahead: they would close the gate for years, or make all
    runs stragglers."""
    if report.is_probe_over:
        gate = replace(gate, probe=None)
    if gate.until is not None and gate.until > now + LONGEST:
        gate = replace(gate, until=now + rules.compute_window(gate.level), is_stated=False)
    if gate.suspect_until is not None and gate.suspect_until > now + MOST_SUSPECT:
        gate = replace(gate, suspect_until=None)
    return replace(
        gate,
        since=_cap(gate.since, now),
        hit_at=_cap(gate.hit_at, now),
        launch_failed_at=_cap(gate.launch_failed_at, now),
    )


_STEPS: dict[type[GateReport], Callable[[Gate, Any, datetime, GateRules], Gate]] = {
    Suspected: _suspect,
    Limited: _limit,
    NotLaunched: _fail_launch,
    ProgramLaunched: _launch,
    ProviderAnswered: _answer,
    RunInconclusive: _end,
    Dispatched: _dispatch,
    Opened: _open_by_hand,
    Closed: _close_by_hand,
    Booted: _boot,
}


def _refuse(
    gate: Gate, stated: datetime | None, reason: str, now: datetime, rules: GateRules
) -> Gate:
    if stated is None:
        reason = f"{reason}, until no known time"
    until = stated or now + rules.compute_window(gate.level)
    return _close(replace(gate, is_stated=stated is not None, reason=reason), until, now)


def _refuse_probe(
    gate: Gate, stated: datetime | None, report: Limited, now: datetime, rules: GateRules
) -> Gate:
    """The probe was refused, too: close the gate for longer."""
    probe = None if gate.probe == report.run else gate.probe
    gate = replace(gate, level=gate.level + 1, probe=probe)
    if gate.level < rules.attempts:
        return _refuse(gate, stated, report.reason, now, rules)
    reason = f"{report.reason}, as {gate.level} were before: open it by hand"
    return _close(replace(gate, is_stated=False, reason=reason), None, now)


def _coalesce(gate: Gate, stated: datetime | None, reason: str) -> Gate:
    """Another run that started before got the same refusal. It may state a better time. A gate
    that a user has closed without a time stays closed."""
    if stated is None or gate.until is None:
        return gate
    until = max(gate.until, stated) if gate.is_stated else stated
    return replace(gate, until=until, is_stated=True, reason=reason)


def _close(gate: Gate, until: datetime | None, now: datetime) -> Gate:
    return replace(gate, is_closed=True, until=until, since=now)


def _open(gate: Gate) -> Gate:
    return Gate(
        gate.provider,
        gate.account,
        suspect_until=gate.suspect_until,
        hit_at=gate.hit_at,
        run=gate.run,
    )


def _forget_launches(gate: Gate) -> Gate:
    return replace(gate, failed_launches=0, launch_failed_at=None, is_closed_by_launch=False)


def _is_after_failed_launch(gate: Gate, created_at: datetime) -> bool:
    """Whether a run that started then has something new to report about launches: a run that
    started before the last failed launch may have failed by the same cause."""
    return gate.launch_failed_at is None or created_at >= gate.launch_failed_at


def _is_past(report: Limited, now: datetime) -> bool:
    """The stated time passed before the refusal was read."""
    return report.stated is not None and report.created_at < report.stated <= now


def _is_suspect(gate: Gate, now: datetime) -> bool:
    return gate.suspect_until is not None and now < gate.suspect_until


def _was_let_through(gate: Gate, created_at: datetime, now: datetime) -> bool:
    """Whether a run that started then was dispatched after the gate became ready."""
    if compute_gate_state(gate, now) not in {"ready", "probing"}:
        return False
    return gate.since is None or created_at >= gate.since


def _cap(time: datetime | None, now: datetime) -> datetime | None:
    return now if time is not None and time > now else time
