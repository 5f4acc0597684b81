"""Translates between steadyrun and the scripted CLI. See docs/providers.md for its frames.

The scripted CLI is part of steadyrun and asks no model. It serves demos, documentation, and tests
of the code above a Dialect.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, assert_never

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
    TurnBegan,
    TurnEnded,
    Verdict,
)
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact, JsonObject
from steadyrun.model.policy import Rights
from steadyrun.model.usage import Cost
from steadyrun.providers.scripted import child, frames
from steadyrun.providers.scripted.frames import (
    DecideFrame,
    HelloFrame,
    InputFrame,
    InterruptFrame,
    RecallFrame,
    SteerFrame,
    TurnFrame,
    decode_input,
    decode_output,
)
from steadyrun.providers.shared.approvals import resolve_approvals
from steadyrun.providers.shared.errors import to_datetime

SETTINGS = "scripted.json"
MEMORY = "scripted"
_SIGTERM = 15
_ENTRY = str(Path(child.__file__).with_name("__main__.py"))


class ScriptedOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`script` is a JSON or TOML file of steps, for every prompt that is not a script itself."""

    script: str | None = None


class ScriptedState(Struct):
    """Everything that the Dialect remembers of one process.

    It depends only on the lines that were written and printed. It is saved by its field names, so a
    field must not be renamed.
    """

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
    takes_parts = False
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
                return _begin_turn(self.state, request.key, request.key)
            case SteerFrame():
                self.state.offers[request.id] = request.text
                return [ev.FollowupOffered(request.id, request.text)]
            case DecideFrame():
                verdict = "allow" if request.allow else "deny"
                asks = self.state.asks
                return resolve_approvals(asks, lambda ask: ask == request.ask, verdict, by="user")
            case HelloFrame() | RecallFrame() | InterruptFrame():
                return []
            case other:
                assert_never(other)

    def receive(self, frame: Frame) -> list[DialectOutput]:
        try:
            output = decode_output(frame.raw)
        except (ValueError, RecursionError) as error:
            return [_keep_unknown(frame.raw, error)]
        if isinstance(output, frames.AskFrame):
            return _on_ask(self.state, output, str(frame.end))
        handle = _HANDLERS.get(type(output))
        return handle(self.state, output) if handle else [_TO_EVENT[type(output)](output)]

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """Return the offers that were not read. The driver closes open tools and the turn."""
        state = self.state
        offers, state.offers = state.offers, {}
        state.is_ready, state.asks, state.background = False, {}, 0
        return [ev.FollowupReturned(*offer, "the process ended") for offer in offers.items()]


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


def _begin_turn(state: ScriptedState, turn: str, taken: str | None) -> list[DialectOutput]:
    """Open a turn. `taken` is the key or the offer that it began with."""
    state.turn, state.text = turn, None
    return [TurnBegan(taken)]


# -- frames that change the state


def _on_ask(state: ScriptedState, output: frames.AskFrame, approval: str) -> list[DialectOutput]:
    state.asks[approval] = output.id
    return [ev.ApprovalRequested(approval, output.call, output.name, output.input, True)]


def _on_ready(state: ScriptedState, output: frames.ReadyFrame) -> list[DialectOutput]:
    state.is_ready = True
    return [ev.TokenBound(output.token)] if output.token else []


def _on_began(state: ScriptedState, output: frames.BeganFrame) -> list[DialectOutput]:
    """Handle the start of a turn. A turn that steadyrun began is already open."""
    if output.by == "offer":
        state.offers.pop(output.turn, None)
        own = ev.FollowupOwnTurn(output.turn, output.text or "")
        return [own, *_begin_turn(state, output.turn, output.turn)]
    if output.by == "turn":
        state.text = None
        return [] if output.turn == state.turn else _begin_turn(state, output.turn, output.turn)
    if state.turn is None:
        return _begin_turn(state, output.turn, None)
    state.prelude = output.turn
    return [ev.Note(f"it began its own turn {output.turn} before it read this one")]


def _on_ended(state: ScriptedState, output: frames.EndedFrame) -> list[DialectOutput]:
    if output.turn == state.prelude:
        state.prelude = None
        return [ev.Note(f"its own turn {output.turn} ended: {output.status}")]
    text = state.text if output.result is None else output.result
    state.turn, state.text, state.asks = None, None, {}
    error = None if output.error is None else _to_error(output.error)
    return [TurnEnded(output.status, text, output.usage, _to_cost(output.cost_usd), error)]


def _on_text(state: ScriptedState, output: frames.TextFrame) -> list[DialectOutput]:
    state.text = output.text
    return [ev.TextFinal(output.text)]


def _on_absorbed(state: ScriptedState, output: frames.AbsorbedFrame) -> list[DialectOutput]:
    state.offers.pop(output.offer, None)
    return [ev.FollowupAbsorbed(output.offer, output.text)]


def _on_returned(state: ScriptedState, output: frames.ReturnedFrame) -> list[DialectOutput]:
    state.offers.pop(output.offer, None)
    return [ev.FollowupReturned(output.offer, output.text, output.reason)]


def _on_background(state: ScriptedState, output: frames.BackgroundFrame) -> list[DialectOutput]:
    state.background = output.open
    return []


_HANDLERS: dict[type[Struct], Callable[[ScriptedState, Any], list[DialectOutput]]] = {
    frames.ReadyFrame: _on_ready,
    frames.BeganFrame: _on_began,
    frames.EndedFrame: _on_ended,
    frames.TextFrame: _on_text,
    frames.AbsorbedFrame: _on_absorbed,
    frames.ReturnedFrame: _on_returned,
    frames.BackgroundFrame: _on_background,
}

# -- frames that are events already


def _to_tool_end(output: frames.ToolEndFrame) -> ev.Event:
    if output.error is None:
        return ev.ToolCompleted(output.id, output.name, output.input, output.output)
    return ev.ToolFailed(output.id, output.name, output.input, output.output, output.error)


def _to_compaction_end(output: frames.CompactedFrame) -> ev.Event:
    if output.error is not None:
        return ev.CompactionFailed(output.error)
    return ev.CompactionCompleted(output.trigger, output.tokens_before, output.tokens_after)


def _to_cost(usd: float | None) -> Cost:
    return Cost() if usd is None else Cost(usd, "known")


def _to_error(output: frames.ScriptedFailure) -> ErrorFact:
    at = to_datetime(output.resets_at)
    return ErrorFact(output.code, output.message, output.hint, output.retryable, at)


_TO_EVENT: dict[type[Struct], Callable[[Any], ev.Event]] = {
    frames.DeltaFrame: lambda output: ev.TextDelta(output.text),
    frames.ThinkingFrame: lambda output: ev.ThinkingDelta(output.text),
    frames.NoteFrame: lambda output: ev.Note(output.text),
    frames.ToolStartFrame: lambda output: ev.ToolStarted(output.id, output.name, output.input),
    frames.ToolEndFrame: _to_tool_end,
    frames.CompactingFrame: lambda output: ev.CompactionStarted(output.trigger),
    frames.CompactedFrame: _to_compaction_end,
    frames.UsageFrame: lambda output: ev.UsageUpdated(output.usage, _to_cost(output.cost_usd)),
    frames.StatsFrame: lambda output: ev.StatsUpdated(**msgspec.structs.asdict(output)),
    frames.ImageFrame: lambda o: ev.ImageProduced(o.name, o.media_type, o.size_bytes),
    frames.RetryingFrame: lambda o: ev.ProviderRetrying(o.attempt, o.delay_ms, o.reason),
}
