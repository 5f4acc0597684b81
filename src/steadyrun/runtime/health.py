"""Measures the daemon itself: the delay of its event loop, its commits, its queue and its memory.

A value above its limit is a breach: it is logged once, and once more when it is over. `status` and
the telemetry show the present values.
"""

import os
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import get_args

import anyio

from steadyrun.errors import StoreFailed
from steadyrun.lib.clock import Clock
from steadyrun.model.gate import find_awaited_gate
from steadyrun.model.health import HealthLimits, HealthMeasure, HealthReading
from steadyrun.model.ids import AgentId
from steadyrun.runtime.log import log_event
from steadyrun.store import Store

MEASURES: tuple[HealthMeasure, ...] = get_args(HealthMeasure)
# How often the process is measured, and how often the queue, which has to be read.
_TICK_SECONDS = 1.0
_QUEUE_SECONDS = 5.0
# The longest delay and the longest commit are those of this time.
WINDOW_SECONDS = 60.0
# A breach is over below this part of the limit: a value near it is not reported again and again.
_RECOVERED_PART = 0.9
_STATM = Path("/proc/self/statm")


class WindowMaximum:
    """The largest value of the last `WINDOW_SECONDS`."""

    def __init__(self) -> None:
        # With falling values: a value counts until a larger one comes, or its time is over.
        self._values: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> float:
        """Add a value, and return the largest."""
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now, value))
        while self._values[0][0] < now - WINDOW_SECONDS:
            self._values.popleft()
        return self._values[0][1]


class QueueAge:
    """Since when the items wait that could run: time in which an agent is paused, or in which all
    its providers are closed, does not count."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        # Since when each lane was found waiting; another item of the lane waits anew.
        self._since: dict[tuple[AgentId, datetime], float] = {}

    async def measure(self) -> float:
        """The age of the oldest of these items, in seconds."""
        clock, store = self._clock, self._store
        now = clock.monotonic()
        gates, found = await store.gates(), await store.agent_overviews(clock.now())
        waiting = {
            (each.agent.id, each.lane.ready_at)
            for each in found
            if each.lane.ready_at is not None
            and not each.lane.is_paused
            and find_awaited_gate(gates, each.agent.providers, clock.now()) is None
        }
        self._since = {lane: self._since.get(lane, now) for lane in waiting}
        return max((now - since for since in self._since.values()), default=0.0)


class HealthMonitor:
    """Measures this process until it ends. The daemon runs `serve` in a task of its event loop."""

    def __init__(self, store: Store, clock: Clock, limits: HealthLimits) -> None:
        self._store, self._clock, self._limits = store, clock, limits
        self._values: dict[HealthMeasure, float] = dict.fromkeys(MEASURES, 0.0)
        self._breached: dict[HealthMeasure, datetime] = {}
        self._delays, self._commits = WindowMaximum(), WindowMaximum()
        self._queue = QueueAge(store, clock)

    def read(self) -> tuple[HealthReading, ...]:
        """The present values. This may be called from another thread."""
        return tuple(
            HealthReading(
                each, self._values[each], getattr(self._limits, each), self._breached.get(each)
            )
            for each in MEASURES
        )

    async def serve(self) -> None:
        # Lateness is measured by the clock that the sleep uses.
        last = queue_at = anyio.current_time()
        while True:
            await anyio.sleep(_TICK_SECONDS)
            now = anyio.current_time()
            self._measure_process(now, late=max(0.0, now - last - _TICK_SECONDS))
            if now >= queue_at:
                await self._measure_queue()
                queue_at = now + _QUEUE_SECONDS
            last = anyio.current_time()

    def _measure_process(self, now: float, *, late: float) -> None:
        commit_seconds = self._store.take_commit_seconds()
        self._set("loop_seconds", round(self._delays.add(now, late), 3))
        self._set("commit_seconds", round(self._commits.add(now, commit_seconds), 3))
        self._set("memory_bytes", _read_memory())

    async def _measure_queue(self) -> None:
        try:
            self._set("queue_seconds", round(await self._queue.measure(), 1))
        except StoreFailed as error:
            log_event("store.failed", phase="health", code=error.code)

    def _set(self, measure: HealthMeasure, value: float) -> None:
        """Keep the value, and report if its limit is exceeded now, or not any more."""
        limit = getattr(self._limits, measure)
        self._values[measure] = value
        if measure not in self._breached and limit and value > limit:
            self._breached[measure] = self._clock.now()
            log_event("health.breached", measure=measure, value=value, limit=limit)
        elif measure in self._breached and value <= limit * _RECOVERED_PART:
            del self._breached[measure]
            log_event("health.recovered", measure=measure, value=value, limit=limit)


def _read_memory() -> int:
    """The resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
