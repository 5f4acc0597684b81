"""Translates between steadyrun and the scripted CLI. See docs/providers.md for its frames.

The scripted CLI is part of steadyrun and asks no model. It serves demos, documentation, and tests
of the code above a Dialect.

`frames` defines all frames. The meaning of printed frames is in `turns`, `tools` and `events`.
"""

import sys
from pathlib import Path
from typing import ClassVar, assert_never

import msgspec
from msgspec import Struct

from steadyrun.dialect import (
    Ability,
    DialectOutput,
    EnforcedRights,
    Launch,
    LaunchRequest,
    Offer,
    ProcessExit,
    Program,
    Refused,
    Rung,
    Send,
    Turn,
    Verdict,
)
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.event import JsonObject
from steadyrun.model.policy import Rights
from steadyrun.providers.scripted import child, tools, turns
from steadyrun.providers.scripted.events import to_event
from steadyrun.providers.scripted.frames import (
    AbsorbedFrame,
    AskFrame,
    BackgroundFrame,
    BeganFrame,
    DecideFrame,
    EndedFrame,
    HelloFrame,
    InputFrame,
    InterruptFrame,
    ReadyFrame,
    RecallFrame,
    ReturnedFrame,
    SteerFrame,
    TextFrame,
    ToolEndFrame,
    ToolStartFrame,
    TurnFrame,
    decode_input,
    decode_output,
)
from steadyrun.providers.scripted.state import ScriptedState

SETTINGS = "scripted.json"
MEMORY = "scripted"
_SIGTERM = 15
_ENTRY = str(Path(child.__file__).with_name("__main__.py"))


class ScriptedOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`script` is a JSON or TOML file of steps, for every prompt that is not a script itself."""

    script: str | None = None


class Scripted:
    """The Dialect of the scripted CLI.

    The driver owns one instance for each process. At most one turn is open: it opens when its frame
    was written or a `began` was printed, and closes with its `ended`.
    """

    name: ClassVar[str] = "scripted"
    program: ClassVar[Program | None] = None
    abilities: frozenset[Ability] = frozenset(
        {
            "resume", "steer", "recall", "interrupt", "multi_turn", "approvals", "model", "modes",
            "tools", "system", "images", "schema", "max_turns", "usage",
        }
    )  # fmt: skip
    options_type: ClassVar[type[Struct]] = ScriptedOptions
    wall_seconds: float | None = None

    def __init__(self, options: ScriptedOptions | None = None) -> None:
        self.state = ScriptedState()
        self._options = options or ScriptedOptions()

    @property
    def is_ready(self) -> bool:
        """Not while an offer is open: it becomes the next turn, before any other."""
        return self.state.is_ready and self.state.turn is None and not self.state.offers

    @property
    def has_background(self) -> bool:
        return self.state.background > 0

    def enforce(self, rights: Rights) -> EnforcedRights:
        return EnforcedRights(rights.mode)

    def launch(self, request: LaunchRequest) -> Launch:
        directory = Path(request.directory)
        command = request.command or (sys.executable, "-I", "-S", _ENTRY)
        memory = directory.parent.parent / MEMORY
        return Launch(
            argv=(*command, str(memory), str(directory / SETTINGS)),
            files={SETTINGS: msgspec.json.encode(_build_settings(request, self._options))},
            rungs=(Rung("will", 2.0), Rung("eof", 2.0), Rung("signal", 1.0, _SIGTERM)),
        )

    def open(self, request: LaunchRequest) -> list[Send]:
        return [_encode("open", HelloFrame())]

    def begin(self, turn: Turn) -> list[Send]:
        request = TurnFrame(turn.key, turn.text, turn.images, turn.schema)
        return [_encode(f"begin:{turn.key}", request)]

    def steer(self, offer: Offer) -> Send | Refused:
        if self.state.turn is None:
            return Refused("no turn is running")
        return _encode(f"offer:{offer.id}", SteerFrame(offer.id, offer.text))

    def recall(self, offer: str) -> Send | None:
        return (
            _encode(f"recall:{offer}", RecallFrame(offer)) if offer in self.state.offers else None
        )

    def interrupt(self) -> Send | None:
        turn = self.state.turn
        return None if turn is None else _encode(f"interrupt:{turn}", InterruptFrame(turn))

    def decide(self, approval: str, verdict: Verdict) -> list[Send]:
        ask = self.state.asks.get(approval)
        if ask is None:
            return []
        ends_turn = verdict.ends_turn and not verdict.is_allowed
        always = verdict.always and verdict.is_allowed
        decision = DecideFrame(ask, verdict.is_allowed, verdict.message, ends_turn, always)
        return [_encode(f"decide:{approval}", decision)]

    def on_sent(self, frame: Frame) -> list[DialectOutput]:
        try:
            request = decode_input(frame.raw)
        except (ValueError, RecursionError):
            return []  # a recording may contain lines that steadyrun never writes
        match request:
            case TurnFrame():
                return turns.begin_turn(self.state, request.key, request.key)
            case SteerFrame():
                return turns.record_offer(self.state, request)
            case DecideFrame():
                return tools.record_decision(self.state, request)
            case HelloFrame() | RecallFrame() | InterruptFrame():
                return []
            case other:
                assert_never(other)

    def receive(self, frame: Frame) -> list[DialectOutput]:
        try:
            output = decode_output(frame.raw)
        except (ValueError, RecursionError) as error:
            return [_keep_unknown(frame.raw, error)]
        match output:
            case TextFrame():
                self.state.text = output.text
                return [ev.TextFinal(output.text)]
            case ToolStartFrame() | ToolEndFrame() | AskFrame():
                return tools.on_tool_frame(self.state, output, frame)
            case (
                ReadyFrame()
                | BeganFrame()
                | EndedFrame()
                | AbsorbedFrame()
                | ReturnedFrame()
                | BackgroundFrame()
            ):
                return turns.on_turn_frame(self.state, output)
            case _:
                return [to_event(output)]

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """Return the offers that were not read. The driver closes open tools and the turn."""
        state = self.state
        state.is_ready, state.asks, state.background = False, {}, 0
        return turns.return_all(state)


def _build_settings(request: LaunchRequest, options: ScriptedOptions) -> JsonObject:
    return {
        "resume": request.resume,
        "script": options.script,
        "model": request.model,
        "mode": request.mode,
        "tools": request.tools,
        "deny": request.deny,
        "system": request.system,
        "max_turns": request.max_turns,
        "max_cost_usd": request.max_cost_usd,
    }


def _encode(key: str, request: InputFrame) -> Send:
    return Send(key, msgspec.json.encode(request))


def _keep_unknown(raw: bytes, problem: Exception) -> ev.Unknown:
    """Keep an unknown frame. Raise for a line that is not JSON, which the driver keeps."""
    if not isinstance(problem, msgspec.ValidationError):
        raise msgspec.DecodeError(str(problem)) from problem
    try:
        msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    return ev.Unknown(raw.decode())
