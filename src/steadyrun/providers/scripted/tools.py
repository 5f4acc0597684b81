"""Handles the tools of a turn and their approvals."""

from typing import assert_never

from steadyrun.dialect import DialectOutput
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.providers.scripted.frames import (
    AskFrame,
    DecideFrame,
    ToolEndFrame,
    ToolOutput,
    ToolStartFrame,
)
from steadyrun.providers.scripted.state import ScriptedState


def record_decision(state: ScriptedState, request: DecideFrame) -> list[DialectOutput]:
    """Resolve the approval that was answered."""
    approvals = [name for name, ask in state.asks.items() if ask == request.ask]
    state.asks = {name: ask for name, ask in state.asks.items() if ask != request.ask}
    verdict = "allow" if request.allow else "deny"
    return [ev.ApprovalResolved(name, verdict, by="user") for name in approvals]


def on_tool_frame(state: ScriptedState, output: ToolOutput, frame: Frame) -> list[DialectOutput]:
    """Handle the start or the end of a tool, or a request for approval."""
    match output:
        case ToolStartFrame():
            return [ev.ToolStarted(output.id, output.name, output.input)]
        case ToolEndFrame():
            return [_build_tool_end(output)]
        case AskFrame():
            approval = str(frame.end)
            state.asks = {**state.asks, approval: output.id}
            return [ev.ApprovalRequested(approval, output.call, output.name, output.input, True)]
        case other:
            assert_never(other)


def _build_tool_end(output: ToolEndFrame) -> ev.Event:
    if output.error is None:
        return ev.ToolCompleted(output.id, output.name, output.input, output.output)
    return ev.ToolFailed(output.id, output.name, output.input, output.output, output.error)
