"""Translates the parts of messages: text, thinking, tool calls, tool results and images.

Lines of a sub-agent name the tool call it runs in. Its tools are reported like any other tool. Its
text is not reported, because it is addressed to the main agent.
"""

from typing import Any

from steadyrun.dialect import DialectOutput
from steadyrun.model import event as ev
from steadyrun.model.event import Event
from steadyrun.model.usage import Usage
from steadyrun.providers.claude import frames, offers, usage
from steadyrun.providers.claude.state import ClaudeState, ClaudeTool
from steadyrun.providers.shared import images

_TOOL_USES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
# The model calls this built-in tool to answer with JSON that matches the schema.
_ANSWER = "StructuredOutput"
# Claude Code writes these messages itself, without the model.
_SYNTHETIC, _NO_CONTENT = "<synthetic>", "(no content)"


def on_stream_event(state: ClaudeState, line: frames.StreamLine) -> list[DialectOutput]:
    """Handle a piece of an answer while it is written."""
    if line.parent_tool_use_id is not None:
        return []
    event = line.event
    delta = event.delta
    if delta is not None:
        if delta.type == "text_delta":
            return [ev.TextDelta(delta.text)]
        if delta.type == "thinking_delta":
            return [ev.ThinkingDelta(delta.thinking)]
    return _track_model_call(state, event)


def _track_model_call(state: ClaudeState, event: frames.StreamEvent) -> list[DialectOutput]:
    if event.message is not None:
        state.streaming = event.message.id
        if state.turn:
            usage.begin_call(state.turn, event.message, state.model)
    elif event.type == "message_delta" and event.usage is not None and state.turn:
        spent = usage.end_call(state.turn, event.usage)
        return [ev.UsageUpdated(spent.usage or Usage(), spent.cost)]
    return []


def on_assistant_message(state: ClaudeState, line: frames.AssistantLine) -> list[DialectOutput]:
    """Handle a complete part of an answer."""
    if line.parent_tool_use_id is not None:
        return _start_sub_agent_tools(state, line.message)
    turn = state.turn
    if turn:
        turn.has_spoken, turn.doubtful_end = True, None
    if line.error is not None:
        if turn and turn.error is None:
            turn.error = line.error
        return []
    if turn:
        turn.retry = None
    if state.offers:
        offers.mark_taken(state)
    output: list[DialectOutput] = []
    for block in line.message.content:
        output += _decode_block(state, line.message, block)
    return output


def on_user_message(state: ClaudeState, line: frames.EchoLine) -> list[DialectOutput]:
    """Handle a message to the model: the echo of a written message, or the results of tools."""
    if line.is_replay:
        return offers.on_echo(state, line)
    return [] if line.is_synthetic else _on_tool_results(state, line)


def _on_tool_results(state: ClaudeState, line: frames.EchoLine) -> list[DialectOutput]:
    """Handle the results of tools. Other text in the line is for the model only."""
    content = line.message.content
    if isinstance(content, str):
        return []
    is_own = line.parent_tool_use_id is None
    output: list[DialectOutput] = []
    for block in content:
        if block.type == "tool_result":
            output += _end_tool(state, block, is_own=is_own)
    return output


def _decode_block(
    state: ClaudeState, message: frames.AssistantMessage, block: frames.ContentBlock
) -> list[DialectOutput]:
    match block.type:
        case "text":
            is_placeholder = message.model == _SYNTHETIC and block.text == _NO_CONTENT
            return [_record_text(state, block.text)] if block.text and not is_placeholder else []
        case "thinking" if block.thinking and message.id != state.streaming:
            return [ev.ThinkingDelta(block.thinking)]
        case kind if kind in _TOOL_USES:
            return _start_tool(state, block)
        case kind if kind.endswith("_tool_result"):
            return _end_tool(state, block, is_own=True)
        case _:
            return []


def _record_text(state: ClaudeState, text: str) -> Event:
    if state.turn:
        state.turn.text = text
    return ev.TextFinal(text)


def _start_sub_agent_tools(
    state: ClaudeState, message: frames.AssistantMessage
) -> list[DialectOutput]:
    """Report the tools of a sub-agent.

    Without an open turn they are not reported, because no turn would close them.
    """
    if state.turn is None:
        return []
    output: list[DialectOutput] = []
    for block in message.content:
        if block.type in _TOOL_USES and not _is_answer(block):
            output += _start_tool(state, block)
    return output


def _is_answer(block: frames.ContentBlock) -> bool:
    return block.type == "tool_use" and block.name == _ANSWER


def _start_tool(state: ClaudeState, block: frames.ContentBlock) -> list[DialectOutput]:
    tool = ClaudeTool(block.name, bytes(block.input), is_answer=_is_answer(block))
    state.tools[block.id] = tool
    if tool.is_answer:
        return [_record_text(state, frames.compact_json(tool.input))]
    return [ev.ToolStarted(block.id, tool.name, frames.decode_value(tool.input))]


def _end_tool(
    state: ClaudeState, block: frames.ContentBlock, *, is_own: bool
) -> list[DialectOutput]:
    call = block.tool_use_id
    tool = state.tools.pop(call, None)
    if tool is None and not (is_own and state.turn):
        return []
    if is_own and state.offers:
        offers.mark_boundary(state)
    if tool and tool.is_answer:
        return _end_answer(state, block)
    name, given = (tool.name, frames.decode_value(tool.input)) if tool else ("unknown", None)
    output, produced = images.extract_images(state.turn, block.content)
    if block.is_error:
        return [*produced, ev.ToolFailed(call, name, given, output, _extract_text(output))]
    return [*produced, ev.ToolCompleted(call, name, given, output)]


def _end_answer(state: ClaudeState, block: frames.ContentBlock) -> list[DialectOutput]:
    """Report an answer that does not match the schema.

    The model then answers again, unless the turn was interrupted.
    """
    if not block.is_error or (state.turn and state.turn.is_interrupted):
        return []
    return [ev.Note(f"the answer was refused: {_extract_text(block.content)}")]


def _extract_text(output: Any) -> str:
    if isinstance(output, str):
        return output
    parts = output if isinstance(output, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str)) or "it failed"
