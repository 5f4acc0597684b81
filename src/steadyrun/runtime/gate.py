"""When may a provider be asked again? A run that was rate limited closes its gate."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from steadyrun.model.gate import Gate
from steadyrun.model.run import Run
from steadyrun.runtime.facts import fact

UNSTATED = timedelta(minutes=15)
# The longest windows of accounts are a week: what is further off is a mistake.
LONGEST = timedelta(days=7)


def closed_by(run: Run, now: datetime) -> Gate | None:
    """Closed until the time that the provider has stated, if that can be; None if the run was not
    rate limited, or the time came while nobody was there to hear of it."""
    if run.status != "rate_limited":
        return None
    stated = run.error.retry_at if run.error else None
    if stated is not None and run.created_at < stated <= now:
        return None
    why = f"{run.id} was rate limited"
    if stated is not None and now < stated <= now + LONGEST:
        return Gate(run.provider, closed_until=stated, reason=why)
    return Gate(run.provider, closed_until=now + UNSTATED, reason=f"{why}, until no known time")


def next_opening(gates: Iterable[Gate], now: datetime) -> datetime | None:
    """When the first of those that are closed opens; None if none is."""
    closed = (gate.closed_until for gate in gates if not gate.is_open(now))
    return min((until for until in closed if until is not None), default=None)


def tell_closed(gate: Gate) -> None:
    """Tell an operator."""
    until = gate.closed_until.isoformat() if gate.closed_until else None
    fact("gate.closed", provider=gate.provider, until=until)
