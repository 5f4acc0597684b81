"""Provides a clock for tests, which moves only by `advance`."""

import random
from datetime import UTC, datetime, timedelta

from steadyrun.lib.clock import Clock
from steadyrun.model.ids import Ids

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock that moves only by `advance`."""

    def __init__(self, start: datetime = START) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, by: timedelta) -> None:
        self._now += by
        self._monotonic += by.total_seconds()


def make_ids(clock: Clock, seed: int) -> Ids:
    """Make ids that are the same for the same seed, so that two stores can be compared whole."""
    return Ids(clock.now, random.Random(seed).getrandbits)  # noqa: S311 (not a secret)
