"""Computes how long a commit waits for other writes. Pure: the caller passes the time.

A single writer does not wait: its commit is done at once. Under many small writes a commit for each
would cost more than the writes, so they gather for 10 to 50 ms. A wait ends early as soon as every
lane of the last commit has a write in this one: no other write is expected.
"""

import math
from collections.abc import Set as AbstractSet

BUSY_PER_SECOND = 1000.0
NARROWEST_SECONDS = 0.010
WIDEST_SECONDS = 0.050
# Writes older than about this no longer count for the rate.
_MEMORY_SECONDS = 0.1


class CommitWindow:
    """Measures how busy the writer has been."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = 0.0
        self._last_lanes: AbstractSet[str] = frozenset()

    def compute_width(self, now: float) -> float:
        """How long a commit may be delayed, by the recent writes per second."""
        rate = self._rate * self._compute_decay(now)
        if rate < BUSY_PER_SECOND:
            return 0.0
        width = NARROWEST_SECONDS * rate / BUSY_PER_SECOND
        return min(width, WIDEST_SECONDS)

    def is_complete(self, lanes: AbstractSet[str]) -> bool:
        """Whether every lane of the last commit has a write in this one already."""
        return self._last_lanes <= lanes

    def record_commit(self, now: float, writes: int, lanes: AbstractSet[str]) -> None:
        elapsed = max(now - self._at, 1e-6)
        faded = self._compute_decay(now)
        self._rate = self._rate * faded + writes / elapsed * (1 - faded)
        self._at = now
        self._last_lanes = lanes

    def _compute_decay(self, now: float) -> float:
        return math.exp(-max(now - self._at, 0.0) / _MEMORY_SECONDS)


class CommitTimer:
    """Measures commits in the thread of the writer; other threads read the longest one."""

    def __init__(self) -> None:
        # The longest commit that was not taken yet, and the start of one that is not done.
        self._longest_seconds, self._begun_at = 0.0, math.inf

    def begin(self, now: float) -> None:
        self._begun_at = now

    def end(self, now: float) -> None:
        self._longest_seconds = max(self._longest_seconds, now - self._begun_at)
        self._begun_at = math.inf

    def take_longest(self, now: float) -> float:
        """See `Store.take_commit_seconds`. A commit that ends at this very moment may be left out
        or be given twice."""
        longest, self._longest_seconds = self._longest_seconds, 0.0
        return max(longest, now - self._begun_at)
