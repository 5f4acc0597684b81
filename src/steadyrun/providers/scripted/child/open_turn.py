"""Holds the turn that is played: its results so far, and its input."""

import time
from collections.abc import Callable

from steadyrun.providers.scripted.child.input_queue import LONGEST_WAIT_SECONDS, InputQueue
from steadyrun.providers.scripted.child.script import ScriptedTurn
from steadyrun.providers.scripted.child.wire import Args, print_frame


class TurnInterrupted(Exception):
    """The turn was interrupted."""


class OpenTurn:
    """The turn that is played. The player makes one for each turn, and its steps change it."""

    def __init__(self, queue: InputQueue, request: ScriptedTurn) -> None:
        self.queue, self.request = queue, request
        self.texts = [request.text] if request.by != "self" else []
        self.result: str | None = None
        self.usage: dict[str, int] = {}
        self.cost_usd: float | None = None
        self.tools = 0

    def poll_input(self, *, is_between: bool = True) -> None:
        """Read new input. Between steps, absorb the offers."""
        self.queue.read_input(0)
        self.check_interrupt()
        for offer in list(self.queue.offers) if is_between else ():
            text = self.queue.offers.pop(offer)
            self.texts.append(text)
            print_frame("absorbed", offer=offer, text=text)

    def check_interrupt(self) -> None:
        if self.queue.must_end(self.request):
            raise TurnInterrupted

    def wait(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        """Wait this long, or until a condition holds. An interrupt ends the wait."""
        end = time.monotonic() + seconds
        while not (until and until()) and (remaining := end - time.monotonic()) > 0:
            self.queue.read_input(min(remaining, LONGEST_WAIT_SECONDS))
            self.check_interrupt()


# Plays one step of a turn with its arguments.
PlayStep = Callable[[OpenTurn, Args], None]
