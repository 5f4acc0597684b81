"""Keeps the positions of a driver in the journal of its process.

A driver that takes a process over starts at the last saved state. From there it reads again what
an earlier driver has read, and learns again what that driver has sent. The cursor separates what is
in the record already from what is new.
"""

from steadyrun.lib.framing import Frame
from steadyrun.model.process import Process

# The key of a frame that starts a turn begins with this.
_BEGIN = "begin:"


class JournalCursor:
    """The positions of one driver.

    - `offset`: the end of the last line that the dialect has received.
    - `stored`: the end of the record when this driver started. Lines up to here are not new.
    - `passed`: the end of the last batch that was given to the sink.
    - `sent`: the number of the last frame that was sent.
    - `replay`: frames of earlier drivers that the dialect does not know yet, the next one last.
    """

    __slots__ = ("_keys", "_marks", "offset", "passed", "replay", "sent", "stored")

    def __init__(self, process: Process, recorded: list[Frame]) -> None:
        """`recorded` are all frames that were sent to the process, in order."""
        saved = process.saved
        self.offset, self.sent = (saved.offset, saved.sent) if saved else (0, 0)
        self.stored = self.passed = process.offset
        self._marks = process.marks
        self._keys = {frame.key for frame in recorded}
        self.replay = [frame for frame in reversed(recorded) if frame.number > self.sent]

    @property
    def is_exit_stored(self) -> bool:
        """Whether the record has the end of the process."""
        return bool(self._marks.x)

    @property
    def has_begun_a_turn(self) -> bool:
        return any(key.startswith(_BEGIN) for key in self._keys)

    def has_begun(self, turn: str) -> bool:
        """Whether the turn with this key was sent, by this driver or an earlier one."""
        return f"{_BEGIN}{turn}" in self._keys

    def has_sent(self, key: str) -> bool:
        return key in self._keys

    def note_sent(self, frame: Frame) -> bool:
        """Remember a frame that was sent; return whether the record does not have it yet."""
        self.sent = max(self.sent, frame.number)
        self._keys.add(frame.key)
        return frame.number > self._marks.s

    def next_replay(self, before: int) -> Frame | None:
        """The next frame that an earlier driver sent before this offset of the journal."""
        if self.replay and self.replay[-1].end < before:
            return self.replay.pop()
        return None
