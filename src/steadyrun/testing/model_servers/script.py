"""Selects the step that answers a request.

A script is a list of steps, one for each main request, or a function that answers all requests. A
function in the list answers one request; it may return another function.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from steadyrun.testing.model_servers.faults import Refusal

RequestT = TypeVar("RequestT")
StepT = TypeVar("StepT")


class Script(Generic[RequestT, StepT]):
    """Steps that are used once each, in order. Several threads may request steps at once."""

    def __init__(
        self,
        steps: "Sequence[StepT | Callable[[RequestT], StepT]] | Callable[[RequestT], StepT]",
        fallback: "Callable[[RequestT], StepT] | StepT | None" = None,
    ) -> None:
        self._steps = [] if callable(steps) else list(steps)
        self._fallback = steps if callable(steps) else fallback
        self._place = 0
        self._lock = threading.Lock()

    def next_step(self, ask: RequestT) -> "StepT | Refusal":
        """Return the step for a request, or a refusal if there are no more steps."""
        with self._lock:
            place, self._place = self._place, self._place + 1
        step = self._steps[place] if place < len(self._steps) else self._fallback
        while callable(step):
            step = step(ask)
        if step is None:
            return Refusal("invalid", message=f"the script has no step number {place + 1}")
        return step

    @property
    def unused(self) -> int:
        """The number of steps that were not used yet."""
        with self._lock:
            return max(0, len(self._steps) - self._place)
