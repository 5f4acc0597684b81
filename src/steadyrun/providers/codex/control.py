"""Tracks the requests that were written to Codex, until it replies."""

import msgspec

from steadyrun.dialect import DialectOutput
from steadyrun.lib.framing import Frame
from steadyrun.lib.jsonrpc import RpcFailure, RpcId, RpcRequest, RpcResponse
from steadyrun.model import event as ev
from steadyrun.providers.codex import errors, launch, offers, turns
from steadyrun.providers.codex.frames import SentParams, ThreadReply, TurnReply
from steadyrun.providers.codex.requests import EMPTY_TURN
from steadyrun.providers.codex.state import CodexPendingRequest, CodexState, CodexTurn

_THREADS = frozenset({"thread/start", "thread/resume"})


def record_request(state: CodexState, request: RpcRequest, frame: Frame) -> list[DialectOutput]:
    """Record a request that was written."""
    params = request.decode_params(SentParams)
    name = frame.key.partition(":")[2] or f"line{frame.number}"
    asked = CodexPendingRequest(request.method, name)
    state.asked[_encode_id(request.id)] = asked
    if frame.key.startswith(EMPTY_TURN):
        state.begin_turn(CodexTurn(name))
        return offers.begin_own_turn(state, name)
    if request.method in turns.MESSAGES:
        return turns.record_message(state, asked, params)
    if request.method in _THREADS:
        return _record_thread_request(state, name, params.thread_id)
    if request.method == "thread/compact/start":
        state.wants_compaction = True
    return []


def _record_thread_request(state: CodexState, mode: str, thread: str | None) -> list[DialectOutput]:
    """Record the request that starts or resumes a conversation in a mode."""
    if thread is not None:
        state.resumed, state.is_resumed = thread, True
    state.unsent_mode = next((each for each in launch.MODES if each == mode), None)
    return [ev.Note(launch.MODE_NOTES[mode])] if mode in launch.MODE_NOTES else []


def on_reply(state: CodexState, reply: RpcResponse, frame: Frame) -> list[DialectOutput]:
    """Handle the reply to a request."""
    asked = state.asked.pop(_encode_id(reply.id), None)
    if asked is None:
        return [ev.Unknown.from_line(frame.raw)]
    if asked.method in _THREADS:
        return _on_thread_reply(state, reply, frame)
    if asked.method == "turn/start":
        return _on_turn_reply(state, asked.name, reply)
    if asked.method == "turn/steer":
        return offers.accept_offer(state, asked.name)
    return []


def _on_turn_reply(state: CodexState, name: str, reply: RpcResponse) -> list[DialectOutput]:
    turn = state.turn
    if turn is None or turn.name != name:
        return []
    turn.id = reply.decode_result(TurnReply).turn.id
    return turns.bind_thread(state)


def _on_thread_reply(state: CodexState, reply: RpcResponse, frame: Frame) -> list[DialectOutput]:
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


def on_refusal(state: CodexState, reply: RpcFailure, frame: Frame) -> list[DialectOutput]:
    """Handle the refusal of a request."""
    why = reply.error.message
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
    return [ev.Note(f"{asked.method} was refused: {why}")]


def _encode_id(id_: RpcId) -> str:
    """Encode an id as JSON, because 1 and "1" are different ids."""
    return msgspec.json.encode(id_).decode()
