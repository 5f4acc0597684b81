"""How does the scripted CLI speak? See docs/providers.md for its frames.

It needs nothing installed and asks no model: for demos, for documentation and for tests of
everything that stands above a Dialect.
"""

import sys
from datetime import UTC, datetime
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

SETTINGS = "scripted.json"
MEMORY = "scripted"
_SIGTERM = 15
_ENTRY = str(Path(child.__file__).with_name("__main__.py"))


class ScriptedOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`script` is a file of steps, JSON or TOML, for every prompt that is not a script itself."""

    script: str | None = None


class ScriptedState(Struct):
    """What was told and printed so far, as far as it matters for what comes."""

    is_ready: bool = False
    # The turn that is open: our key, the offer's id, or the child's name for its own.
    turn: str | None = None
    # A turn of its own that it began before it saw the one we had told it.
    prelude: str | None = None
    text: str | None = None
    offers: dict[str, str] = {}
    # The child's questions by the approval that was made of each.
    asks: dict[str, str] = {}
    # How many turns of its own are to come.
    background: int = 0


class Scripted:
    """The Dialect of the scripted CLI."""

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
        """An offer that is still open at a turn's end becomes the next turn, before any other."""
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
        told = TurnFrame(turn.key, turn.text, turn.images, turn.schema)
        return [_encode(f"begin:{turn.key}", told)]

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
            told = decode_input(frame.raw)
        except (ValueError, RecursionError):
            return []  # a recording may have what we would not say
        match told:
            case TurnFrame():
                return self._begin_turn(told.key, told.key)
            case SteerFrame():
                self._update_state(offers={**self.state.offers, told.id: told.text})
                return [ev.FollowupOffered(told.id, told.text)]
            case DecideFrame():
                return self._record_decision(told)
            case HelloFrame() | RecallFrame() | InterruptFrame():
                return []
            case other:
                assert_never(other)

    def receive(self, frame: Frame) -> list[DialectOutput]:
        try:
            said = decode_output(frame.raw)
        except (ValueError, RecursionError) as error:
            return [_keep_unknown(frame.raw, error)]
        match said:
            case TextFrame():
                self.state.text = said.text
                return [ev.TextFinal(said.text)]
            case ToolStartFrame() | ToolEndFrame() | AskFrame():
                return [self._on_tool_frame(said, frame)]
            case (
                ReadyFrame()
                | BeganFrame()
                | EndedFrame()
                | AbsorbedFrame()
                | ReturnedFrame()
                | BackgroundFrame()
            ):
                return self._on_turn_frame(said)
            case _:
                return [_to_event(said)]

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """What was offered and not taken in was lost with the process; the rest is the driver's."""
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

    def _record_decision(self, told: DecideFrame) -> list[DialectOutput]:
        approvals = [name for name, ask in self.state.asks.items() if ask == told.ask]
        asks = {name: ask for name, ask in self.state.asks.items() if ask != told.ask}
        self._update_state(asks=asks)
        verdict = "allow" if told.allow else "deny"
        return [ev.ApprovalResolved(name, verdict, by="user") for name in approvals]

    def _on_turn_frame(self, said: TurnOutput) -> list[DialectOutput]:
        match said:
            case ReadyFrame(token):
                self._update_state(is_ready=True)
                return [ev.TokenBound(token)] if token else []
            case BeganFrame():
                return self._on_began(said)
            case EndedFrame():
                return self._on_ended(said)
            case AbsorbedFrame() | ReturnedFrame():
                self._remove_offer(said.offer)
                return [_build_offer_event(said)]
            case BackgroundFrame(count):
                self._update_state(background=count)
                return []
            case other:
                assert_never(other)

    def _remove_offer(self, offer: str) -> None:
        offers = self.state.offers
        self._update_state(offers={each: offers[each] for each in offers if each != offer})

    def _on_began(self, said: BeganFrame) -> list[DialectOutput]:
        """Ours began when we told it; what it prints of that is news only in a recording."""
        if said.by == "offer":
            self._remove_offer(said.turn)
            own = ev.FollowupOwnTurn(said.turn, said.text or "")
            return [own, *self._begin_turn(said.turn, said.turn)]
        if said.by == "turn":
            self._update_state(text=None)
            return [] if said.turn == self.state.turn else self._begin_turn(said.turn, said.turn)
        if self.state.turn is None:
            return self._begin_turn(said.turn, None)
        self._update_state(prelude=said.turn)
        return [ev.Note(f"it had begun a turn of its own, {said.turn}, before it saw this one")]

    def _on_ended(self, said: EndedFrame) -> list[DialectOutput]:
        if said.turn == self.state.prelude:
            self._update_state(prelude=None)
            return [ev.Note(f"its own turn {said.turn} ended: {said.status}")]
        text = self.state.text if said.result is None else said.result
        self._update_state(turn=None, text=None, asks={})
        error = None if said.error is None else _to_error(said.error)
        return [TurnEnded(said.status, text, said.usage, _to_cost(said.cost_usd), error)]

    def _on_tool_frame(self, said: ToolOutput, frame: Frame) -> ev.Event:
        match said:
            case ToolStartFrame():
                return ev.ToolStarted(said.id, said.name, said.input)
            case ToolEndFrame():
                return _build_tool_end(said)
            case AskFrame():
                approval = str(frame.end)
                self._update_state(asks={**self.state.asks, approval: said.id})
                return ev.ApprovalRequested(approval, said.call, said.name, said.input, True)
            case other:
                assert_never(other)


def _build_offer_event(said: AbsorbedFrame | ReturnedFrame) -> ev.Event:
    if isinstance(said, AbsorbedFrame):
        return ev.FollowupAbsorbed(said.offer, said.text)
    return ev.FollowupReturned(said.offer, said.text, said.reason)


def _build_tool_end(said: ToolEndFrame) -> ev.Event:
    if said.error is None:
        return ev.ToolCompleted(said.id, said.name, said.input, said.output)
    return ev.ToolFailed(said.id, said.name, said.input, said.output, said.error)


def _encode(key: str, told: InputFrame) -> Send:
    return Send(key, msgspec.json.encode(told))


def _keep_unknown(raw: bytes, problem: Exception) -> ev.Unknown:
    """What is JSON, but not of ours, is kept; what is not even JSON is for the driver to keep."""
    if not isinstance(problem, msgspec.ValidationError):
        raise msgspec.DecodeError(str(problem)) from problem
    try:
        msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    return ev.Unknown(raw.decode())


def _to_event(said: FactOutput) -> ev.Event:
    match said:
        case UsageFrame():
            return ev.UsageUpdated(said.usage, _to_cost(said.cost_usd))
        case StatsFrame():
            return ev.StatsUpdated(**msgspec.structs.asdict(said))
        case ImageFrame():
            return ev.ImageProduced(said.name, said.media_type, said.size_bytes)
        case RetryingFrame():
            return ev.ProviderRetrying(said.attempt, said.delay_ms, said.reason)
        case _:
            return _to_text_event(said)


def _to_text_event(said: TextOutput | CompactionOutput) -> ev.Event:
    match said:
        case DeltaFrame(text):
            return ev.TextDelta(text)
        case ThinkingFrame(text):
            return ev.ThinkingDelta(text)
        case NoteFrame(text):
            return ev.Note(text)
        case CompactingFrame(trigger):
            return ev.CompactionStarted(trigger)
        case CompactedFrame():
            return _to_compaction_event(said)
        case other:
            assert_never(other)


def _to_compaction_event(said: CompactedFrame) -> ev.Event:
    if said.error is not None:
        return ev.CompactionFailed(said.error)
    return ev.CompactionCompleted(said.trigger, said.tokens_before, said.tokens_after)


def _to_cost(usd: float | None) -> Cost:
    return Cost() if usd is None else Cost(usd, "known")


def _to_error(said: ScriptedFailure) -> ErrorFact:
    at = _to_datetime(said.resets_at)
    return ErrorFact(said.code, said.message, said.hint, said.retryable, at)


def _to_datetime(epoch: float | None) -> datetime | None:
    """A script may name a time that no calendar has: then there is none."""
    try:
        return None if epoch is None else datetime.fromtimestamp(epoch, UTC)
    except (ValueError, OverflowError, OSError):
        return None
