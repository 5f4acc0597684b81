"""What passed between us and a CLI? One line, either way."""

from msgspec import Struct


class Frame(Struct, frozen=True, gc=False):
    """One line without its line break.

    Printed by the CLI: `end` is where it ends in the journal. Sent by us: `key` names it, `number`
    counts the frames sent to the process, and `end` is how far the journal had been read.
    """

    raw: bytes
    end: int
    key: str = ""
    number: int = 0
