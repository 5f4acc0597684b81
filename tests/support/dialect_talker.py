"""Calls a Dialect in the order in which a driver does."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from steadyrun.dialect import Dialect, DialectOutput, Refused, Send, Turn, TurnBegan, TurnEnded
from steadyrun.drivers.turn_tracker import TrackedOutput, TurnTracker
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev

D = TypeVar("D", bound=Dialect)
Line = Mapping[str, Any] | bytes
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Talker(Generic[D]):
    """Passes lines to a Dialect, either way."""

    def __init__(self, dialect: D) -> None:
        self.dialect = dialect
        # All frames in order; only sent frames have a number.
        self.log: list[Frame] = []
        self._place, self._number = 0, 0

    def receive(self, *lines: Line) -> list[DialectOutput]:
        """Pass printed lines to the Dialect."""
        said: list[DialectOutput] = []
        for line in lines:
            raw = line if isinstance(line, bytes) else json.dumps(line).encode()
            self._place += 10
            self.log.append(Frame(raw, self._place))
            said += self.dialect.receive(self.log[-1])
        return said

    def send(self, *sends: Send | Refused | None) -> list[DialectOutput]:
        """Report lines as sent."""
        said: list[DialectOutput] = []
        for send in sends:
            assert isinstance(send, Send)
            said += self._sent(send.raw, send.key)
        return said

    def write(self, line: Line) -> list[DialectOutput]:
        """Report a line that was sent without a key, as in a recording."""
        return self._sent(line if isinstance(line, bytes) else json.dumps(line).encode(), "")

    def _sent(self, raw: bytes, key: str) -> list[DialectOutput]:
        self._number += 1
        self.log.append(Frame(raw, self._place, key, self._number))
        return self.dialect.on_sent(self.log[-1])

    def turn(self, key: str = "t1", text: str = "hello") -> list[DialectOutput]:
        return self.send(*self.dialect.begin(Turn(key, text)))


def play(turns: TurnTracker, frames: list[Frame]) -> list[TrackedOutput]:
    """The output of the tracker for these frames."""
    return [
        each
        for frame in frames
        for each in (turns.on_sent if frame.number else turns.on_received)(frame, NOW)
    ]


def get_end(said: list[DialectOutput]) -> TurnEnded:
    """The last output, which must be the end of a turn."""
    assert isinstance(said[-1], TurnEnded)
    return said[-1]


def the_error(said: list[DialectOutput]) -> ev.ErrorFact:
    """The error of the turn that ended last."""
    error = get_end(said).error
    assert error is not None
    return error


def fates(said: list[DialectOutput]) -> list[DialectOutput]:
    """What is said of turns and follow-ups."""
    return [each for each in said if isinstance(each, _FATES)]


_FATES = (
    TurnBegan, ev.FollowupOffered, ev.FollowupAbsorbed, ev.FollowupOwnTurn, ev.FollowupReturned,
)  # fmt: skip


def told(send: Send | Refused | None) -> Any:
    assert isinstance(send, Send)
    return json.loads(send.raw)
