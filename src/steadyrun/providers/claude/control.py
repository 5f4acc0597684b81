"""Tracks control requests in both directions, from the request to the reply.

Steadyrun requests changes and interrupts. Claude Code requests approvals; its other requests are
declined.
"""

import msgspec

from steadyrun.dialect import DialectOutput, TurnEnded
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.providers.claude import errors, frames, offers, requests
from steadyrun.providers.claude.state import ClaudeApproval, ClaudePendingRequest, ClaudeState
from steadyrun.providers.shared.approvals import resolve_approvals

# -- requests of steadyrun


def record_request(state: ClaudeState, line: frames.RequestLine) -> list[DialectOutput]:
    """Record a request that was written."""
    request = line.request
    asked = ClaudePendingRequest(request.subtype)
    match request.subtype:
        case "interrupt" if state.turn:
            state.turn.is_interrupted = True
        case "cancel_async_message":
            offered = state.offers.items()
            asked.offer = next((k for k, v in offered if v.uuid == request.message_uuid), None)
        case "set_model":
            state.wanted_model = request.model
        case "set_permission_mode":
            asked.mode = request.mode
        case _:
            pass
    state.asked[line.request_id] = asked
    return []


def on_reply(state: ClaudeState, line: frames.ReplyLine) -> list[DialectOutput]:
    """Handle the reply to a request."""
    reply = line.response
    asked = state.asked.pop(reply.request_id, None)
    if asked is None:
        return []
    if asked.subtype == "initialize":
        state.is_ready = True
    if reply.subtype == "error":
        return _on_refusal(state, asked, reply)
    state.mode = asked.mode or state.mode
    if asked.offer is None:
        return []
    answer = frames.decode_value(bytes(reply.response))
    is_cancelled = isinstance(answer, dict) and answer.get("cancelled") is True
    return offers.settle_recall(state, asked.offer, is_cancelled=is_cancelled)


def _on_refusal(
    state: ClaudeState, asked: ClaudePendingRequest, reply: frames.ControlReply
) -> list[DialectOutput]:
    """Forget the model or mode after a refusal, so that the next turn sets it again."""
    why = f"{asked.subtype} was refused: {reply.error}"
    if asked.subtype == "set_model":
        state.wanted_model = state.model = None
    elif asked.mode is not None:
        state.mode = None
        state.refused_turn = requests.parse_mode_turn(reply.request_id)
        if state.refused_turn is not None:
            return [TurnEnded("failed", error=errors.build_mode_error(why))]
    return [ev.Note(why)]


# -- requests of Claude Code


def on_permission_request(
    state: ClaudeState, line: frames.PermissionRequestLine, frame: Frame
) -> list[DialectOutput]:
    """Record the approval that a tool needs."""
    request = line.request
    if request.subtype != "can_use_tool":
        return [
            requests.build_decline(frame.end, line.request_id),
            ev.Unknown.from_line(frame.raw),
        ]
    approval, given = str(frame.end), bytes(request.input)
    state.asks[approval] = ClaudeApproval(
        line.request_id,
        given,
        tool=request.tool_use_id,
        is_sub_agent=request.agent_id is not None,
        rules=(rules := requests.build_session_rules(request.permission_suggestions)),
    )
    asked = ev.ApprovalRequested(
        approval,
        request.tool_use_id,
        request.tool_name,
        frames.decode_value(given),
        rules is not None,
    )
    return [asked]


def on_permission_cancelled(
    state: ClaudeState, line: frames.PermissionCancelLine
) -> list[DialectOutput]:
    """Resolve an approval that Claude Code withdrew."""
    return _resolve_approval(state, line.request_id, "cancelled", "provider")


def record_decision(state: ClaudeState, line: frames.AnswerLine) -> list[DialectOutput]:
    """Resolve the approval whose answer was written."""
    request, decision = line.response.request_id, line.response.response
    verdict = decision.behavior if decision else "deny"
    if decision and isinstance(decision.updated_input, msgspec.Raw):
        _change_input(state, request, bytes(decision.updated_input))
    return _resolve_approval(state, request, verdict, "user")


def _change_input(state: ClaudeState, request: str, given: bytes) -> None:
    """Store the changed input, so that the tool's end reports the input it really had."""
    for ask in state.asks.values():
        if ask.request == request and ask.tool in state.tools:
            state.tools[ask.tool].input = given


def _resolve_approval(
    state: ClaudeState, request: str, verdict: str, by: str
) -> list[DialectOutput]:
    return resolve_approvals(state.asks, lambda ask: ask.request == request, verdict, by)
