"""Queues the input of the scripted CLI, and decides which turn comes next."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from steadyrun.providers.scripted.child.json_lines import (
    Args,
    InputReader,
    decode_json,
    print_frame,
)
from steadyrun.providers.scripted.child.memory import Memory
from steadyrun.providers.scripted.child.script import ScriptedTurn, ScriptStep

# The longest wait that is passed to select(). Input ends a wait early.
LONGEST_WAIT_SECONDS = 3600.0


class PlayerSettings(NamedTuple):
    """The settings that the process was launched with."""

    resume: str | None = None
    script: str | None = None
    model: str | None = None
    mode: str = "default"
    tools: list[str] | None = None
    deny: list[str] | tuple[str, ...] = ()
    system: str | None = None
    max_turns: int | None = None
    max_cost_usd: float | None = None


class InputQueue:
    """The input that was read and not answered yet."""

    def __init__(self, wire: InputReader, settings: PlayerSettings, memory: Memory) -> None:
        self.reader, self.settings, self.memory = wire, settings, memory
        self.offers: dict[str, str] = {}
        self.answers: dict[str, Args] = {}
        # The tools that need no approval any more.
        self.always: set[str] = set()
        self.self_turns: list[tuple[float, list[ScriptStep]]] = []
        self._interrupted: set[str] = set()
        self._queue: list[ScriptedTurn] = []
        self._seen: set[str] = set()
        self._numbers: dict[str, int] = {}

    def iter_turns(self) -> Iterator[ScriptedTurn]:
        """Yield the turns to play, until no more input can arrive."""
        while not self.reader.is_aborted:
            idle_since = time.monotonic()
            while not (turn := self._pop_turn(idle_since)) and not self.reader.is_aborted:
                if not self.reader.is_open:
                    return
                self.read_input(self._compute_wait(idle_since))
            if turn:
                yield turn

    def read_input(self, seconds: float | None) -> None:
        """Wait this long for input, and queue it."""
        for line in self.reader.read_lines(seconds):
            try:
                self._accept(decode_json(line))
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                print_frame("note", text=f"the scripted CLI cannot read its input: {error!r}")

    def must_end(self, turn: ScriptedTurn) -> bool:
        """Whether a turn was interrupted.

        A turn that the CLI began also ends if the turn that waits behind it was interrupted.
        """
        waiting = self._queue if turn.by == "self" else []
        interrupted = any(each.id in self._interrupted for each in (turn, *waiting))
        return self.reader.is_aborted or interrupted

    def make_id(self, kind: str) -> str:
        """Make a new id."""
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return f"{kind}-{self._numbers[kind]}"

    def return_offer(self, offer: str, reason: str) -> None:
        print_frame("returned", offer=offer, text=self.offers.pop(offer), reason=reason)

    def report_background(self) -> None:
        """Print how many turns the CLI will still begin."""
        print_frame("background", open=len(self.self_turns))

    def _accept(self, message: Args) -> None:
        match message["type"]:
            case "hello":
                print_frame("ready", token=self.memory.token)
            case "turn":
                self._accept_turn(message)
            case "steer" if self._is_new(message["id"]):
                self.offers[message["id"]] = message["text"]
            case "recall" if message["id"] in self.offers:
                self.return_offer(message["id"], "recalled")
            case "interrupt":
                self._interrupted.add(message["turn"])
            case "decide":
                self.answers[message["ask"]] = message
            case "steer" | "recall":
                pass  # a duplicate, or too late
            case other:
                raise ValueError(f"no such frame: {other}")

    def _accept_turn(self, message: Args) -> None:
        if self._is_new(message["key"]):
            images = tuple(message.get("images", ()))
            turn = ScriptedTurn(
                message["key"], "turn", message["text"], images, message.get("schema")
            )
            self._queue.append(turn)

    def _is_new(self, name: str) -> bool:
        is_new = name not in self._seen
        self._seen.add(name)
        return is_new

    def _pop_turn(self, idle_since: float) -> ScriptedTurn | None:
        if self._queue:  # an offer that arrives while a turn waits is meant for that turn
            return self._queue.pop(0)
        if self.offers:
            offer = next(iter(self.offers))
            return ScriptedTurn(offer, "offer", self.offers.pop(offer))
        if self._compute_wait(idle_since) == 0 and self.reader.is_open:
            turn = ScriptedTurn(self.make_id("self"), "self", steps=self.self_turns.pop(0)[1])
            self.report_background()
            return turn
        return None

    def _compute_wait(self, idle_since: float) -> float | None:
        """Compute the seconds until the CLI begins a turn; None to wait for input only."""
        if not self.self_turns:
            return None
        remaining = idle_since + self.self_turns[0][0] - time.monotonic()
        return min(max(remaining, 0.0), LONGEST_WAIT_SECONDS)
