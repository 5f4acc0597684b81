"""May this provider be dispatched to now? A state machine without a clock of its own.

A gate is open, or closed until a time, or closed until a person opens it. When its time is over it
is ready: one run is let through, the probe, and nobody else until that has shown how things are. A
provider that announces a retry makes its gate suspect for moments, whatever it is besides.

What a run says of its provider counts by when the run began: one that began before the gate was
closed is a straggler, and proves nothing about what was let through since.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.model.agent import choose_provider
from steadyrun.model.event import Event, GateClosed, GateOpened, GateSuspect
from steadyrun.model.ids import RunId
from steadyrun.model.run import Created, Run, RunChange
from steadyrun.model.usage import Usage

# The present account of each provider; one that is not named has that of the machine's own login.
Accounts = Mapping[str, str]
OWN_LOGIN = ""

# What a gate is at a time. Suspect is told only of one that would be open.
GateState = Literal["open", "suspect", "closed", "held", "ready", "probing"]

# The longest windows of accounts are a week: what is further off is a mistake.
LONGEST = timedelta(days=7)
# How long a retry makes a gate suspect if it does not say, and at most.
UNANNOUNCED = timedelta(seconds=5)
MOST_SUSPECT = timedelta(seconds=60)
# Where it may take long until somebody is let through, and others go elsewhere meanwhile.
_PASSED = frozenset({"closed", "held", "probing"})


class GateRules(Struct, frozen=True):
    """How long is a gate closed where nobody says for how long? `first`, then `factor` times as
    long after each probe that was refused, at most `most`; after so many `attempts` a person is
    asked."""

    first: timedelta = timedelta(minutes=15)
    most: timedelta = timedelta(hours=1)
    factor: float = 2.0
    attempts: int = 10

    def compute_window(self, level: int) -> timedelta:
        """For how long, after `level` probes that were refused."""
        window = self.first
        for _ in range(level):
            if window >= self.most:
                break
            window *= self.factor
        return min(window, self.most)


class Gate(Struct, frozen=True, omit_defaults=True):
    """One provider and account: what is said to whoever has one key holds for no other."""

    provider: str
    account: str = OWN_LOGIN
    is_closed: bool = False
    # Until when; None: until a person opens it.
    until: datetime | None = None
    # Whether somebody has said so, or it is our guess.
    is_stated: bool = False
    suspect_until: datetime | None = None
    # Since when it is closed: runs that began before are stragglers.
    since: datetime | None = None
    # How many probes were refused.
    level: int = 0
    probe: RunId | None = None
    reason: str | None = None
    # The last refusal, and whose it was: kept also when the gate is open again.
    hit_at: datetime | None = None
    run: RunId | None = None


# -- what is told to a gate


class Suspected(Struct, frozen=True):
    """The provider tries again by itself, in `delay` if it says so."""

    delay: timedelta | None
    reason: str


class Limited(Struct, frozen=True):
    """A run ended because the provider takes no more, until the time that it states."""

    run: RunId
    created_at: datetime
    stated: datetime | None
    reason: str


class ProviderAnswered(Struct, frozen=True):
    """A run was answered: whoever lets it work takes more."""

    run: RunId
    created_at: datetime


class RunInconclusive(Struct, frozen=True):
    """A run ended, and nothing is known by it."""

    run: RunId


class Dispatched(Struct, frozen=True):
    """A run was let through."""

    run: RunId


class Opened(Struct, frozen=True):
    """A person opens the gate."""


class Closed(Struct, frozen=True):
    """A person closes the gate, until a time or for good."""

    until: datetime | None
    reason: str


class Booted(Struct, frozen=True):
    """A daemon begins. Clocks may have been wrong, and the probe may be over."""

    is_probe_over: bool


GateReport = (
    Suspected | Limited | ProviderAnswered | RunInconclusive | Dispatched | Opened | Closed | Booted
)


def compute_gate_state(gate: Gate, now: datetime) -> GateState:
    if not gate.is_closed:
        return "suspect" if _is_suspect(gate, now) else "open"
    if gate.until is None:
        return "held"
    if now < gate.until:
        return "closed"
    return "probing" if gate.probe else "ready"


def can_dispatch(gate: Gate, now: datetime) -> bool:
    """Whether one run may be let through. The one question that everybody asks."""
    return compute_gate_state(gate, now) in {"open", "ready"} and not _is_suspect(gate, now)


def find_account(provider: str, accounts: Accounts) -> str:
    return accounts.get(provider, OWN_LOGIN)


def is_present_account(provider: str, account: str, accounts: Accounts) -> bool:
    """Whether who is sent to the provider now comes to the gate of this account."""
    return account == find_account(provider, accounts)


def set_account(change: RunChange, accounts: Accounts) -> RunChange:
    """What begins a run says on which account: on the present one, unless it is said already."""
    if not isinstance(change, Created) or change.account is not None:
        return change
    return replace(change, account=find_account(change.provider, accounts))


def find_closed_gate(gates: Iterable[Gate], provider: str, now: datetime) -> Gate | None:
    """The one that lets nobody through to the provider, if there is one."""
    of_it = (gate for gate in gates if gate.provider == provider)
    return next((gate for gate in of_it if not can_dispatch(gate, now)), None)


class UnavailableProviders(NamedTuple):
    """The providers that nobody may be sent to: those that a chain goes past, and those that are
    waited for. A suspicion lasts for moments: nobody changes the provider for that."""

    closed: frozenset[str]
    suspect: frozenset[str]


def find_unavailable_providers(gates: Iterable[Gate], now: datetime) -> UnavailableProviders:
    shut = [gate for gate in gates if not can_dispatch(gate, now)]
    closed = frozenset(gate.provider for gate in shut if compute_gate_state(gate, now) in _PASSED)
    return UnavailableProviders(closed, frozenset(gate.provider for gate in shut) - closed)


def find_awaited_gate(gates: Sequence[Gate], chain: Sequence[str], now: datetime) -> Gate | None:
    """The gate that a chain waits for, if no provider of it does the work now: the one that is
    known to open first."""
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
    """When it lets somebody through by time alone; None: now, or that is not known."""
    known = [gate.until if gate.is_closed else None, gate.suspect_until]
    ahead = [time for time in known if time is not None and time > now]
    return (
        max(ahead) if ahead and compute_gate_state(gate, now) not in {"held", "probing"} else None
    )


def find_next_change(gates: Iterable[Gate], now: datetime) -> datetime | None:
    """When the first of them may let somebody through by time alone."""
    times = (find_opening_time(gate, now) for gate in gates)
    return min((time for time in times if time is not None), default=None)


def step_gate(gate: Gate, news: GateReport, now: datetime, rules: GateRules) -> Gate:
    """What a gate becomes by news. Total: nothing is refused."""
    return _STEPS[type(news)](gate, news, now, rules)


def report_run_end(run: Run) -> GateReport:
    """What the end of a run tells of its provider."""
    if run.status == "rate_limited":
        stated = run.error.retry_at if run.error else None
        return Limited(run.id, run.created_at, stated, f"{run.id} was rate limited")
    if run.status == "completed" or run.tools or run.usage != Usage():
        return ProviderAnswered(run.id, run.created_at)
    return RunInconclusive(run.id)


def build_gate_event(before: Gate, after: Gate, now: datetime) -> Event | None:
    """The event that a change of a gate makes; none when it lets through whom it did."""
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


def _suspect(gate: Gate, news: Suspected, now: datetime, _: GateRules) -> Gate:
    """For moments; it neither closes a gate nor makes an earlier suspicion shorter."""
    announced = UNANNOUNCED if news.delay is None else max(news.delay, timedelta())
    until = now + min(announced, MOST_SUSPECT)
    if gate.suspect_until is not None and gate.suspect_until >= until:
        return gate
    return replace(gate, suspect_until=until, reason=gate.reason if gate.is_closed else news.reason)


def _limit(gate: Gate, news: Limited, now: datetime, rules: GateRules) -> Gate:
    gate = replace(gate, hit_at=now, run=news.run)
    stated = news.stated if news.stated and now < news.stated <= now + LONGEST else None
    match compute_gate_state(gate, now):
        case "open" | "suspect" if _is_past(news, now):
            return gate
        case "open" | "suspect":
            return _refuse(replace(gate, level=0), stated, news.reason, now, rules)
        case "ready" | "probing" if _was_let_through(gate, news.created_at, now):
            return _refuse_probe(gate, stated, news, now, rules)
        case _:
            return _coalesce(gate, stated, news.reason)


def _answer(gate: Gate, news: ProviderAnswered, now: datetime, _: GateRules) -> Gate:
    return _open(gate) if _was_let_through(gate, news.created_at, now) else gate


def _end(gate: Gate, news: RunInconclusive, _: datetime, __: GateRules) -> Gate:
    """A probe that has shown nothing: the next one will."""
    return replace(gate, probe=None) if gate.probe == news.run else gate


def _dispatch(gate: Gate, news: Dispatched, now: datetime, _: GateRules) -> Gate:
    return replace(gate, probe=news.run) if compute_gate_state(gate, now) == "ready" else gate


def _open_by_hand(gate: Gate, _: Opened, __: datetime, ___: GateRules) -> Gate:
    return replace(_open(gate), suspect_until=None)


def _close_by_hand(gate: Gate, news: Closed, now: datetime, _: GateRules) -> Gate:
    gate = replace(gate, is_stated=True, reason=news.reason, probe=None)
    return _close(gate, news.until, now)


def _boot(gate: Gate, news: Booted, now: datetime, rules: GateRules) -> Gate:
    """A clock that was ahead must close nothing for years, nor make stragglers of all runs."""
    if news.is_probe_over:
        gate = replace(gate, probe=None)
    if gate.until is not None and gate.until > now + LONGEST:
        gate = replace(gate, until=now + rules.compute_window(gate.level), is_stated=False)
    if gate.suspect_until is not None and gate.suspect_until > now + MOST_SUSPECT:
        gate = replace(gate, suspect_until=None)
    return replace(gate, since=_cap(gate.since, now), hit_at=_cap(gate.hit_at, now))


_STEPS: dict[type[GateReport], Callable[[Gate, Any, datetime, GateRules], Gate]] = {
    Suspected: _suspect,
    Limited: _limit,
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
    gate: Gate, stated: datetime | None, hit: Limited, now: datetime, rules: GateRules
) -> Gate:
    """Whoever was let through was refused as well."""
    probe = None if gate.probe == hit.run else gate.probe
    gate = replace(gate, level=gate.level + 1, probe=probe)
    if gate.level < rules.attempts:
        return _refuse(gate, stated, hit.reason, now, rules)
    reason = f"{hit.reason}, as {gate.level} were before: open it by hand"
    return _close(replace(gate, is_stated=False, reason=reason), None, now)


def _coalesce(gate: Gate, stated: datetime | None, reason: str) -> Gate:
    """One more that began before: it is the same refusal, and may know better how long it lasts.
    What a person has closed for good stays so."""
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


def _is_past(hit: Limited, now: datetime) -> bool:
    """The stated time came while nobody was there to hear of it."""
    return hit.stated is not None and hit.created_at < hit.stated <= now


def _is_suspect(gate: Gate, now: datetime) -> bool:
    return gate.suspect_until is not None and now < gate.suspect_until


def _was_let_through(gate: Gate, created_at: datetime, now: datetime) -> bool:
    """Whether a run that began then was let through after the time of the gate was over."""
    if compute_gate_state(gate, now) not in {"ready", "probing"}:
        return False
    return gate.since is None or created_at >= gate.since


def _cap(time: datetime | None, now: datetime) -> datetime | None:
    return now if time is not None and time > now else time
