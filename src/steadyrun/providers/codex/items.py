"""What do the steps of a turn say? Words, thoughts, tools and their results, compactions."""

from collections.abc import Callable
from typing import Any

import msgspec

from steadyrun.dialect import DialectOutput
from steadyrun.model import event as ev
from steadyrun.providers.codex import offers
from steadyrun.providers.codex.frames import Item, Piece, texts_in
from steadyrun.providers.codex.state import CodexState, OpenTool, OpenTurn
from steadyrun.providers.shared import images
from steadyrun.providers.shared.images import EncodedImage

_ANSWER, _ASIDE = "final_answer", "commentary"
_UNDRAWN = frozenset({"failed", "incomplete", "cancelled"})
# They are told elsewhere, or are nobody's business but Codex's.
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


def started(state: CodexState, item: Item) -> list[DialectOutput] | None:
    """A step has begun; None if it is not known."""
    if item.type in _STARTED:
        return _STARTED[item.type](state, item)
    if item.type in _TOOLS:
        return [*offers.heeded(state), *_tool_start(state, item)]
    if item.type in _COMPLETED:
        return offers.heeded(state)
    return [] if item.type in _SILENT else None


def completed(state: CodexState, item: Item) -> list[DialectOutput] | None:
    """A step has ended; None if it is not known."""
    if item.type in _TOOLS:
        return _tool_end(state, item)
    if item.type in _COMPLETED:
        return _COMPLETED[item.type](state, item)
    return [] if item.type in _SILENT or item.type in _STARTED else None


def is_known(item: Item) -> bool:
    """Whether a step is told of, or silent on purpose."""
    return any(item.type in kinds for kinds in (_TOOLS, _STARTED, _COMPLETED, _SILENT))


def thought(state: CodexState, piece: Piece) -> list[DialectOutput]:
    state.thoughts.add(piece.item_id)
    return [ev.ThinkingDelta(piece.delta)]


# -- words


def _text(state: CodexState, item: Item) -> list[DialectOutput]:
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


def _thoughts(state: CodexState, item: Item) -> list[DialectOutput]:
    """Thoughts that came in pieces were told."""
    if item.id in state.thoughts:
        state.thoughts.discard(item.id)
        return []
    parts = texts_in(item.summary) or texts_in(item.content)
    text = "\n\n".join(parts) or item.text
    return [ev.ThinkingDelta(text)] if text else []


def _planned(state: CodexState, item: Item) -> list[DialectOutput]:
    if state.turn and item.text:
        state.turn.plan = item.text
    return _noted(state, item)


def _noted(_: CodexState, item: Item) -> list[DialectOutput]:
    """A plan, or what `exec` calls an error and is a warning."""
    words = item.message or item.text
    return [ev.Note(words)] if words else []


# -- compactions


def _compaction(state: CodexState, _: Item) -> list[DialectOutput]:
    turn = state.turn
    if turn is None:
        return []
    turn.is_compacting, turn.compacted_tokens = True, state.context_tokens
    return [ev.CompactionStarted(_trigger(turn))]


def _compacted(state: CodexState, _: Item) -> list[DialectOutput]:
    turn = state.turn
    if turn is None:
        return []
    before, after = turn.compacted_tokens, state.context_tokens
    turn.is_compacting = False
    return [ev.CompactionCompleted(_trigger(turn), before, after)]


def _trigger(turn: OpenTurn) -> str:
    return "manual" if turn.is_compaction else "auto"


# -- tools


def _tool_start(state: CodexState, item: Item) -> list[DialectOutput]:
    """One that begins without a turn is not told of: nobody would end it."""
    if state.turn is None:
        return []
    name, given = _name(item), _input(item)
    state.tools[item.id] = OpenTool(name, msgspec.json.encode(given), item.process_id)
    return [ev.ToolStarted(item.id, name, given)]


def _tool_end(state: CodexState, item: Item) -> list[DialectOutput]:
    open_tool = state.tools.pop(item.id, None)
    if open_tool is None and state.turn is None:
        return []
    name, given = _name(item), _input(item)
    if open_tool and open_tool.is_cut_off:
        return [ev.Note(f"{name} {item.id} ended after its turn: {item.status}")]
    # Some are told of only when they have ended.
    first: list[DialectOutput] = [] if open_tool else [ev.ToolStarted(item.id, name, given)]
    output, seen = _output(state.turn, item)
    if (why := _failure(item)) is not None:
        return [*first, *seen, ev.ToolFailed(item.id, name, given, output, why)]
    return [*first, *seen, ev.ToolCompleted(item.id, name, given, output)]


def _failure(item: Item) -> str | None:
    """Why it failed; None if it did not."""
    if item.type == "imageGeneration":
        return _undrawn(item)
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


def _undrawn(item: Item) -> str | None:
    """Why there is no picture. Its status may be any word: only those that are known say no, and
    where there is a picture none does."""
    if item.failure:
        word = item.failure.get("type") if isinstance(item.failure, dict) else None
        return word if isinstance(word, str) and word else "failed"
    is_there = item.result or item.saved_path or item.file_id
    return item.status if item.status in _UNDRAWN and not is_there else None


def _output(turn: OpenTurn | None, item: Item) -> tuple[Any, list[DialectOutput]]:
    """What came of it, with the names of pictures in their place, and the new ones."""
    match item.type:
        case "commandExecution":
            return item.aggregated_output, []
        case "mcpToolCall":
            return _answered(turn, item.result if isinstance(item.result, dict) else {})
        case "dynamicToolCall":
            return _joined(*images.extract_images(turn, item.content_items))
        case "imageGeneration":
            return _drawn(turn, item)
        case _:
            # Of a web search; the others have none.
            return item.results, []


def _answered(turn: OpenTurn | None, result: dict[str, Any]) -> tuple[Any, list[DialectOutput]]:
    """What an MCP server has answered: for people, and for programs if that is something else."""
    output, said = _joined(*images.extract_images(turn, result.get("content")))
    data = result.get("structuredContent", result.get("structured_content"))
    if data is None or _is_same(output, data):
        return output, said
    return ({"content": output, "structured_content": data} if output else data), said


def _is_same(text: Any, data: Any) -> bool:
    try:
        return isinstance(text, str) and bool(msgspec.json.decode(text) == data)
    except (ValueError, RecursionError):
        return False


def _drawn(turn: OpenTurn | None, item: Item) -> tuple[Any, list[DialectOutput]]:
    """The name of a picture, or else where Codex has put it."""
    said: list[DialectOutput] = []
    name = None
    if turn and isinstance(item.result, str):
        name = images.produced(turn, EncodedImage("image/png", item.result), said)
    return name or _given("saved_path", "file_id")(item) or None, said


def _joined(content: Any, said: list[DialectOutput]) -> tuple[Any, list[DialectOutput]]:
    """Texts alone are one text."""
    texts = texts_in(content)
    is_text = isinstance(content, list) and len(texts) == len(content)
    return "\n".join(texts) if is_text and texts else content, said


def _name(item: Item) -> str:
    if item.type == "mcpToolCall":
        return f"mcp__{item.server}__{item.tool}"
    if item.type == "dynamicToolCall":
        return ".".join(str(part) for part in (item.namespace, item.tool) if part)
    return _TOOLS[item.type][0]


def _input(item: Item) -> Any:
    return _TOOLS[item.type][1](item)


def _given(*names: str) -> Callable[[Item], Any]:
    """The fields of an item, as far as they are there."""

    def given(item: Item) -> Any:
        found = {name: getattr(item, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    return given


# What the tools are called, and what they are called with.
_TOOLS: dict[str, tuple[str, Callable[[Item], Any]]] = {
    "commandExecution": ("commandExecution", _given("command", "cwd")),
    "fileChange": ("fileChange", _given("changes")),
    "mcpToolCall": ("mcp", lambda item: item.arguments),
    "dynamicToolCall": ("dynamic", lambda item: item.arguments),
    "collabAgentToolCall": ("agent", _given("tool", "prompt", "receiver_thread_ids")),
    "webSearch": ("webSearch", _given("query", "action")),
    "imageView": ("viewImage", _given("path")),
    "imageGeneration": ("imageGeneration", _given("revised_prompt")),
    "sleep": ("sleep", _given("duration_ms")),
}

_Step = Callable[[CodexState, Item], list[DialectOutput]]
_STARTED: dict[str, _Step] = {
    "userMessage": offers.shown,
    "contextCompaction": _compaction,
}
_COMPLETED: dict[str, _Step] = {
    "agentMessage": _text,
    "reasoning": _thoughts,
    "contextCompaction": _compacted,
    "plan": _planned,
    "error": _noted,
}
