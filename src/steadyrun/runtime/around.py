"""What does a runner get? What is asked of it, and what all runners of a process share."""

from dataclasses import dataclass

from msgspec import Struct

from steadyrun.clock import Clock
from steadyrun.model.event import JsonObject
from steadyrun.model.ids import HolderId, Ids
from steadyrun.model.secret import Scrubber
from steadyrun.provider import Drivers, Image
from steadyrun.runtime.clocks import ClockLimits
from steadyrun.store import Store


class Ask(Struct, frozen=True):
    """What is asked of a provider for one run, beyond the text of the item."""

    resume: str | None = None
    # Whether a new conversation will do where the one to resume is not there any more.
    or_fresh: bool = False
    images: tuple[Image, ...] = ()
    schema: JsonObject | None = None
    wall_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every runner of this process shares."""

    store: Store
    drivers: Drivers
    clock: Clock
    ids: Ids
    holder: HolderId
    machine: str
    limits: ClockLimits
    scrubber: Scrubber
