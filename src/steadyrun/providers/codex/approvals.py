"""Tracks the approvals that Codex requests, from the request to the decision.

All other requests from Codex are declined.
"""

from typing import Any

import msgspec

from steadyrun.dialect import DialectOutput
from steadyrun.lib.framing import Frame
from steadyrun.lib.jsonrpc import RpcId, RpcRequest
from steadyrun.model import event as ev
from steadyrun.providers.codex import requests
from steadyrun.providers.codex.frames import ApprovalParams, ResolvedNotification
from steadyrun.providers.codex.state import CodexApproval, CodexState
from steadyrun.providers.shared.approvals import resolve_approvals


def on_server_request(state: CodexState, ask: RpcRequest, frame: Frame) -> list[DialectOutput]:
    """Handle a request from Codex."""
    decline = requests.build_decline(frame.end, ask.id, ask.method)
    try:
        params = ask.decode_params(ApprovalParams)
    except msgspec.DecodeError:
        return [decline, ev.Unknown.from_line(frame.raw)]
    tool = requests.TOOLS.get(ask.method) or _find_mcp_server(ask.method, params)
    if tool is not None and _can_be_saved(ask.id):
        return [_record_approval(state, ask, params, tool, str(frame.end))]
    if ask.method == requests.USER_INPUT:
        return [decline, ev.Note(_format_questions(params.questions))]
    return [decline, ev.Unknown.from_line(frame.raw)]


def _can_be_saved(request: RpcId) -> bool:
    """Whether the id has at most 64 bits: an approval is part of the saved state."""
    return not isinstance(request, int) or -(2**63) <= request < 2**63


def on_withdrawn(state: CodexState, notification: ResolvedNotification) -> list[DialectOutput]:
    """Resolve an approval that Codex withdrew."""
    return _resolve(state, notification.request_id, "cancelled", "provider")


def record_decision(state: CodexState, request: RpcId, answer: Any) -> list[DialectOutput]:
    """Resolve the approval whose answer was written."""
    verdict = "allow" if requests.is_allowing(answer) else "deny"
    return _resolve(state, request, verdict, "user")


def _resolve(state: CodexState, request: RpcId, verdict: str, by: str) -> list[DialectOutput]:
    # The ids 1 and "1" are different, and 0 is an id.
    is_it = (type(request), request)
    return resolve_approvals(
        state.asks, lambda ask: (type(ask.request), ask.request) == is_it, verdict, by
    )


def _record_approval(
    state: CodexState, ask: RpcRequest, params: ApprovalParams, tool: str, approval: str
) -> ev.ApprovalRequested:
    asked_for = msgspec.json.encode(params.permissions or {})
    state.asks[approval] = CodexApproval(ask.id, ask.method, asked_for)
    if ask.method == requests.ELICITATION:
        return _build_mcp_approval(state, approval, tool, params)
    given, is_lasting = _read_input(state, params), ask.method in requests.LASTING
    return ev.ApprovalRequested(approval, params.item_id, tool, given, is_lasting)


def _format_questions(questions: Any) -> str:
    """Describe the questions of the agent, which were declined."""
    listed = questions if isinstance(questions, list) else []
    words = [each.get("question") for each in listed if isinstance(each, dict)]
    text = " ".join(word for word in words if isinstance(word, str))
    return f"a question from Codex to the user was declined: {text or 'it has no text'}"


def _find_mcp_server(method: str, params: ApprovalParams) -> str | None:
    """Find the MCP server whose tool needs approval; None for any other request."""
    match params.meta:
        case {"codex_approval_kind": "mcp_tool_call"} if method == requests.ELICITATION:
            return f"mcp__{params.server_name}"
        case _:
            return None


def _build_mcp_approval(
    state: CodexState, approval: str, server: str, params: ApprovalParams
) -> ev.ApprovalRequested:
    """Build the approval of an MCP tool.

    The request names only the server. The open tool of that server with the same input is meant.
    """
    given = params.meta.get("tool_params")
    for call, tool in state.tools.items():
        is_its = tool.name.startswith(f"{server}__") and not tool.is_asked_for
        if is_its and msgspec.json.decode(tool.input) == given:
            tool.is_asked_for = True
            return ev.ApprovalRequested(approval, call, tool.name, given)
    return ev.ApprovalRequested(approval, None, server, given)


def _read_input(state: CodexState, params: ApprovalParams) -> Any:
    """Read what needs approval. The changes of files are only in the item of the tool."""
    tool = state.tools.get(params.item_id or "")
    named = {
        "command": params.command,
        "cwd": params.cwd,
        "permissions": params.permissions,
        "reason": params.reason,
    }
    given = {name: value for name, value in named.items() if value is not None}
    before = msgspec.json.decode(tool.input) if tool else {}
    return {**before, **given} if isinstance(before, dict) else given
