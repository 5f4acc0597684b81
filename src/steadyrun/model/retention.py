"""Defines what is pruned: the limits, what was deleted, and where the next step begins.

Only the past of an agent is pruned. Its oldest events go first, run by run, up to the first run
that is kept: the numbers of the events that remain have no gap.
"""

from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from steadyrun.model.ids import AgentId

PruneStage = Literal["events", "runs", "items"]


class RetentionLimits(Struct, frozen=True):
    """What is old: events before a time, texts of runs and items before a time; None: keep all.

    With `agent`, only what belongs to that agent.
    """

    events_before: datetime | None = None
    texts_before: datetime | None = None
    agent: AgentId | None = None


class RetentionPeriods(Struct, frozen=True):
    """How long events and texts are kept; zero: for ever."""

    events: timedelta = timedelta()
    texts: timedelta = timedelta()

    def to_limits(self, now: datetime, agent: AgentId | None = None) -> RetentionLimits:
        return RetentionLimits(
            now - self.events if self.events else None,
            now - self.texts if self.texts else None,
            agent,
        )

    @property
    def is_endless(self) -> bool:
        return not self.events and not self.texts


class PruneCounts(Struct, frozen=True):
    """What was deleted, or would be. `runs` have lost their events; bytes are those of the stored
    values, without the space for indexes."""

    events: int = 0
    event_bytes: int = 0
    runs: int = 0
    texts: int = 0
    text_bytes: int = 0

    def __add__(self, other: "PruneCounts") -> "PruneCounts":
        fields = self.__struct_fields__
        return PruneCounts(*(getattr(self, name) + getattr(other, name) for name in fields))


class PrunePosition(Struct, frozen=True):
    """Where a step of a pruning begins. The values have a meaning for the engine only."""

    stage: PruneStage = "events"
    after: int | str = 0
    # Events from this cursor on are kept.
    until: int = 0
    # The agents whose first kept run was found.
    kept: frozenset[str] = frozenset()


class PruneStep(Struct, frozen=True):
    """What one step has done; `next` is None once everything is done."""

    counts: PruneCounts
    next: PrunePosition | None = None
