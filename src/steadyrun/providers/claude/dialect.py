"""Translates between steadyrun and Claude Code's stream of JSON lines.

Claude Code reads user messages and control requests on stdin, one JSON object a line, and prints
its messages and results on stdout. One process runs many turns, or one turn with `one_shot`.

`launch` builds the command line, `requests` the lines that are written, and `frames` defines all
lines. The meaning of lines is in `turns`, `offers`, `content`, `control` and
`notices`.
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
    Verdict,
)
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.policy import Rights
from steadyrun.model.usage import USAGE_REFUSED
from steadyrun.providers.claude import (
    content,
    control,
    frames,
    launch,
    notices,
    offers,
    requests,
    turns,
)
from steadyrun.providers.claude.frames import ClaudeOutput
from steadyrun.providers.claude.launch import MODES, PROGRAM, ClaudeOptions
from steadyrun.providers.claude.state import ClaudeState, ClaudeTurn

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
    process.
    """

    name: ClassVar[str] = "claude"
    program: ClassVar[Program | None] = PROGRAM
    takes_parts = False
    options_type: ClassVar[type[Struct]] = ClaudeOptions
    wall_seconds: float | None = None

    def __init__(self, options: ClaudeOptions | None = None) -> None:
        self._options = options or ClaudeOptions()
        is_one_shot = self._options.one_shot
        self.abilities = _ONE_SHOT_ABILITIES if is_one_shot else _ABILITIES
        if self._options.include_partial_messages:
            self.abilities |= {"usage"}
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
        return [] if self._options.one_shot else [requests.build_request("open", "initialize")]

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
        return [requests.build_request(f"model:{turn.key}", "set_model", model=model)]

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
        return requests.build_request(
            f"recall:{offer}", "cancel_async_message", message_uuid=found.uuid
        )

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
            line = frames.decode_input(frame.raw)
        except (ValueError, RecursionError):
            return []  # a recording may contain lines that steadyrun never writes
        match line:
            case frames.UserLine():
                return turns.on_user_line(self.state, line, frame)
            case frames.RequestLine():
                return control.record_request(self.state, line)
            case frames.AnswerLine():
                return control.record_decision(self.state, line)
            case other:
                assert_never(other)

    # -- lines that Claude Code printed

    def receive(self, frame: Frame) -> list[DialectOutput]:
        try:
            line = frames.decode_output(frame.raw)
            self.state.has_spoken = True
            return _on_line(self.state, line, frame)
        except msgspec.ValidationError:
            return _on_invalid_line(self.state, frame)
        except (ValueError, RecursionError) as problem:
            raw = frames.repair_text(frame.raw)
            if raw is None:
                raise msgspec.DecodeError(str(problem)) from problem
            return self.receive(replace(frame, raw=raw))

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """Return the offers that were not read. The driver closes open tools and the turn."""
        state = self.state
        end = turns.end_from_exit(state, last)
        returned = offers.return_all(state)
        self.state = replace(
            state, is_ready=False, is_running=False, turn=None, asks={}, tasks={}, tools={}
        )
        return [*returned, end] if end else returned


def _on_line(state: ClaudeState, line: ClaudeOutput, frame: Frame) -> list[DialectOutput]:
    match line:
        case frames.StreamLine():
            return content.on_stream_event(state, line)
        case frames.SystemLine():
            return notices.on_system_line(state, line.subtype, frame)
        case frames.PermissionRequestLine():
            return control.on_permission_request(state, line, frame)
        case _:
            return _HANDLERS[type(line)](state, line)


# The handlers of all other lines.
_HANDLERS: dict[type[ClaudeOutput], Callable[[ClaudeState, Any], list[DialectOutput]]] = {
    frames.AssistantLine: content.on_assistant_message,
    frames.EchoLine: content.on_user_message,
    frames.ResultLine: turns.on_result,
    frames.PermissionCancelLine: control.on_permission_cancelled,
    frames.ReplyLine: control.on_reply,
    frames.RateLimitLine: notices.on_rate_limit,
}


_USAGE_FIELDS = frozenset({"usage", "model_usage", "total_cost_usd"})


def _on_invalid_line(state: ClaudeState, frame: Frame) -> list[DialectOutput]:
    """Keep a line of JSON that does not match its frame.

    A result still ends its turn, and a request is declined, because Claude Code waits for an
    answer.
    """
    try:
        kind = frames.decode_kind(frame.raw)
    except (ValueError, RecursionError) as problem:
        raise msgspec.DecodeError(str(problem)) from problem
    unknown = ev.Unknown.from_line(frame.raw)
    match kind.type:
        case "result":
            result = frames.recover_result(frame.raw)
            note = [] if _USAGE_FIELDS.isdisjoint(result.refused) else [ev.Note(USAGE_REFUSED)]
            return [unknown, *note, *turns.on_invalid_result(state, result.line)]
        case "control_request" if isinstance(kind.request_id, str):
            return [requests.build_decline(frame.end, kind.request_id), unknown]
        case str() as name if name in frames.SILENT_TYPES:
            return []
        case _:
            return [unknown]
