"""Which step answers this request? The script's order, and what a CLI asks beside it.

A script is a list of steps, one for each main request, or a function of the request that answers
all of them. A function in the list answers one; its step may be a function again.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from steadyrun.testing.model_servers.faults import Refusal

RequestT = TypeVar("RequestT")
StepT = TypeVar("StepT")


class Script(Generic[RequestT, StepT]):
    """Steps that are handed out once each, in order, to threads that may ask together."""

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
        """The step for this request; where none is left, a refusal that says so."""
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
        """How many steps nobody has asked for yet."""
        with self._lock:
            return max(0, len(self._steps) - self._place)
