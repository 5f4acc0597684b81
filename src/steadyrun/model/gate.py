"""May this provider be dispatched to now?"""

from datetime import datetime

from msgspec import Struct


class Gate(Struct, frozen=True):
    """One provider and account: open, or closed until a time."""

    provider: str
    account: str = ""
    closed_until: datetime | None = None
    reason: str | None = None

    def is_open(self, now: datetime) -> bool:
        return self.closed_until is None or self.closed_until <= now
