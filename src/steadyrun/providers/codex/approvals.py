"""What does Codex ask us? Whether it may do something; all else is declined at once."""

from typing import Any

import msgspec

from steadyrun.dialect import DialectOutput
from steadyrun.lib.framing import Frame
from steadyrun.lib.jsonrpc import RpcRequest
from steadyrun.model import event as ev
from steadyrun.providers.codex import requests
from steadyrun.providers.codex.frames import ApprovalParams
from steadyrun.providers.codex.state import CodexApproval, CodexState


def on_server_request(state: CodexState, ask: RpcRequest, frame: Frame) -> list[DialectOutput]:
    """A question is an approval, or has its answer already."""
    decline = requests.build_decline(frame.end, ask.id, ask.method)
    try:
        params = ask.decode_params(ApprovalParams)
    except msgspec.DecodeError:
        return [decline, ev.Unknown.from_line(frame.raw)]
    tool = requests.TOOLS.get(ask.method) or _find_mcp_server(ask.method, params)
    if tool is not None:
        return [_record_approval(state, ask, params, tool, str(frame.end))]
    if ask.method == requests.USER_INPUT:
        return [decline, ev.Note(_format_questions(params.questions))]
    return [decline, ev.Unknown.from_line(frame.raw)]


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
    """That the agent wanted to know something, and was told that nobody answers."""
    listed = questions if isinstance(questions, list) else []
    words = [each.get("question") for each in listed if isinstance(each, dict)]
    known = " ".join(word for word in words if isinstance(word, str))
    return f"Codex wanted to ask a person, and nobody was asked: {known or 'it did not say what'}"


def _find_mcp_server(method: str, params: ApprovalParams) -> str | None:
    """The MCP server of which a tool is to be called; None if that is not the question."""
    match params.meta:
        case {"codex_approval_kind": "mcp_tool_call"} if method == requests.ELICITATION:
            return f"mcp__{params.server_name}"
        case _:
            return None


def _build_mcp_approval(
    state: CodexState, approval: str, server: str, params: ApprovalParams
) -> ev.ApprovalRequested:
    """Which of the server's tools is meant is told by its step, if there is one with the same
    input."""
    given = params.meta.get("tool_params")
    for call, tool in state.tools.items():
        is_its = tool.name.startswith(f"{server}__") and not tool.is_asked_for
        if is_its and msgspec.json.decode(tool.input) == given:
            tool.is_asked_for = True
            return ev.ApprovalRequested(approval, call, tool.name, given)
    return ev.ApprovalRequested(approval, None, server, given)


def _read_input(state: CodexState, params: ApprovalParams) -> Any:
    """What a question is about; of a change of files it is told by its step alone."""
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
