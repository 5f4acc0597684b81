"""Tracks the approvals that Claude Code requests, from the request to the decision.

All other requests of Claude Code are declined.
"""

import msgspec

from steadyrun.dialect import DialectOutput
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.providers.claude import requests
from steadyrun.providers.claude.frames import (
    AnswerLine,
    PermissionCancelLine,
    PermissionRequestLine,
    decode_value,
)
from steadyrun.providers.claude.state import ClaudeApproval, ClaudeState


def on_permission_request(
    state: ClaudeState, line: PermissionRequestLine, frame: Frame
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
        approval, request.tool_use_id, request.tool_name, decode_value(given), rules is not None
    )
    return [asked]


def on_permission_cancelled(state: ClaudeState, line: PermissionCancelLine) -> list[DialectOutput]:
    """Resolve an approval that Claude Code withdrew."""
    return resolve_approval(state, line.request_id, "cancelled", "provider")


def record_decision(state: ClaudeState, line: AnswerLine) -> list[DialectOutput]:
    """Resolve the approval whose answer was written."""
    request, decision = line.response.request_id, line.response.response
    verdict = decision.behavior if decision else "deny"
    if decision and isinstance(decision.updated_input, msgspec.Raw):
        _change_input(state, request, bytes(decision.updated_input))
    return resolve_approval(state, request, verdict, "user")


def _change_input(state: ClaudeState, request: str, given: bytes) -> None:
    """Store the changed input, so that the tool's end reports the input it really had."""
    for ask in state.asks.values():
        if ask.request == request and ask.tool in state.tools:
            state.tools[ask.tool].input = given


def resolve_approval(
    state: ClaudeState, request: str, verdict: str, by: str
) -> list[DialectOutput]:
    """Resolve the approval of a request that was answered or cancelled."""
    approvals = [name for name, ask in state.asks.items() if ask.request == request]
    for name in approvals:
        del state.asks[name]
    return [ev.ApprovalResolved(name, verdict, by) for name in approvals]
