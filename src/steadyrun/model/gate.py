"""May this provider be dispatched to now?"""

from datetime import datetime

from msgspec import Struct

from steadyrun.model.event import Event, GateClosed, GateOpened


class Gate(Struct, frozen=True):
    """One provider and account: open, or closed until a time."""

    provider: str
    account: str = ""
    closed_until: datetime | None = None
    reason: str | None = None

    def is_open(self, now: datetime) -> bool:
        return self.closed_until is None or self.closed_until <= now


def gate_after(before: Gate | None, wanted: Gate, now: datetime) -> Gate:
    """What a gate becomes. One that is closed opens earlier by hand only: not by being closed for a
    shorter time."""
    if before is None or before.closed_until is None or before.is_open(now):
        return wanted
    is_shorter = wanted.closed_until is not None and wanted.closed_until < before.closed_until
    return before if is_shorter else wanted


def gate_told(before: Gate | None, after: Gate, now: datetime) -> Event | None:
    """The event that a change of a gate makes; none when it is as open or closed as it was."""
    was_open = before is None or before.is_open(now)
    if after.is_open(now):
        return None if was_open else GateOpened(after.provider)
    if before is not None and before.closed_until == after.closed_until:
        return None
    return GateClosed(after.provider, after.closed_until, after.reason or "", level=0)
