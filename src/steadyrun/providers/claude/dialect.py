"""Translates between steadyrun and Claude Code's stream of JSON lines.

Claude Code reads user messages and control requests on stdin, one JSON object a line, and prints
its messages and results on stdout. One process runs many turns, or one turn with `one_shot`.

`launch` builds the command line, `requests` the lines that are written, and `frames` defines all
lines. The meaning of printed lines is in `turns`, `offers`, `content` and `notices`.
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
from steadyrun.providers.shared.epoch import to_datetime

# A process for many turns has all abilities of a process for one turn.
_ONE_SHOT_ABILITIES: frozenset[Ability] = frozenset(
    {"resume", "model", "modes", "tools", "system", "images", "schema", "max_turns"}
)
_ABILITIES: frozenset[Ability] = _ONE_SHOT_ABILITIES | {
    "steer", "recall", "interrupt", "multi_turn", "approvals", "change_input",
}  # fmt: skip


class Claude:
    """The Dialect of Claude Code.

    The driver owns one instance for each process. At most one turn is open. A turn opens when its
    line was written or when Claude Code prints an `init`, and closes with its `result` or with the
    process. Methods named `_on_…` handle one kind of printed line.
    """

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
        """Not while follow-ups are queued: they become the next turn, before any other."""
        state = self.state
        is_busy = state.turn is not None or bool(state.offers) or state.is_running
        is_changing = any(asked.mode for asked in state.asked.values())
        return state.is_ready and not is_busy and not is_changing

    @property
    def has_background(self) -> bool:
        """Claude Code also lists a slow tool as a task; that is not background work."""
        state = self.state
        return any(tool not in state.tools for tool in state.tasks.values())

    def enforce(self, rights: Rights) -> EnforcedRights:
        return launch.enforce(rights, self._options)

    def launch(self, request: LaunchRequest) -> Launch:
        return launch.launch(request, self._options)

    # -- lines to write

    def open(self, request: LaunchRequest) -> list[Send]:
        return [] if self._options.one_shot else [requests.build_open()]

    def begin(self, turn: Turn) -> list[Send]:
        """Change the mode first, because Claude Code may refuse it.

        A turn whose mode was refused is never sent.
        """
        state = self.state
        if state.refused_turn == turn.key:
            return []
        mode = None if turn.mode is None else MODES.get(turn.mode)
        if mode is not None and mode != state.mode:
            return [requests.build_set_mode(turn.key, mode)]
        return [*self._change_model(turn), requests.build_turn(turn)]

    def _change_model(self, turn: Turn) -> list[Send]:
        """Skip a model name that is not printable: Claude Code accepts any text as a model."""
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

    # -- lines that were written

    def on_sent(self, frame: Frame) -> list[DialectOutput]:
        try:
            line = decode_input(frame.raw)
        except (ValueError, RecursionError):
            return []  # a recording may contain lines that steadyrun never writes
        match line:
            case UserLine():
                return self._on_user_line(line, frame)
            case RequestLine():
                return self._record_request(line)
            case AnswerLine():
                return self._record_decision(line)
            case other:
                assert_never(other)

    def _on_user_line(self, line: UserLine, frame: Frame) -> list[DialectOutput]:
        """Begin a turn or record an offer.

        The lines of a recording have no keys. There, a line that was written during a turn is a
        follow-up.
        """
        kind, _, name = frame.key.partition(":")
        if kind == requests.BEGIN:
            return self._begin_turn(name, line)
        if kind == requests.OFFER:
            return offers.record_offer(self.state, name, line)
        name = line.uuid or f"line{frame.number}"
        # A turn with a doubtful end has ended if another message follows.
        before = turns.on_idle(self.state)
        if self.state.turn is not None or self.state.offers:
            return [*before, *offers.record_offer(self.state, name, line)]
        return [*before, *self._begin_turn(name, line)]

    def _begin_turn(self, name: str, line: UserLine) -> list[DialectOutput]:
        is_command = not line.should_query or offers.read_text(line).startswith("/")
        self.state.begin_turn(ClaudeTurn(name, line.uuid, is_told=True, is_command=is_command))
        return [TurnBegan(name)]

    def _record_request(self, line: RequestLine) -> list[DialectOutput]:
        state, request = self.state, line.request
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
        state.asked[line.request_id] = asked
        return []

    def _record_decision(self, line: AnswerLine) -> list[DialectOutput]:
        request, decision = line.response.request_id, line.response.response
        verdict = decision.behavior if decision else "deny"
        if decision and isinstance(decision.updated_input, msgspec.Raw):
            self._change_input(request, bytes(decision.updated_input))
        return turns.resolve_approval(self.state, request, verdict, "user")

    def _change_input(self, request: str, given: bytes) -> None:
        """Store the changed input, so that the tool's end reports the input it really had."""
        for ask in self.state.asks.values():
            if ask.request == request and ask.tool in self.state.tools:
                self.state.tools[ask.tool].input = given

    # -- lines that Claude Code printed

    def receive(self, frame: Frame) -> list[DialectOutput]:
        try:
            line = decode_output(frame.raw)
            self.state.has_spoken = True
            if type(line) is StreamLine:
                return content.on_stream_event(self.state, line)
            return self._HANDLERS[type(line)](self, line, frame)
        except msgspec.ValidationError:
            return self._on_invalid_line(frame)
        except (ValueError, RecursionError) as problem:
            raw = repair_text(frame.raw)
            if raw is None:
                raise msgspec.DecodeError(str(problem)) from problem
            return self.receive(replace(frame, raw=raw))

    def _on_invalid_line(self, frame: Frame) -> list[DialectOutput]:
        """Keep a line of JSON that does not match its frame.

        A result still ends its turn, and a request is declined, because Claude Code waits for an
        answer.
        """
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

    def _on_assistant(self, line: AssistantLine, _: Frame) -> list[DialectOutput]:
        return content.on_assistant_message(self.state, line)

    def _on_echo(self, line: EchoLine, _: Frame) -> list[DialectOutput]:
        if line.is_replay:
            return offers.on_echo(self.state, line)
        return [] if line.is_synthetic else content.on_tool_results(self.state, line)

    def _on_system(self, line: SystemLine, frame: Frame) -> list[DialectOutput]:
        output = notices.on_system_line(self.state, line.subtype, frame)
        return [ev.Unknown.from_line(frame.raw)] if output is None else output

    def _on_result(self, line: ResultLine, _: Frame) -> list[DialectOutput]:
        return turns.on_result(self.state, line)

    def _on_permission_request(
        self, line: PermissionRequestLine, frame: Frame
    ) -> list[DialectOutput]:
        request = line.request
        if request.subtype != "can_use_tool":
            return [
                requests.build_decline(frame.end, line.request_id),
                ev.Unknown.from_line(frame.raw),
            ]
        approval, given = str(frame.end), bytes(request.input)
        self.state.asks[approval] = ClaudeApproval(
            line.request_id,
            given,
            tool=request.tool_use_id,
            is_sub_agent=request.agent_id is not None,
            rules=(rules := requests.build_session_rules(request.permission_suggestions)),
        )
        asked = ev.ApprovalRequested(
            approval, request.tool_use_id, request.tool_name, decode_value(given), rules is not None
        )
        return [asked]

    def _on_permission_cancelled(self, line: PermissionCancelLine, _: Frame) -> list[DialectOutput]:
        return turns.resolve_approval(self.state, line.request_id, "cancelled", "provider")

    def _on_reply(self, line: ReplyLine, _: Frame) -> list[DialectOutput]:
        reply = line.response
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
        """Forget the model or mode after a refusal, so that the next turn sets it again."""
        state, why = self.state, f"{asked.subtype} was turned down: {reply.error}"
        if asked.subtype == "set_model":
            state.wanted_model = state.model = None
        elif asked.mode is not None:
            state.mode = None
            state.refused_turn = requests.parse_mode_turn(reply.request_id)
            if state.refused_turn is not None:
                return [TurnEnded("failed", error=errors.build_mode_error(why))]
        return [ev.Note(why)]

    def _on_rate_limit(self, line: RateLimitLine, _: Frame) -> list[DialectOutput]:
        info = line.info
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
        """Return the offers that were not read. The driver closes open tools and the turn."""
        state = self.state
        end = turns.end_from_exit(state, last)
        lost = offers.return_all(state)
        self.state = replace(
            state, is_ready=False, is_running=False, turn=None, asks={}, tasks={}, tools={}
        )
        return [*lost, end] if end else lost


def _format_reset(epoch: float | None) -> str:
    at = to_datetime(epoch)
    return "" if at is None else f", until {at:%Y-%m-%d %H:%M} UTC"
