"""Translates between steadyrun and Codex: its app server for many turns, and `exec` for one.

`codex app-server` speaks JSON-RPC without the version field on stdin and stdout. It sends
notifications about turns and their items, and requests for approvals. `codex exec --json` reads a
prompt, prints lines of JSON and exits.

`launch` builds the command line, `requests` the lines that are written, and `frames` defines what
is printed. The meaning of lines is in `turns`, `items`, `approvals`, `offers`, `usage`, `control`,
`notices` and `exec`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

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
from steadyrun.lib import jsonrpc
from steadyrun.lib.framing import Frame
from steadyrun.lib.jsonrpc import (
    RpcError,
    RpcFailure,
    RpcMessage,
    RpcNotification,
    RpcRequest,
    RpcResponse,
)
from steadyrun.model import event as ev
from steadyrun.model.policy import Rights
from steadyrun.model.usage import USAGE_REFUSED
from steadyrun.providers.codex import (
    approvals,
    control,
    frames,
    items,
    launch,
    notices,
    offers,
    requests,
    turns,
    usage,
)
from steadyrun.providers.codex import exec as codex_exec
from steadyrun.providers.codex.launch import PROGRAM, CodexOptions
from steadyrun.providers.codex.state import CodexState, CodexTurn

# A process for many turns has all abilities of a process for one turn.
_ONE_SHOT_ABILITIES: frozenset[Ability] = frozenset(
    {"resume", "model", "modes", "system", "images", "schema"}
)
_ABILITIES: frozenset[Ability] = _ONE_SHOT_ABILITIES | {
    "steer",
    "interrupt",
    "multi_turn",
    "approvals",
    "usage",
}
_SILENT_PREFIXES = ("thread/realtime/", "windows")


class Codex:
    """The Dialect of Codex.

    The driver owns one instance for each process. At most one turn is open. A turn opens when its
    request was written or when Codex reports one, and closes with `turn/completed`, with a refusal
    or with the process.
    """

    name: ClassVar[str] = "codex"
    program: ClassVar[Program | None] = PROGRAM
    takes_parts = False
    options_type: ClassVar[type[Struct]] = CodexOptions
    wall_seconds: float | None = None
    # Commands that still run after a turn never begin another turn.
    has_background = False

    def __init__(self, options: CodexOptions | None = None) -> None:
        self._options = options or CodexOptions()
        is_one_shot = self._options.one_shot
        self.abilities: frozenset[Ability] = _ONE_SHOT_ABILITIES if is_one_shot else _ABILITIES
        self.state = CodexState()
        if is_one_shot:
            self.state.begin_turn(CodexTurn("once"))

    @property
    def is_ready(self) -> bool:
        """Also if there is no conversation: Codex then refuses the turn, which ends it."""
        state = self.state
        is_there = state.thread is not None or state.refused is not None
        return is_there and state.turn is None and not state.offers

    def enforce(self, rights: Rights) -> EnforcedRights | Refused:
        return launch.enforce(rights, self._options)

    def launch(self, request: LaunchRequest) -> Launch:
        return launch.launch(request, self._options)

    # -- lines to write

    def open(self, request: LaunchRequest) -> list[Send]:
        return [] if self._options.one_shot else requests.build_open(request, self._options)

    def begin(self, turn: Turn) -> list[Send]:
        mode = turn.mode or self.state.unsent_mode
        return [requests.build_turn(replace(turn, mode=mode), self._thread, self._options)]

    def steer(self, offer: Offer) -> Send | Refused | None:
        if self._options.one_shot:
            return Refused("a process for one turn cannot be steered")
        turn = self.state.turn
        if turn is None:
            return Refused("no turn is running")
        if turn.is_compaction:
            return Refused("the conversation is being compacted")
        if turn.id is None:
            return None
        return requests.build_offer(offer, self._thread, turn.id)

    def recall(self, offer: str) -> None:
        return None

    def interrupt(self) -> Send | None:
        turn = self.state.turn
        if turn is None or self._options.one_shot:
            return None
        return requests.build_interrupt(turn, self._thread)

    def decide(self, approval: str, verdict: Verdict) -> list[Send]:
        ask = self.state.asks.get(approval)
        if ask is None:
            return []
        answer = requests.build_decision(approval, ask, verdict)
        ends_turn = not verdict.is_allowed and verdict.ends_turn
        # The answer to these requests cannot end the turn.
        has_none = ask.method in {requests.PERMISSIONS, requests.ELICITATION}
        end = self.interrupt() if ends_turn and has_none else None
        return [answer, end] if end else [answer]

    @property
    def _thread(self) -> str:
        """The conversation, or the requested one if it does not exist."""
        return self.state.thread or self.state.resumed or ""

    # -- lines that were written

    def on_sent(self, frame: Frame) -> list[DialectOutput]:
        try:
            message = jsonrpc.decode(frame.raw)
            match message:
                case RpcRequest():
                    return control.record_request(self.state, message, frame)
                case RpcResponse():
                    answer = message.decode_result(Any)
                    return approvals.record_decision(self.state, message.id, answer)
                case RpcFailure():
                    return approvals.record_decision(self.state, message.id, None)
                case RpcNotification():
                    return []
        except msgspec.DecodeError:
            return []  # a recording may contain lines that steadyrun never writes

    # -- messages that Codex printed

    def receive(self, frame: Frame) -> list[DialectOutput]:
        try:
            message = jsonrpc.decode(frame.raw)
        except msgspec.DecodeError:
            return _on_other_line(self.state, frame)
        output = self._receive_message(message, frame)
        # An unknown line does not prove that the program is Codex.
        self.state.has_spoken |= not any(isinstance(each, ev.Unknown) for each in output)
        return output

    def _receive_message(self, message: RpcMessage, frame: Frame) -> list[DialectOutput]:
        try:
            return _on_message(self.state, message, frame)
        except msgspec.ValidationError:
            if not isinstance(message, RpcNotification) or message.method != frames.USAGE:
                raise
            return [ev.Unknown.from_line(frame.raw), ev.Note(USAGE_REFUSED)]

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """Return the offers that were not read. The driver closes open tools and the turn."""
        state = self.state
        end = turns.end_from_exit(state, last)
        returned = offers.return_all(state)
        state.turn, state.asks, state.tools = None, {}, {}
        state.thread = state.refused = None
        return [*returned, end] if end else returned


def _on_message(state: CodexState, message: RpcMessage, frame: Frame) -> list[DialectOutput]:
    match message:
        case RpcNotification():
            return _on_notification(state, message, frame)
        case RpcResponse():
            return control.on_reply(state, message, frame)
        case RpcFailure():
            return control.on_refusal(state, message, frame)
        case RpcRequest():
            return approvals.on_server_request(state, message, frame)


def _on_notification(
    state: CodexState, message: RpcNotification, frame: Frame
) -> list[DialectOutput]:
    method = message.method
    if method in frames.SILENT_METHODS:
        return []
    kind = _TYPES.get(method)
    if kind is None:
        return [] if method.startswith(_SILENT_PREFIXES) else [ev.Unknown.from_line(frame.raw)]
    notification: Any = message.decode_params(kind)
    if state.is_other(getattr(notification, "thread_id", None)):
        kept = turns.on_parallel_notification(state, notification, frame)
        return [*kept, *usage.on_sub_agent_usage(state, notification)]
    if kind is frames.TurnNotification:
        return turns.on_turn(state, notification, method, frame)
    output = _HANDLERS[method][1](state, notification)
    return [ev.Unknown.from_line(frame.raw)] if output is None else output


# The type and the handler of each notification. A handler returns None for unknown content.
_NotificationHandler = Callable[[CodexState, Any], list[DialectOutput] | None]
_HANDLERS: dict[str, tuple[type[Struct], _NotificationHandler]] = {
    "item/started": (frames.ItemNotification, items.on_item_started),
    "item/completed": (frames.ItemNotification, items.on_item_completed),
    "item/agentMessage/delta": (frames.DeltaNotification, items.on_text_delta),
    "item/reasoning/summaryTextDelta": (frames.DeltaNotification, items.on_thinking_delta),
    "item/reasoning/textDelta": (frames.DeltaNotification, items.on_thinking_delta),
    "item/reasoning/summaryPartAdded": (frames.SummaryPartNotification, items.on_summary_part),
    frames.USAGE: (frames.UsageNotification, usage.on_usage),
    "account/rateLimits/updated": (frames.RateLimitNotification, usage.on_rate_limits),
    "error": (frames.ErrorNotification, notices.on_error),
    "warning": (frames.WarningNotification, notices.on_warning),
    "configWarning": (frames.WarningNotification, notices.on_warning),
    "guardianWarning": (frames.WarningNotification, notices.on_warning),
    "deprecationNotice": (frames.WarningNotification, notices.on_warning),
    "model/rerouted": (frames.RerouteNotification, notices.on_reroute),
    "mcpServer/startupStatus/updated": (frames.McpStatusNotification, notices.on_mcp_status),
    "hook/completed": (frames.HookNotification, turns.on_hook),
    "serverRequest/resolved": (frames.ResolvedNotification, approvals.on_withdrawn),
}
_TYPES: dict[str, type[Struct]] = {
    "turn/started": frames.TurnNotification,
    "turn/completed": frames.TurnNotification,
    **{method: kind for method, (kind, _) in _HANDLERS.items()},
}


def _on_other_line(state: CodexState, frame: Frame) -> list[DialectOutput]:
    """Handle a line that is not JSON-RPC: a line of `exec`, or a malformed failure."""
    odd = frames.decode_loose_failure(frame.raw)
    if odd is not None:
        error = RpcError(jsonrpc.INTERNAL_ERROR, str(odd.error))
        return [
            ev.Unknown.from_line(frame.raw),
            *control.on_refusal(state, RpcFailure(odd.id, error), frame),
        ]
    line = frames.decode_exec_line(frame.raw)
    output = codex_exec.on_line(state, line, frame.end)
    if output is None:
        return [ev.Unknown.from_line(frame.raw)]
    state.has_spoken |= line.type != launch.RESUMED
    return [ev.Unknown.from_line(frame.raw), *output] if codex_exec.is_unreadable(line) else output
