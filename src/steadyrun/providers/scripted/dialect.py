"""Translates between steadyrun and the scripted CLI. See docs/providers.md for its frames.

The scripted CLI is part of steadyrun and asks no model. It serves demos, documentation, and tests
of the code above a Dialect.
"""

import sys
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
from steadyrun.providers.scripted import child
from steadyrun.providers.scripted.frames import (
    AbsorbedFrame,
    AskFrame,
    BackgroundFrame,
    BeganFrame,
    CompactedFrame,
    CompactingFrame,
    CompactionOutput,
    DecideFrame,
    DeltaFrame,
    EndedFrame,
    FactOutput,
    HelloFrame,
    ImageFrame,
    InputFrame,
    InterruptFrame,
    NoteFrame,
    ReadyFrame,
    RecallFrame,
    RetryingFrame,
    ReturnedFrame,
    ScriptedFailure,
    StatsFrame,
    SteerFrame,
    TextFrame,
    TextOutput,
    ThinkingFrame,
    ToolEndFrame,
    ToolOutput,
    ToolStartFrame,
    TurnFrame,
    TurnOutput,
    UsageFrame,
    decode_input,
    decode_output,
)
from steadyrun.providers.shared.epoch import to_datetime

SETTINGS = "scripted.json"
MEMORY = "scripted"
_SIGTERM = 15
_ENTRY = str(Path(child.__file__).with_name("__main__.py"))


class ScriptedOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`script` is a JSON or TOML file of steps, for every prompt that is not a script itself."""

    script: str | None = None


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
            files={SETTINGS: msgspec.json.encode(self._build_settings(request))},
            rungs=(Rung("will", 2.0), Rung("eof", 2.0), Rung("signal", 1.0, _SIGTERM)),
        )

    def _build_settings(self, request: LaunchRequest) -> JsonObject:
        return {
            "resume": request.resume,
            "script": self._options.script,
            "model": request.model,
            "mode": request.mode,
            "tools": request.tools,
            "deny": request.deny,
            "system": request.system,
            "max_turns": request.max_turns,
            "max_cost_usd": request.max_cost_usd,
        }

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
                return self._begin_turn(request.key, request.key)
            case SteerFrame():
                self._update_state(offers={**self.state.offers, request.id: request.text})
                return [ev.FollowupOffered(request.id, request.text)]
            case DecideFrame():
                return self._record_decision(request)
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
                return [self._on_tool_frame(output, frame)]
            case (
                ReadyFrame()
                | BeganFrame()
                | EndedFrame()
                | AbsorbedFrame()
                | ReturnedFrame()
                | BackgroundFrame()
            ):
                return self._on_turn_frame(output)
            case _:
                return [_to_event(output)]

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """Return the offers that were not read. The driver closes open tools and the turn."""
        offers = self.state.offers
        self._update_state(is_ready=False, offers={}, asks={}, background=0)
        return [
            ev.FollowupReturned(offer, text, "the process ended") for offer, text in offers.items()
        ]

    def _update_state(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self.state, name, value)

    def _begin_turn(self, turn: str, taken: str | None) -> list[DialectOutput]:
        self._update_state(turn=turn, text=None)
        return [TurnBegan(taken)]

    def _record_decision(self, request: DecideFrame) -> list[DialectOutput]:
        approvals = [name for name, ask in self.state.asks.items() if ask == request.ask]
        asks = {name: ask for name, ask in self.state.asks.items() if ask != request.ask}
        self._update_state(asks=asks)
        verdict = "allow" if request.allow else "deny"
        return [ev.ApprovalResolved(name, verdict, by="user") for name in approvals]

    def _on_turn_frame(self, output: TurnOutput) -> list[DialectOutput]:
        match output:
            case ReadyFrame(token):
                self._update_state(is_ready=True)
                return [ev.TokenBound(token)] if token else []
            case BeganFrame():
                return self._on_began(output)
            case EndedFrame():
                return self._on_ended(output)
            case AbsorbedFrame() | ReturnedFrame():
                self._remove_offer(output.offer)
                return [_build_offer_event(output)]
            case BackgroundFrame(count):
                self._update_state(background=count)
                return []
            case other:
                assert_never(other)

    def _remove_offer(self, offer: str) -> None:
        offers = self.state.offers
        self._update_state(offers={each: offers[each] for each in offers if each != offer})

    def _on_began(self, output: BeganFrame) -> list[DialectOutput]:
        """Handle the start of a turn. A turn that steadyrun began is already open."""
        if output.by == "offer":
            self._remove_offer(output.turn)
            own = ev.FollowupOwnTurn(output.turn, output.text or "")
            return [own, *self._begin_turn(output.turn, output.turn)]
        if output.by == "turn":
            self._update_state(text=None)
            return (
                [] if output.turn == self.state.turn else self._begin_turn(output.turn, output.turn)
            )
        if self.state.turn is None:
            return self._begin_turn(output.turn, None)
        self._update_state(prelude=output.turn)
        return [ev.Note(f"it had begun a turn of its own, {output.turn}, before it saw this one")]

    def _on_ended(self, output: EndedFrame) -> list[DialectOutput]:
        if output.turn == self.state.prelude:
            self._update_state(prelude=None)
            return [ev.Note(f"its own turn {output.turn} ended: {output.status}")]
        text = self.state.text if output.result is None else output.result
        self._update_state(turn=None, text=None, asks={})
        error = None if output.error is None else _to_error(output.error)
        return [TurnEnded(output.status, text, output.usage, _to_cost(output.cost_usd), error)]

    def _on_tool_frame(self, output: ToolOutput, frame: Frame) -> ev.Event:
        match output:
            case ToolStartFrame():
                return ev.ToolStarted(output.id, output.name, output.input)
            case ToolEndFrame():
                return _build_tool_end(output)
            case AskFrame():
                approval = str(frame.end)
                self._update_state(asks={**self.state.asks, approval: output.id})
                return ev.ApprovalRequested(approval, output.call, output.name, output.input, True)
            case other:
                assert_never(other)


def _build_offer_event(output: AbsorbedFrame | ReturnedFrame) -> ev.Event:
    if isinstance(output, AbsorbedFrame):
        return ev.FollowupAbsorbed(output.offer, output.text)
    return ev.FollowupReturned(output.offer, output.text, output.reason)


def _build_tool_end(output: ToolEndFrame) -> ev.Event:
    if output.error is None:
        return ev.ToolCompleted(output.id, output.name, output.input, output.output)
    return ev.ToolFailed(output.id, output.name, output.input, output.output, output.error)


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


def _to_event(output: FactOutput) -> ev.Event:
    match output:
        case UsageFrame():
            return ev.UsageUpdated(output.usage, _to_cost(output.cost_usd))
        case StatsFrame():
            return ev.StatsUpdated(**msgspec.structs.asdict(output))
        case ImageFrame():
            return ev.ImageProduced(output.name, output.media_type, output.size_bytes)
        case RetryingFrame():
            return ev.ProviderRetrying(output.attempt, output.delay_ms, output.reason)
        case _:
            return _to_text_event(output)


def _to_text_event(output: TextOutput | CompactionOutput) -> ev.Event:
    match output:
        case DeltaFrame(text):
            return ev.TextDelta(text)
        case ThinkingFrame(text):
            return ev.ThinkingDelta(text)
        case NoteFrame(text):
            return ev.Note(text)
        case CompactingFrame(trigger):
            return ev.CompactionStarted(trigger)
        case CompactedFrame():
            return _to_compaction_event(output)
        case other:
            assert_never(other)


def _to_compaction_event(output: CompactedFrame) -> ev.Event:
    if output.error is not None:
        return ev.CompactionFailed(output.error)
    return ev.CompactionCompleted(output.trigger, output.tokens_before, output.tokens_after)


def _to_cost(usd: float | None) -> Cost:
    return Cost() if usd is None else Cost(usd, "known")


def _to_error(output: ScriptedFailure) -> ErrorFact:
    at = to_datetime(output.resets_at)
    return ErrorFact(output.code, output.message, output.hint, output.retryable, at)
