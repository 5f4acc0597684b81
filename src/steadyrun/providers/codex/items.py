"""Translates the items of a turn: text, reasoning, tools and their results, compactions."""

from collections.abc import Callable
from typing import Any

import msgspec

from steadyrun.dialect import DialectOutput
from steadyrun.model import event as ev
from steadyrun.providers.codex import frames, offers
from steadyrun.providers.codex.frames import CodexItem, collect_texts
from steadyrun.providers.codex.state import CodexState, CodexTool, CodexTurn
from steadyrun.providers.shared import images
from steadyrun.providers.shared.images import EncodedImage

_ANSWER, _ASIDE = "final_answer", "commentary"
_FAILED_IMAGE_STATUSES = frozenset({"failed", "incomplete", "cancelled"})
# These items are reported in another way, or matter only inside Codex.
_SILENT = frozenset(
    {
        "enteredReviewMode",
        "exitedReviewMode",
        "functionCallOutput",
        "hookPrompt",
        "subAgentActivity",
        "todoList",
    }
)


def on_item_started(
    state: CodexState, notification: frames.ItemNotification
) -> list[DialectOutput] | None:
    """Handle the start of an item; None if its type is unknown."""
    return start_item(state, notification.item) if _is_reported(state, notification) else []


def on_item_completed(
    state: CodexState, notification: frames.ItemNotification
) -> list[DialectOutput] | None:
    """Handle the end of an item; None if its type is unknown."""
    return end_item(state, notification.item) if _is_reported(state, notification) else []


def _is_reported(state: CodexState, notification: frames.ItemNotification) -> bool:
    """Whether an item is reported. After the end of a turn, only the ends of its tools are."""
    return notification.item.id in state.tools or _is_open(state, notification.turn_id)


def _is_open(state: CodexState, turn: str | None) -> bool:
    """Whether a line belongs to the open turn."""
    return state.turn is not None and not state.is_other(None, turn)


def start_item(state: CodexState, item: CodexItem) -> list[DialectOutput] | None:
    """Start an item; None if its type is unknown."""
    if item.type in _STARTED:
        return _STARTED[item.type](state, item)
    if item.type in _TOOLS:
        return [*offers.absorb_taken(state), *_start_tool(state, item)]
    if item.type in _COMPLETED:
        return offers.absorb_taken(state)
    return [] if item.type in _SILENT else None


def end_item(state: CodexState, item: CodexItem) -> list[DialectOutput] | None:
    """End an item; None if its type is unknown."""
    if item.type in _TOOLS:
        return _end_tool(state, item)
    if item.type in _COMPLETED:
        return _COMPLETED[item.type](state, item)
    return [] if item.type in _SILENT or item.type in _STARTED else None


def is_known(item: CodexItem) -> bool:
    """Whether the type of an item is known."""
    return any(item.type in kinds for kinds in (_TOOLS, _STARTED, _COMPLETED, _SILENT))


def on_text_delta(state: CodexState, delta: frames.DeltaNotification) -> list[DialectOutput]:
    """Handle a piece of an answer while it is written."""
    return [ev.TextDelta(delta.delta)] if _is_open(state, delta.turn_id) else []


def on_thinking_delta(state: CodexState, delta: frames.DeltaNotification) -> list[DialectOutput]:
    """Handle a piece of reasoning while it is written."""
    if not _is_open(state, delta.turn_id):
        return []
    state.thoughts.add(delta.item_id)
    return [ev.ThinkingDelta(delta.delta)]


def on_summary_part(
    state: CodexState, notification: frames.SummaryPartNotification
) -> list[DialectOutput]:
    """Separate the parts of a summary of reasoning."""
    return [ev.ThinkingDelta("\n\n")] if notification.summary_index and state.turn else []


# -- text


def _on_agent_message(state: CodexState, item: CodexItem) -> list[DialectOutput]:
    turn, text = state.turn, item.text
    if turn is None or not text:
        return []
    if item.phase == _ANSWER:
        turn.answer = text
    elif item.phase == _ASIDE:
        turn.aside = text
    else:
        turn.text = text
    return [ev.TextFinal(text)]


def _on_reasoning(state: CodexState, item: CodexItem) -> list[DialectOutput]:
    """Report reasoning, unless it was streamed before."""
    if item.id in state.thoughts:
        state.thoughts.discard(item.id)
        return []
    parts = collect_texts(item.summary) or collect_texts(item.content)
    text = "\n\n".join(parts) or item.text
    return [ev.ThinkingDelta(text)] if text else []


def _on_plan(state: CodexState, item: CodexItem) -> list[DialectOutput]:
    if state.turn and item.text:
        state.turn.plan = item.text
    return _on_notice(state, item)


def _on_notice(_: CodexState, item: CodexItem) -> list[DialectOutput]:
    """Report a plan, or a warning, which `exec` calls an error."""
    words = item.message or item.text
    return [ev.Note(words)] if words else []


# -- compactions


def _on_compaction_started(state: CodexState, _: CodexItem) -> list[DialectOutput]:
    turn = state.turn
    if turn is None:
        return []
    turn.is_compacting, turn.compacted_tokens = True, state.context_tokens
    return [ev.CompactionStarted(_find_trigger(turn))]


def _on_compaction_completed(state: CodexState, _: CodexItem) -> list[DialectOutput]:
    turn = state.turn
    if turn is None:
        return []
    before, after = turn.compacted_tokens, state.context_tokens
    turn.is_compacting = False
    return [ev.CompactionCompleted(_find_trigger(turn), before, after)]


def _find_trigger(turn: CodexTurn) -> str:
    return "manual" if turn.is_compaction else "auto"


# -- tools


def _start_tool(state: CodexState, item: CodexItem) -> list[DialectOutput]:
    """Report a tool. Without an open turn it is skipped, because no turn would close it."""
    if state.turn is None:
        return []
    name, given = _find_tool_name(item), _read_input(item)
    state.tools[item.id] = CodexTool(name, msgspec.json.encode(given), item.process_id)
    return [ev.ToolStarted(item.id, name, given)]


def _end_tool(state: CodexState, item: CodexItem) -> list[DialectOutput]:
    open_tool = state.tools.pop(item.id, None)
    if open_tool is None and state.turn is None:
        return []
    name, given = _find_tool_name(item), _read_input(item)
    if open_tool and open_tool.is_cut_off:
        return [ev.Note(f"{name} {item.id} ended after its turn: {item.status}")]
    # Codex reports some tools only when they end.
    first: list[DialectOutput] = [] if open_tool else [ev.ToolStarted(item.id, name, given)]
    output, produced = _read_output(state.turn, item)
    if (why := _find_failure(item)) is not None:
        return [*first, *produced, ev.ToolFailed(item.id, name, given, output, why)]
    return [*first, *produced, ev.ToolCompleted(item.id, name, given, output)]


def _find_failure(item: CodexItem) -> str | None:
    """Return why a tool failed; None if it did not fail."""
    if item.type == "imageGeneration":
        return _find_image_failure(item)
    if (
        item.status in {None, "completed", "inProgress", "in_progress"}
        and item.success is not False
    ):
        return None
    if item.exit_code:
        return f"exit code {item.exit_code}"
    message = item.error.get("message") if isinstance(item.error, dict) else None
    if isinstance(message, str) and message:
        return message
    return "failed" if item.status in {None, "completed"} else str(item.status)


def _find_image_failure(item: CodexItem) -> str | None:
    """Return why there is no image; None if there is one.

    The status may be any word. Only known words mean a failure, and only without an image.
    """
    if item.failure:
        word = item.failure.get("type") if isinstance(item.failure, dict) else None
        return word if isinstance(word, str) and word else "failed"
    is_there = item.result or item.saved_path or item.file_id
    return item.status if item.status in _FAILED_IMAGE_STATUSES and not is_there else None


def _read_output(turn: CodexTurn | None, item: CodexItem) -> tuple[Any, list[DialectOutput]]:
    """Read the output of a tool, with names in place of images, and the new images."""
    match item.type:
        case "commandExecution":
            return item.aggregated_output, []
        case "mcpToolCall":
            return _read_mcp_result(turn, item.result if isinstance(item.result, dict) else {})
        case "dynamicToolCall":
            return _join_texts(*images.extract_images(turn, item.content_items))
        case "imageGeneration":
            return _read_image(turn, item)
        case _:
            # Only a web search has results.
            return item.results, []


def _read_mcp_result(
    turn: CodexTurn | None, result: dict[str, Any]
) -> tuple[Any, list[DialectOutput]]:
    """Read the result of an MCP tool: its text, and its structured content if that differs."""
    content, output = _join_texts(*images.extract_images(turn, result.get("content")))
    data = result.get("structuredContent", result.get("structured_content"))
    if data is None or _is_same(content, data):
        return content, output
    return ({"content": content, "structured_content": data} if content else data), output


def _is_same(text: Any, data: Any) -> bool:
    try:
        return isinstance(text, str) and bool(msgspec.json.decode(text) == data)
    except (ValueError, RecursionError):
        return False


def _read_image(turn: CodexTurn | None, item: CodexItem) -> tuple[Any, list[DialectOutput]]:
    """Return the name of a generated image, or else where Codex saved it."""
    output: list[DialectOutput] = []
    name = None
    if turn and isinstance(item.result, str):
        name = images.register_image(turn, EncodedImage("image/png", item.result), output)
    return name or _select_fields("saved_path", "file_id")(item) or None, output


def _join_texts(content: Any, output: list[DialectOutput]) -> tuple[Any, list[DialectOutput]]:
    """Join content that consists of texts only into one text."""
    texts = collect_texts(content)
    is_text = isinstance(content, list) and len(texts) == len(content)
    return "\n".join(texts) if is_text and texts else content, output


def _find_tool_name(item: CodexItem) -> str:
    if item.type == "mcpToolCall":
        return f"mcp__{item.server}__{item.tool}"
    if item.type == "dynamicToolCall":
        return ".".join(str(part) for part in (item.namespace, item.tool) if part)
    return _TOOLS[item.type][0]


def _read_input(item: CodexItem) -> Any:
    return _TOOLS[item.type][1](item)


def _select_fields(*names: str) -> Callable[[CodexItem], Any]:
    """Build a function that selects the fields of an item that are present."""

    def select(item: CodexItem) -> Any:
        found = {name: getattr(item, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    return select


# The name and the input of each tool.
_TOOLS: dict[str, tuple[str, Callable[[CodexItem], Any]]] = {
    "commandExecution": ("commandExecution", _select_fields("command", "cwd")),
    "fileChange": ("fileChange", _select_fields("changes")),
    "mcpToolCall": ("mcp", lambda item: item.arguments),
    "dynamicToolCall": ("dynamic", lambda item: item.arguments),
    "collabAgentToolCall": ("agent", _select_fields("tool", "prompt", "receiver_thread_ids")),
    "webSearch": ("webSearch", _select_fields("query", "action")),
    "imageView": ("viewImage", _select_fields("path")),
    "imageGeneration": ("imageGeneration", _select_fields("revised_prompt")),
    "sleep": ("sleep", _select_fields("duration_ms")),
}

_ItemHandler = Callable[[CodexState, CodexItem], list[DialectOutput]]
_STARTED: dict[str, _ItemHandler] = {
    "userMessage": offers.on_user_message,
    "contextCompaction": _on_compaction_started,
}
_COMPLETED: dict[str, _ItemHandler] = {
    "agentMessage": _on_agent_message,
    "reasoning": _on_reasoning,
    "contextCompaction": _on_compaction_completed,
    "plan": _on_plan,
    "error": _on_notice,
}
