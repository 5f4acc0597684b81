"""What do the parts of a message say? Words, tools and their results, pictures.

A sub-agent's lines name the tool it runs in. Its tools are told like any; its words are between it
and the agent that has sent it.
"""

import base64
from typing import Any

from msgspec import Struct

from steadyrun.model import event as ev
from steadyrun.model.event import Event
from steadyrun.provider import Picture, Said
from steadyrun.providers import claude_counters, claude_followups
from steadyrun.providers.claude_frames import (
    AssistantLine,
    AssistantMessage,
    Block,
    EchoLine,
    StreamEvent,
    StreamLine,
    value_of,
)
from steadyrun.providers.claude_state import ClaudeState, OpenTool, OpenTurn

MOST_IMAGES = 10
LARGEST_IMAGE_CHARS = 25 * 1024 * 1024
_TOOL_USES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
# The model is not asked for these: Claude Code answers by itself.
_SYNTHETIC, _NO_WORDS = "<synthetic>", "(no content)"
_ENDINGS = {"image/jpeg": "jpg", "image/svg+xml": "svg"}


def streamed(state: ClaudeState, line: StreamLine) -> list[Said]:
    """A piece of an answer, as it comes."""
    if line.parent_tool_use_id is not None:
        return []
    event = line.event
    delta = event.delta
    if delta is not None:
        if delta.type == "text_delta":
            return [ev.TextDelta(delta.text)]
        if delta.type == "thinking_delta":
            return [ev.ThinkingDelta(delta.thinking)]
    return _called(state, event)


def _called(state: ClaudeState, event: StreamEvent) -> list[Said]:
    if event.message is not None:
        state.streaming = event.message.id
        if state.turn:
            claude_counters.call_begun(state.turn, event.message.usage)
    elif event.type == "message_delta" and event.usage is not None and state.turn:
        return [ev.UsageUpdated(claude_counters.call_ended(state.turn, event.usage))]
    return []


def spoken(state: ClaudeState, line: AssistantLine) -> list[Said]:
    """A part of an answer, whole."""
    if line.parent_tool_use_id is not None:
        return _sub_agent(state, line.message)
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
        claude_followups.note_spoken(state)
    said: list[Said] = []
    for block in line.message.content:
        said += _part(state, line.message, block)
    return said


def answered(state: ClaudeState, line: EchoLine) -> list[Said]:
    """Results of tools; the other words are for the model."""
    content = line.message.content
    if isinstance(content, str):
        return []
    is_own = line.parent_tool_use_id is None
    said: list[Said] = []
    for block in content:
        if block.type == "tool_result":
            said += _tool_end(state, block, is_own=is_own)
    return said


def _part(state: ClaudeState, message: AssistantMessage, block: Block) -> list[Said]:
    match block.type:
        case "text":
            return _text(state, message, block.text)
        case "thinking" if block.thinking and message.id != state.streaming:
            return [ev.ThinkingDelta(block.thinking)]
        case kind if kind in _TOOL_USES:
            return [_tool_start(state, block)]
        case kind if kind.endswith("_tool_result"):
            return _tool_end(state, block, is_own=True)
        case _:
            return []


def _text(state: ClaudeState, message: AssistantMessage, text: str) -> list[Said]:
    if not text or (message.model == _SYNTHETIC and text == _NO_WORDS):
        return []
    if state.turn:
        state.turn.text = text
    return [ev.TextFinal(text)]


def _sub_agent(state: ClaudeState, message: AssistantMessage) -> list[Said]:
    """One that outlives its turn is not told of: nobody would end what it begins."""
    if state.turn is None:
        return []
    return [_tool_start(state, block) for block in message.content if block.type in _TOOL_USES]


def _tool_start(state: ClaudeState, block: Block) -> Event:
    tool = OpenTool(block.name, bytes(block.input))
    state.tools[block.id] = tool
    return ev.ToolStarted(block.id, tool.name, value_of(tool.input))


def _tool_end(state: ClaudeState, block: Block, *, is_own: bool) -> list[Said]:
    call = block.tool_use_id
    tool = state.tools.pop(call, None)
    if tool is None and not (is_own and state.turn):
        return []
    name, given = (tool.name, value_of(tool.input)) if tool else ("unknown", None)
    output, seen = _seen(state.turn, block.content)
    if is_own and state.offers:
        claude_followups.note_boundary(state)
    if block.is_error:
        return [*seen, ev.ToolFailed(call, name, given, output, _words(output))]
    return [*seen, ev.ToolCompleted(call, name, given, output)]


def _words(output: Any) -> str:
    if isinstance(output, str):
        return output
    parts = output if isinstance(output, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str)) or "it failed"


# -- pictures


class _Picture(Struct, frozen=True):
    media_type: str
    data: str

    @property
    def key(self) -> str:
        return f"{self.media_type} {len(self.data)} {self.data[:64]}"

    @property
    def content(self) -> bytes:
        """The image itself; nothing, if it is none."""
        try:
            return base64.b64decode(f"{self.data}==")
        except ValueError:
            return b""


def _seen(turn: OpenTurn | None, content: Any) -> tuple[Any, list[Said]]:
    """A tool's output with the names of pictures in their place, and the new ones among them."""
    if not isinstance(content, list):
        return content, []
    said: list[Said] = []
    return [_named(turn, part, said) for part in content], said


def _named(turn: OpenTurn | None, part: Any, said: list[Said]) -> Any:
    picture = _picture(part)
    if picture is None:
        return part
    name = turn and turn.images.get(picture.key)
    if name is None and turn:
        name = _produced(turn, picture, said)
    return {"type": "image", "media_type": picture.media_type, "name": name}


def _produced(turn: OpenTurn, picture: _Picture, said: list[Said]) -> str | None:
    if len(turn.images) >= MOST_IMAGES or len(picture.data) > LARGEST_IMAGE_CHARS:
        if not turn.has_left_out_images:
            turn.has_left_out_images = True
            said.append(ev.Note("there are more images, or larger ones, than are told of"))
        return None
    kind = picture.media_type
    ending = _ENDINGS.get(kind, kind.removeprefix("image/"))
    name = f"image-{len(turn.images) + 1}.{ending}"
    turn.images[picture.key] = name
    said.append(Picture(name, kind, picture.content))
    return name


def _picture(part: Any) -> _Picture | None:
    """A picture is known by the shape of its block, whichever tool it comes from."""
    match part:
        case {
            "type": "image",
            "source": {"type": "base64", "media_type": str(kind), "data": str(data)},
        } if kind.startswith("image/"):
            return _Picture(kind, data)
        case _:
            return None
