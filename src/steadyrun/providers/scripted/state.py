"""Defines the state of a scripted CLI process.

The state depends only on the lines that were written and printed. It is saved by its field names,
so a field must not be renamed.
"""

from msgspec import Struct


class ScriptedState(Struct):
    """Everything that the Dialect remembers of one process."""

    is_ready: bool = False
    # The open turn: its key, the offer's id, or the id of a turn that the child began.
    turn: str | None = None
    # A turn that the child began before it read the one that was sent.
    prelude: str | None = None
    text: str | None = None
    offers: dict[str, str] = {}
    # The ids of the child's questions, by approval.
    asks: dict[str, str] = {}
    # How many turns the child will still begin.
    background: int = 0
