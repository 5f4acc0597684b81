"""In which manner are items run in a seat? Whoever has the seats says so."""

from typing import Protocol, TypeVar

from steadyrun.model.ids import RunId
from steadyrun.model.item import Item
from steadyrun.model.run import Created, Run
from steadyrun.runtime.prompt.builder import TurnPlan
from steadyrun.runtime.run.active_run import ActiveRun
from steadyrun.runtime.run.retry import RetryDecision

# The seat.
Sits = TypeVar("Sits", contravariant=True)  # noqa: PLC0105 (it is a word in what follows)


class Manner(Protocol[Sits]):
    """How items are run in a seat: once and by themselves, or one after the other for good."""

    @property
    def is_patient(self) -> bool:
        """Whether to wait for a store that cannot be written."""

    async def order(
        self, seat: Sits, runner: ActiveRun, *, again: RetryDecision | None
    ) -> TurnPlan:
        """What is to be told, and to which process; `again`: how, if not for the first time."""

    async def created(self, seat: Sits, run: RunId, item: Item) -> Created:
        """The run of an item that is tried again, or that the process has begun by itself."""

    async def make_room(self, seat: Sits) -> None:
        """A process is about to be launched."""

    def keeps(self, seat: Sits) -> bool:
        """Whether the process may wait for the next item."""

    async def again(self, seat: Sits, run: Run, *, was_told: bool) -> RetryDecision | None:
        """A run has ended: whether its item is run once more. `was_told`: its turn may have been
        told."""

    def waits(self, seat: Sits, *, for_a_person: bool) -> None:
        """The run waits for the answer of a person, or has it."""

    def begun(self, seat: Sits, *, was_held: bool) -> None:
        """The process has begun a turn that nobody asked for; if nothing ran before, `work` is to
        be called."""

    def settled(self, seat: Sits, item: Item) -> None:
        """An item is done with, or waits again."""

    def left(self, seat: Sits) -> None:
        """The lane is not ours any more."""

    async def broken(self, seat: Sits, error: Exception) -> None:
        """A process cannot be heard though nothing runs."""
