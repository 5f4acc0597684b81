"""Defines what a daemon measures of itself, and the limits for that."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

HealthMeasure = Literal["loop_seconds", "commit_seconds", "queue_seconds", "memory_bytes"]


class HealthLimits(Struct, frozen=True):
    """Above these values the daemon reports a breach; 0 is without limit.

    `loop_seconds` is the delay of the event loop, `commit_seconds` the time of a commit,
    `queue_seconds` how long an item waits that could run, and `memory_bytes` the resident memory.
    """

    loop_seconds: float = 2.0
    commit_seconds: float = 5.0
    queue_seconds: float = 900.0
    memory_bytes: int = 1024 * 1024 * 1024


class HealthReading(Struct, frozen=True):
    """The present value of a measure and its limit. `since` is when the limit was exceeded; None if
    it is not."""

    measure: HealthMeasure
    value: float
    limit: float
    since: datetime | None
