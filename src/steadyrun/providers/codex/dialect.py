"""Translates between steadyrun and Codex: its app server for many turns, and `exec` for one.

`codex app-server` speaks JSON-RPC without the version field on stdin and stdout. It sends
notifications about turns and their items, and requests for approvals. `codex exec --json` reads a
prompt, prints lines of JSON and exits.

`launch` builds the command line, `requests` the lines that are written, and `frames` defines what
is printed. The meaning of printed lines is in `turns`, `items`, `approvals`, `offers`, `usage` and
`exec`.
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
    TurnBegan,
    Verdict,
)
from steadyrun.lib import jsonrpc
from steadyrun.lib.framing import Frame
from steadyrun.lib.jsonrpc import RpcError, RpcFailure, RpcNotification, RpcRequest, RpcResponse
from steadyrun.model import event as ev
from steadyrun.model.policy import Rights
from steadyrun.providers.codex import (
    approvals,
    errors,
    items,
    launch,
    offers,
    requests,
    turns,
    usage,
)
from steadyrun.providers.codex import exec as codex_exec
from steadyrun.providers.codex.frames import (
    NOTIFICATIONS,
    SILENT_METHODS,
    DeltaNotification,
    ErrorNotification,
    HookNotification,
    ItemNotification,
    McpStatusNotification,
    RateLimitNotification,
    RerouteNotification,
    ResolvedNotification,
    SentParams,
    SummaryPartNotification,
    ThreadReply,
    TurnNotification,
    TurnReply,
    UsageNotification,
    WarningNotification,
    decode_exec_line,
    decode_loose_failure,
)
from steadyrun.providers.codex.launch import PROGRAM, CodexOptions
from steadyrun.providers.codex.state import CodexPendingRequest, CodexState, CodexTurn

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
_THREADS = frozenset({"thread/start", "thread/resume"})
# A message that begins a turn later. Steadyrun never sends it; a recording may contain it.
_QUEUE = "thread/queue/add"
_MESSAGES = frozenset({"turn/start", "turn/steer", _QUEUE})
_SILENT_PREFIXES = ("thread/realtime/", "windows")


class Codex:
    """The Dialect of Codex.

    The driver owns one instance for each process. At most one turn is open. A turn opens when its
    request was written or when Codex reports one, and closes with `turn/completed`, with a refusal
    or with the process. Methods named `_on_…` handle one kind of printed message.
    """

    name: ClassVar[str] = "codex"
    program: ClassVar[Program | None] = PROGRAM
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
        mode = turn.mode or self.state.untold_mode
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
    def _is_busy(self) -> bool:
        """Whether a message that is written now does not begin a turn."""
        waiting = [offer for offer in self.state.offers.values() if not offer.is_taken]
        return self.state.turn is not None or bool(waiting)

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
                    return self._record_request(message, frame)
                case RpcResponse():
                    answer = message.decode_result(Any)
                    return turns.on_decision(self.state, message.id, answer)
                case RpcFailure():
                    return turns.on_decision(self.state, message.id, None)
                case RpcNotification():
                    return []
        except msgspec.DecodeError:
            return []  # a recording may contain lines that steadyrun never writes

    def _record_request(self, request: RpcRequest, frame: Frame) -> list[DialectOutput]:
        state, params = self.state, request.decode_params(SentParams)
        name = frame.key.partition(":")[2] or f"line{frame.number}"
        asked = CodexPendingRequest(request.method, name)
        state.asked[_encode_id(request.id)] = asked
        if frame.key.startswith(requests.EMPTY_TURN):
            state.begin_turn(CodexTurn(name))
            return offers.begin_own_turn(state, name)
        if request.method in _MESSAGES:
            return self._record_message(asked, params)
        if request.method in _THREADS:
            return self._record_thread_request(name, params.thread_id)
        if request.method == "thread/compact/start":
            state.wants_compaction = True
        return []

    def _record_message(
        self, asked: CodexPendingRequest, params: SentParams
    ) -> list[DialectOutput]:
        """Begin a turn or record an offer.

        The lines of a recording have no keys. There, a message that was written during a turn is a
        follow-up.
        """
        state, is_elsewhere = self.state, self.state.is_other(params.thread_id)
        if is_elsewhere and state.turn:
            return turns.record_parallel_turn(state, params.thread_id or "")
        if asked.method == "turn/start" and (is_elsewhere or not self._is_busy):
            return self._begin_turn(asked.name, params)
        is_queued, asked.method = asked.method == _QUEUE, "turn/steer"
        return offers.record_offer(state, asked.name, params, is_queued=is_queued)

    def _begin_turn(self, name: str, params: SentParams) -> list[DialectOutput]:
        state, thread = self.state, params.thread_id
        state.begin_turn(CodexTurn(name))
        state.untold_mode = None
        state.model = params.model or state.model
        if thread is not None and state.is_other(thread):
            # The process continues with another conversation.
            state.thread, state.context_tokens = thread, None
            state.beside.discard(thread)
        return [*offers.absorb_taken(state), TurnBegan(name)]

    def _record_thread_request(self, mode: str, thread: str | None) -> list[DialectOutput]:
        """Record the request that starts or resumes a conversation in a mode."""
        if thread is not None:
            self.state.resumed, self.state.is_resumed = thread, True
        self.state.untold_mode = next((each for each in launch.MODES if each == mode), None)
        note = launch.find_mode_note(mode)
        return [ev.Note(note)] if note else []

    # -- messages that Codex printed

    def receive(self, frame: Frame) -> list[DialectOutput]:
        try:
            message = jsonrpc.decode(frame.raw)
        except msgspec.DecodeError:
            return self._on_other_line(frame)
        output = self._on_message(message, frame)
        # An unknown line does not prove that the program is Codex.
        self.state.has_spoken |= not any(isinstance(each, ev.Unknown) for each in output)
        return output

    def _on_message(self, message: jsonrpc.RpcMessage, frame: Frame) -> list[DialectOutput]:
        match message:
            case RpcNotification():
                return self._on_notification(message, frame)
            case RpcResponse():
                return self._on_reply(message, frame)
            case RpcFailure():
                return self._on_refusal(message, frame)
            case RpcRequest():
                return approvals.on_server_request(self.state, message, frame)

    def _on_other_line(self, frame: Frame) -> list[DialectOutput]:
        """Handle a line that is not JSON-RPC: a line of `exec`, or a malformed failure."""
        odd = decode_loose_failure(frame.raw)
        if odd is not None:
            error = RpcError(jsonrpc.INTERNAL_ERROR, str(odd.error))
            return [
                ev.Unknown.from_line(frame.raw),
                *self._on_refusal(RpcFailure(odd.id, error), frame),
            ]
        line = decode_exec_line(frame.raw)
        output = codex_exec.on_line(self.state, line, frame.end)
        if output is None:
            return [ev.Unknown.from_line(frame.raw)]
        self.state.has_spoken |= line.type != launch.RESUMED
        return (
            [ev.Unknown.from_line(frame.raw), *output] if codex_exec.is_unreadable(line) else output
        )

    def _on_notification(self, message: RpcNotification, frame: Frame) -> list[DialectOutput]:
        method = message.method
        if method in SILENT_METHODS:
            return []
        kind = NOTIFICATIONS.get(method)
        if kind is None:
            return [] if method.startswith(_SILENT_PREFIXES) else [ev.Unknown.from_line(frame.raw)]
        notification: Any = message.decode_params(kind)
        if self.state.is_other(getattr(notification, "thread_id", None)):
            kept = turns.on_parallel_notification(self.state, notification, frame)
            return [*kept, *usage.on_sub_agent_usage(self.state, notification)]
        return _keep_unknown(self._HANDLERS[kind](self, notification, method, frame), frame)

    def _on_turn(
        self, notification: TurnNotification, method: str, frame: Frame
    ) -> list[DialectOutput]:
        if method == "turn/started":
            return turns.on_turn_started(self.state, notification.turn, frame.end)
        kept = (
            [] if notification.turn.status in turns.STATUSES else [ev.Unknown.from_line(frame.raw)]
        )
        return [*kept, *turns.on_turn_completed(self.state, notification.turn)]

    def _on_item(
        self, notification: ItemNotification, method: str, _: Frame
    ) -> list[DialectOutput] | None:
        """Handle an item. Of a turn that has ended, only the ends of its tools are reported."""
        state, item = self.state, notification.item
        is_tool = item.id in state.tools
        if not is_tool and (state.turn is None or state.is_other(None, notification.turn_id)):
            return []
        step = items.on_item_started if method == "item/started" else items.on_item_completed
        return step(state, item)

    def _on_delta(
        self, notification: DeltaNotification, method: str, _: Frame
    ) -> list[DialectOutput]:
        state = self.state
        if state.turn is None or state.is_other(None, notification.turn_id):
            return []
        if method == "item/agentMessage/delta":
            return [ev.TextDelta(notification.delta)]
        return items.on_thinking_delta(state, notification)

    def _on_summary_part(
        self, notification: SummaryPartNotification, _: str, __: Frame
    ) -> list[DialectOutput]:
        return [ev.ThinkingDelta("\n\n")] if notification.summary_index and self.state.turn else []

    def _on_usage(self, notification: UsageNotification, _: str, __: Frame) -> list[DialectOutput]:
        return usage.on_usage(self.state, notification)

    def _on_rate_limits(
        self, notification: RateLimitNotification, _: str, __: Frame
    ) -> list[DialectOutput]:
        """Update the windows that are present. The others keep their values."""
        limits = notification.rate_limits
        for name, window in (("primary", limits.primary), ("secondary", limits.secondary)):
            if window is not None:
                prefix = "" if limits.limit_id in {None, "codex"} else f"{limits.limit_id} "
                self.state.windows[f"{prefix}{name}"] = window
        return []

    def _on_error(self, notification: ErrorNotification, _: str, __: Frame) -> list[DialectOutput]:
        turn = self.state.turn
        fact = errors.build_error(notification.error, self.state.windows.values())
        if turn is None or self.state.is_other(None, notification.turn_id):
            return [ev.Note(fact.message)]
        if not notification.will_retry:
            turn.error = fact
            return []
        turn.retry = fact
        turn.retries += 1
        heeded = offers.absorb_taken(self.state)
        return [*heeded, ev.ProviderRetrying(turn.retries, None, fact.code)]

    def _on_warning(
        self, notification: WarningNotification, _: str, __: Frame
    ) -> list[DialectOutput]:
        words = notification.message or notification.summary
        if not words or words in self.state.warnings:
            return []
        self.state.warnings.add(words)
        return [ev.Note(words)]

    def _on_reroute(
        self, notification: RerouteNotification, _: str, __: Frame
    ) -> list[DialectOutput]:
        self.state.model = notification.to_model
        note = ev.Note(f"{notification.to_model} answers in place of {notification.from_model}")
        return [note, ev.StatsUpdated(model=notification.to_model)]

    def _on_mcp_status(
        self, notification: McpStatusNotification, _: str, __: Frame
    ) -> list[DialectOutput]:
        if notification.status != "failed":
            return []
        return [ev.Note(f"the MCP server {notification.name} did not start: {notification.error}")]

    def _on_hook(self, notification: HookNotification, _: str, __: Frame) -> list[DialectOutput]:
        return turns.on_hook(self.state, notification)

    def _on_approval_withdrawn(
        self, notification: ResolvedNotification, _: str, __: Frame
    ) -> list[DialectOutput]:
        return turns.withdraw_approval(self.state, notification.request_id)

    _HANDLERS: ClassVar[dict[type[Struct], Callable[..., list[DialectOutput] | None]]] = {
        TurnNotification: _on_turn,
        ItemNotification: _on_item,
        DeltaNotification: _on_delta,
        SummaryPartNotification: _on_summary_part,
        UsageNotification: _on_usage,
        RateLimitNotification: _on_rate_limits,
        ErrorNotification: _on_error,
        WarningNotification: _on_warning,
        RerouteNotification: _on_reroute,
        McpStatusNotification: _on_mcp_status,
        HookNotification: _on_hook,
        ResolvedNotification: _on_approval_withdrawn,
    }

    # -- replies of Codex

    def _on_reply(self, reply: RpcResponse, frame: Frame) -> list[DialectOutput]:
        asked = self.state.asked.pop(_encode_id(reply.id), None)
        if asked is None:
            return [ev.Unknown.from_line(frame.raw)]
        if asked.method in _THREADS:
            return self._on_thread_reply(reply, frame)
        if asked.method == "turn/start":
            return self._on_turn_reply(asked.name, reply)
        if asked.method == "turn/steer":
            return offers.accept_offer(self.state, asked.name)
        return []

    def _on_turn_reply(self, name: str, reply: RpcResponse) -> list[DialectOutput]:
        turn = self.state.turn
        if turn is None or turn.name != name:
            return []
        turn.id = reply.decode_result(TurnReply).turn.id
        return turns.bind_thread(self.state)

    def _on_thread_reply(self, reply: RpcResponse, frame: Frame) -> list[DialectOutput]:
        state = self.state
        if state.thread is not None:
            return []
        try:
            opened = reply.decode_result(ThreadReply)
        except msgspec.DecodeError:
            why = "the answer of Codex could not be read"
            state.refused = errors.build_open_error(0, why, is_resumed=False)
            return [ev.Unknown.from_line(frame.raw)]
        state.thread = opened.thread.id
        state.model = opened.model if isinstance(opened.model, str) else None
        return []

    def _on_refusal(self, reply: RpcFailure, frame: Frame) -> list[DialectOutput]:
        state, why = self.state, reply.error.message
        asked = state.asked.pop(_encode_id(reply.id), None)
        if asked is None:
            return [ev.Unknown.from_line(frame.raw)]
        if asked.method in _THREADS:
            state.refused = errors.build_open_error(
                reply.error.code, why, is_resumed=asked.method == "thread/resume"
            )
        if asked.method == "turn/start" and state.turn and state.turn.name == asked.name:
            refused = state.refused if state.thread is None else None
            return turns.refuse_turn(state, refused or errors.build_refusal_error(reply.error))
        if asked.method == "turn/steer":
            return offers.return_offer(state, asked.name, why)
        return [ev.Note(f"{asked.method} was turned down: {why}")]

    def on_exit(self, last: ProcessExit) -> list[DialectOutput]:
        """Return the offers that were not read. The driver closes open tools and the turn."""
        state = self.state
        end = turns.end_from_exit(state, last)
        lost = offers.return_all(state)
        state.turn, state.asks, state.tools = None, {}, {}
        state.thread = state.refused = None
        return [*lost, end] if end else lost


def _keep_unknown(output: list[DialectOutput] | None, frame: Frame) -> list[DialectOutput]:
    """Return the events of a line, or keep the line if it is unknown."""
    return [ev.Unknown.from_line(frame.raw)] if output is None else output


def _encode_id(id_: jsonrpc.RpcId) -> str:
    """Encode an id as JSON, because 1 and "1" are different ids."""
    return msgspec.json.encode(id_).decode()
