"""How does Claude Code speak? The Dialect of its stream of JSON, for many turns or for one.

`claude_launch` starts it, `claude_lines` is what is said to it and `claude_frames` what it prints;
what that means is in `claude_turn`, `claude_followups`, `claude_blocks` and `claude_system`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

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
    Send,
    Turn,
    TurnBegan,
    TurnEnded,
    Verdict,
)
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.policy import Rights
from steadyrun.providers.claude import content, errors, launch, notices, offers, requests, turns
from steadyrun.providers.claude.frames import (
    SILENT_TYPES,
    AnswerLine,
    AssistantLine,
    ClaudeOutput,
    ControlReply,
    EchoLine,
    PermissionCancelLine,
    PermissionRequestLine,
    RateLimitLine,
    ReplyLine,
    RequestLine,
    ResultLine,
    StreamLine,
    SystemLine,
    UserLine,
    decode_input,
    decode_kind,
    decode_output,
    decode_value,
    recover_result,
    repair_text,
)
from steadyrun.providers.claude.launch import MODES, PROGRAM, ClaudeOptions
from steadyrun.providers.claude.state import (
    ClaudeApproval,
    ClaudePendingRequest,
    ClaudeState,
    ClaudeTurn,
)

# What one turn can be asked for; a process for many turns can do all of it.
_ONE_SHOT_ABILITIES: frozenset[Ability] = frozenset(
    {"resume", "model", "modes", "tools", "system", "images", "schema", "max_turns"}
)
_ABILITIES: frozenset[Ability] = _ONE_SHOT_ABILITIES | {
    "steer", "recall", "interrupt", "multi_turn", "approvals", "change_input",
}  # fmt: skip


class Claude:
    """The Dialect of Claude Code."""

    name: ClassVar[str] = "claude"
    program: ClassVar[Program | None] = PROGRAM
    options_type: ClassVar[type[Struct]] = ClaudeOptions
    wall_seconds: float | None = None

    def __init__(self, options: ClaudeOptions | None = None) -> None:
        self._options = options or ClaudeOptions()
        is_one_shot = self._options.one_shot
        tells = frozenset[Ability]({"usage"} if self._options.include_partial_messages else ())
        self.abilities: frozenset[Ability] = (
            _ONE_SHOT_ABILITIES if is_one_shot else _ABILITIES
        ) | tells
        self.state = ClaudeState()
        if is_one_shot:
            self.state.begin_turn(ClaudeTurn("once"))

    @property
    def is_ready(self) -> bool:
        """What is queued becomes the next turn, before any other."""
        state = self.state
        is_busy = state.turn is not None or bool(state.offers) or state.is_running
        is_changing = any(asked.mode for asked in state.asked.values())
        return state.is_ready and not is_busy and not is_changing

    @property
    def has_background(self) -> bool:
        """A tool that takes long is a task, too, and nothing of its own while it is open."""
        state = self.state
        return any(tool not in state.tools for tool in state.tasks.values())

    def enforce(self, rights: Rights) -> EnforcedRights:
        return launch.enforce(rights, self._options)

    def launch(self, request: LaunchRequest) -> Launch:
        return launch.launch(request, self._options)

    # -- what is to be said

    def open(self, request: LaunchRequest) -> list[Send]:
        return [] if self._options.one_shot else [requests.build_open()]

    def begin(self, turn: Turn) -> list[Send]:
        """It may turn another mode down: the turn is told in the mode it is meant for, or never."""
        state = self.state
        if state.refused_turn == turn.key:
            return []
        mode = None if turn.mode is None else MODES.get(turn.mode)
        if mode is not None and mode != state.mode:
            return [requests.build_set_mode(turn.key, mode)]
        return [*self._change_model(turn), requests.build_turn(turn)]

    def _change_model(self, turn: Turn) -> list[Send]:
        """It would take any nonsense for a model."""
        state, model = self.state, turn.model
        if not model or not model.isprintable() or model == (state.wanted_model or state.model):
            return []
        return [requests.build_set_model(turn.key, model)]

    def steer(self, offer: Offer) -> Send | Refused:
        if self._options.one_shot:
            return Refused("a process for one turn cannot be steered")
        state = self.state
        if state.turn is None:
            return Refused("no turn is running")
        return requests.build_offer(offer, state.first_turn or state.turn.name)

    def recall(self, offer: str) -> Send | None:
        found = self.state.offers.get(offer)
        if found is None or found.uuid is None:
            return None
        return requests.build_recall(offer, found.uuid)

    def interrupt(self) -> Send | None:
        turn = self.state.turn
        if turn is None or self._options.one_shot:
            return None
        return requests.build_interrupt(turn.name)

    def decide(self, approval: str, verdict: Verdict) -> list[Send]:
        ask = self.state.asks.get(approval)
        return [requests.build_decision(approval, ask, verdict)] if ask else []

    # -- what was said

    def on_sent(self, frame: Frame) -> list[DialectOutput]:
        try:
            told = decode_input(frame.raw)
        except (ValueError, RecursionError):
            return []  # a recording may have what we would not say
        match told:
            case UserLine():
                return self._on_user_line(told, frame)
            case RequestLine():
                return self._record_request(told)
            case AnswerLine():
                return self._record_decision(told)
            case other:
                assert_never(other)

    def _on_user_line(self, told: UserLine, frame: Frame) -> list[DialectOutput]:
        """A recording has no keys: what is written while something is open is a follow-up."""
        kind, _, name = frame.key.partition(":")
        if kind == requests.BEGIN:
            return self._begin_turn(name, told)
        if kind == requests.OFFER:
            return offers.record_offer(self.state, name, told)
        name = told.uuid or f"line{frame.number}"
        # A turn that seems to be over is, if somebody goes on.
        before = turns.on_idle(self.state)
        if self.state.turn is not None or self.state.offers:
            return [*before, *offers.record_offer(self.state, name, told)]
        return [*before, *self._begin_turn(name, told)]

    def _begin_turn(self, name: str, told: UserLine) -> list[DialectOutput]:
        is_command = not told.should_query or offers.read_text(told).startswith("/")
        self.state.begin_turn(ClaudeTurn(name, told.uuid, is_told=True, is_command=is_command))
        return [TurnBegan(name)]

    def _record_request(self, told: RequestLine) -> list[DialectOutput]:
        state, request = self.state, told.request
        asked = ClaudePendingRequest(request.subtype)
        match request.subtype:
            case "interrupt" if state.turn:
                state.turn.is_interrupted = True
            case "cancel_async_message":
                offers = state.offers.items()
                asked.offer = next((k for k, v in offers if v.uuid == request.message_uuid), None)
            case "set_model":
                state.wanted_model = request.model
            case "set_permission_mode":
                asked.mode = request.mode
            case _:
                pass
        state.asked[told.request_id] = asked
        return []

    def _record_decision(self, told: AnswerLine) -> list[DialectOutput]:
        request, decision = told.response.request_id, told.response.response
        verdict = decision.behavior if decision else "deny"
        if decision and isinstance(decision.updated_input, msgspec.Raw):
            self._change_input(request, bytes(decision.updated_input))
        return turns.resolve_approval(self.state, request, verdict, "user")

    def _change_input(self, request: str, given: bytes) -> None:
        """Its end tells what the tool was called with, not what it was to be called with."""
        for ask in self.state.asks.values():
            if ask.request == request and ask.tool in self.state.tools:
                self.state.tools[ask.tool].input = given

    # -- what was printed

    def receive(self, frame: Frame) -> list[DialectOutput]:
        try:
            said = decode_output(frame.raw)
            self.state.has_spoken = True
            if type(said) is StreamLine:
                return content.on_stream_event(self.state, said)
            return self._HANDLERS[type(said)](self, said, frame)
        except msgspec.ValidationError:
            return self._on_invalid_line(frame)
        except (ValueError, RecursionError) as problem:
            raw = repair_text(frame.raw)
            if raw is None:
                raise msgspec.DecodeError(str(problem)) from problem
            return self.receive(replace(frame, raw=raw))

    def _on_invalid_line(self, frame: Frame) -> list[DialectOutput]:
        """It is JSON and not as we know it: kept, and nobody is left waiting for it."""
        try:
            kind = decode_kind(frame.raw)
        except (ValueError, RecursionError) as problem:
            raise msgspec.DecodeError(str(problem)) from problem
        unknown = ev.Unknown.from_line(frame.raw)
        match kind.type:
            case "result":
                return [unknown, *turns.on_invalid_result(self.state, recover_result(frame.raw))]
            case "control_request" if isinstance(kind.request_id, str):
                return [requests.build_decline(frame.end, kind.request_id), unknown]
            case str() as name if name in SILENT_TYPES:
                return []
            case _:
                return [unknown]

    def _on_assistant(self, said: AssistantLine, _: Frame) -> list[DialectOutput]:
        return content.on_assistant_message(self.state, said)

    def _on_echo(self, said: EchoLine, _: Frame) -> list[DialectOutput]:
        if said.is_replay:
            return offers.on_echo(self.state, said)
        return [] if said.is_synthetic else content.on_tool_results(self.state, said)

    def _on_system(self, said: SystemLine, frame: Frame) -> list[DialectOutput]:
        heard = notices.on_system_line(self.state, said.subtype, frame)
        return [ev.Unknown.from_line(frame.raw)] if heard is None else heard

    def _on_result(self, said: ResultLine, _: Frame) -> list[DialectOutput]:
        return turns.on_result(self.state, said)

    def _on_permission_request(
        self, said: PermissionRequestLine, frame: Frame
    ) -> list[DialectOutput]:
        request = said.request
        if request.subtype != "can_use_tool":
            return [
                requests.build_decline(frame.end, said.request_id),
                ev.Unknown.from_line(frame.raw),
            ]
        approval, given = str(frame.end), bytes(request.input)
        self.state.asks[approval] = ClaudeApproval(
            said.request_id,
            given,
            tool=request.tool_use_id,
            is_sub_agent=request.agent_id is not None,
            rules=(rules := requests.build_session_rules(request.permission_suggestions)),
        )
        asked = ev.ApprovalRequested(
            approval, request.tool_use_id, request.tool_name, decode_value(given), rules is not None
        )
        return [asked]

    def _on_permission_cancelled(self, said: PermissionCancelLine, _: Frame) -> list[DialectOutput]:
        return turns.resolve_approval(self.state, said.request_id, "cancelled", "provider")

    def _on_reply(self, said: ReplyLine, _: Frame) -> list[DialectOutput]:
        reply = said.response
        asked = self.state.asked.pop(reply.request_id, None)
        if asked is None:
            return []
        if asked.subtype == "initialize":
            self.state.is_ready = True
        if reply.subtype == "error":
            return self._on_refusal(asked, reply)
        self.state.mode = asked.mode or self.state.mode
        if asked.offer is None:
            return []
        answer = decode_value(bytes(reply.response))
        is_cancelled = isinstance(answer, dict) and answer.get("cancelled") is True
        return offers.settle_recall(self.state, asked.offer, is_cancelled=is_cancelled)

    def _on_refusal(self, asked: ClaudePendingRequest, reply: ControlReply) -> list[DialectOutput]:
        """Which model or mode it has now is not known then, and it will be told again."""
        state, why = self.state, f"{asked.subtype} was turned down: {reply.error}"
        if asked.subtype == "set_model":
            state.wanted_model = state.model = None
        elif asked.mode is not None:
            state.mode = None
            state.refused_turn = requests.parse_mode_turn(reply.request_id)
            if state.refused_turn is not None:
                return [TurnEnded("failed", error=errors.build_mode_error(why))]
        return [ev.Note(why)]

    def _on_rate_limit(self, said: RateLimitLine, _: Frame) -> list[DialectOutput]:
        info = said.info
        self.state.resets_at = info.resets_at if info.status == "rejected" else None
        if info.status in {"rejected", "allowed"}:
            return []
        used = "" if info.utilization is None else f", {info.utilization:.0%} used"
        return [ev.Note(f"limit {info.window}: {info.status}{used}{_format_reset(info.resets_at)}")]

    _HANDLERS: ClassVar[
        dict[type[ClaudeOutput], Callable[["Claude", Any, Frame], list[DialectOutput]]]
    ] = {
        AssistantLine: _on_assistant,
        EchoLine: _on_echo,
        SystemLine: _on_system,
        ResultLine: _on_result,
        PermissionRequestLine: _on_permission_request,
        PermissionCancelLine: _on_permission_cancelled,
        ReplyLine: _on_reply,
        RateLimitLine: _on_rate_limit,
    }

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """What was not taken in was lost with the process; most of the rest is the driver's."""
        state = self.state
        end = turns.end_from_exit(state, last)
        lost = offers.return_all(state)
        self.state = replace(
            state, is_ready=False, is_running=False, turn=None, asks={}, tasks={}, tools={}
        )
        return [*lost, end] if end else lost


def _format_reset(epoch: float | None) -> str:
    at = errors.to_datetime(epoch)
    return "" if at is None else f", until {at:%Y-%m-%d %H:%M} UTC"
