"""Defines the stored state of a CLI process."""

from datetime import datetime

from msgspec import Struct

from steadyrun.model.ids import AgentId, ProcessId


class Checkpoint(Struct, frozen=True):
    """The state of a dialect at the end of a turn, and the number of the last sent frame."""

    state: bytes
    sent: int


class SavedState(Struct, frozen=True):
    """A checkpoint and its offset in the journal: a takeover starts here."""

    state: bytes
    sent: int
    offset: int


class Marks(Struct, frozen=True):
    """The highest stored number of events without a journal line, per source."""

    s: int = 0
    x: int = 0
    r: int = 0


class Process(Struct, frozen=True):
    """One CLI process. `offset` is the end of the stored part of its journal."""

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
    # The fingerprint of its launch: a process with another one gets no new turn.
    seal: str = ""
    # The account whose limits apply; see `Gate`.
    account: str = ""
