"""Builds the JSON-RPC lines that are written to Codex.

The id of a request is its key. So a reply can be matched to its request after a takeover.
"""

from typing import Any

import msgspec

from steadyrun.dialect import LaunchRequest, Offer, Send, Turn, Verdict
from steadyrun.lib.jsonrpc import METHOD_NOT_FOUND, RpcError, RpcId
from steadyrun.model.event import JsonObject
from steadyrun.providers.codex.launch import (
    CodexOptions,
    build_input,
    build_thread_params,
    build_turn_params,
)
from steadyrun.providers.codex.state import CodexApproval, CodexTurn

# The prefixes of keys; the turn's key, the offer's id or the mode follows.
BEGIN, EMPTY_TURN, OFFER, THREAD = "begin", "again", "offer", "thread"
_NAME = "steadyrun"
COMMAND, CHANGES, PERMISSIONS = (
    "item/commandExecution/requestApproval",
    "item/fileChange/requestApproval",
    "item/permissions/requestApproval",
)
ELICITATION = "mcpServer/elicitation/request"
USER_INPUT = "item/tool/requestUserInput"
# The tool that each of these requests is about.
TOOLS = {COMMAND: "commandExecution", CHANGES: "fileChange", PERMISSIONS: "permissions"}
# These can be allowed for the rest of the conversation.
LASTING = frozenset({COMMAND, CHANGES})
# The refusals of the other requests. Each method has its own form.
_REFUSALS: dict[str, JsonObject] = {
    ELICITATION: {"action": "decline", "content": None},
    USER_INPUT: {"answers": {}},
    "item/tool/call": {
        "contentItems": [{"type": "inputText", "text": "this is not supported"}],
        "success": False,
    },
    "applyPatchApproval": {"decision": {"denied": {"rejection": "this is not supported"}}},
    "execCommandApproval": {"decision": {"denied": {"rejection": "this is not supported"}}},
}


def build_open(request: LaunchRequest, options: CodexOptions) -> list[Send]:
    """Build the whole handshake at once, because Codex replies in order."""
    client = {"name": _NAME, "title": _NAME, "version": "1"}
    hello = {"clientInfo": client, "capabilities": {"experimentalApi": True}}
    params = build_thread_params(request, options)
    method = "thread/start"
    if request.resume is not None:
        method, params = "thread/resume", {**params, "threadId": request.resume}
        params["excludeTurns"] = True
    return [
        _build_request("open", "initialize", hello),
        _encode("initialized", {"method": "initialized"}),
        _build_request(f"{THREAD}:{request.turn.mode or request.mode}", method, params),
    ]


def build_turn(turn: Turn, thread: str, options: CodexOptions) -> Send:
    content = build_input(turn.text, turn.images)
    params = {"threadId": thread, "input": content, "clientUserMessageId": turn.key}
    return _build_request(
        f"{BEGIN}:{turn.key}", "turn/start", {**params, **build_turn_params(turn, options)}
    )


def build_empty_turn(offer: str, thread: str) -> Send:
    """Build a turn without input. Codex then answers the messages that it already has."""
    return _build_request(f"{EMPTY_TURN}:{offer}", "turn/start", {"threadId": thread, "input": []})


def build_offer(offer: Offer, thread: str, turn: str) -> Send:
    params = {
        "threadId": thread,
        "expectedTurnId": turn,
        "input": build_input(offer.text),
        "clientUserMessageId": offer.id,
    }
    return _build_request(f"{OFFER}:{offer.id}", "turn/steer", params)


def build_interrupt(turn: CodexTurn, thread: str) -> Send:
    """Build the interrupt. An empty id means the turn that is running."""
    key = f"interrupt:{turn.name}" if turn.id else f"interrupt:{turn.name}:early"
    return _build_request(key, "turn/interrupt", {"threadId": thread, "turnId": turn.id or ""})


def build_terminate(item: str, process: str, thread: str) -> Send:
    """Build the request that terminates a command of an interrupted turn."""
    params = {"threadId": thread, "processId": process}
    return _build_request(f"terminate:{item}", "thread/backgroundTerminals/terminate", params)


def build_decision(approval: str, ask: CodexApproval, verdict: Verdict) -> Send:
    """Build the answer to an approval.

    Codex cannot change the input of a tool. An answer with another input is a denial, because
    Codex would run the original input.
    """
    is_allowed = verdict.is_allowed and verdict.input is None
    if ask.method == PERMISSIONS:
        asked = msgspec.json.decode(ask.permissions or b"{}")
        answer: JsonObject = {"permissions": asked if is_allowed else {}, "scope": "turn"}
    elif ask.method == ELICITATION:
        answer = {"action": "accept" if is_allowed else "decline", "content": {}}
    elif is_allowed:
        answer = {"decision": "acceptForSession" if verdict.always else "accept"}
    else:
        answer = {"decision": "cancel" if verdict.ends_turn else "decline"}
    return _encode(f"decide:{approval}", {"id": ask.request, "result": answer})


def build_decline(place: int, request: RpcId, method: str) -> Send:
    """Build the refusal of a request. Without an answer, Codex would wait forever."""
    if method in _REFUSALS:
        answer: JsonObject = {"result": _REFUSALS[method]}
    else:
        answer = {"error": RpcError(METHOD_NOT_FOUND, "this is not supported")}
    return _encode(f"decline:{place}", {"id": request, **answer})


def is_allowing(answer: Any) -> bool:
    """Whether an answer to an approval allows the request."""
    match answer:
        case {"decision": str(word)}:
            return word.startswith("accept")
        case {"decision": {**words}}:
            return any(str(word).startswith(("accept", "apply")) for word in words)
        case {"permissions": {**some}}:
            return bool(some)
        case {"action": "accept"}:
            return True
        case _:
            return False


def _build_request(key: str, method: str, params: JsonObject) -> Send:
    return _encode(key, {"id": key, "method": method, "params": params})


def _encode(key: str, message: JsonObject) -> Send:
    """Encode a message without the member `jsonrpc`, which Codex leaves out, too."""
    return Send(key, msgspec.json.encode(message))
