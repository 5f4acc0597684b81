"""Tracks the control requests that were written to Claude Code, until it replies."""

from steadyrun.dialect import DialectOutput, TurnEnded
from steadyrun.model import event as ev
from steadyrun.providers.claude import errors, offers, requests
from steadyrun.providers.claude.frames import ControlReply, ReplyLine, RequestLine, decode_value
from steadyrun.providers.claude.state import ClaudePendingRequest, ClaudeState


def record_request(state: ClaudeState, line: RequestLine) -> list[DialectOutput]:
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


def on_reply(state: ClaudeState, line: ReplyLine) -> list[DialectOutput]:
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
    answer = decode_value(bytes(reply.response))
    is_cancelled = isinstance(answer, dict) and answer.get("cancelled") is True
    return offers.settle_recall(state, asked.offer, is_cancelled=is_cancelled)


def _on_refusal(
    state: ClaudeState, asked: ClaudePendingRequest, reply: ControlReply
) -> list[DialectOutput]:
    """Forget the model or mode after a refusal, so that the next turn sets it again."""
    why = f"{asked.subtype} was turned down: {reply.error}"
    if asked.subtype == "set_model":
        state.wanted_model = state.model = None
    elif asked.mode is not None:
        state.mode = None
        state.refused_turn = requests.parse_mode_turn(reply.request_id)
        if state.refused_turn is not None:
            return [TurnEnded("failed", error=errors.build_mode_error(why))]
    return [ev.Note(why)]
