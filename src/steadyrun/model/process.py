"""Which process did the work, how far is its journal taken in, what did its Dialect remember?"""

from datetime import datetime

from msgspec import Struct

from steadyrun.model.ids import AgentId, ProcessId


class Checkpoint(Struct, frozen=True):
    """A Dialect's memory at the end of a turn, and the number of the last frame sent by then."""

    state: bytes
    sent: int


class SavedState(Struct, frozen=True):
    """A checkpoint and the journal offset it belongs to: adoption goes on from here."""

    state: bytes
    sent: int
    offset: int


class Marks(Struct, frozen=True):
    """The highest number stored of the events that no journal line caused, per source."""

    s: int = 0
    x: int = 0
    r: int = 0


class Process(Struct, frozen=True):
    """One live CLI. `offset` is where the record of its journal ends; every append moves it."""

    id: ProcessId
    agent: AgentId
    provider: str
    machine: str
    keeper: str
    opened_at: datetime
    offset: int = 0
    marks: Marks = Marks()
    saved: SavedState | None = None
    closed_at: datetime | None = None
    # The seal of what it was launched with: one with another seal serves no turn of today.
    seal: str = ""
    # Whose limits hold for what it does; see `Gate`.
    account: str = ""
