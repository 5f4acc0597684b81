"""Defines the lines that Claude Code reads and prints, with the fields that the Dialect uses.

Each line has a `type`; lines of type `system` also have a `subtype`. Most fields are optional. They
differ between versions, and a missing field must not make a line unreadable.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from steadyrun.providers.shared.numbers import StoredInteger, TokenCount


class _Line(Struct, frozen=True, tag_field="type"):
    """One line in either direction."""


# -- lines that are written


class UserMessage(Struct, frozen=True):
    role: str
    content: str | list[Any]


class UserLine(_Line, frozen=True, tag="user", omit_defaults=True):
    """A prompt or a follow-up. A line without `message` would end the process."""

    message: UserMessage
    uuid: str | None = None
    # Only recordings use these: `later` keeps a message out of the running turn, and a message
    # without a query is added to the conversation without an answer.
    priority: str | None = None
    should_query: bool = field(default=True, name="shouldQuery")


class ControlRequest(Struct, frozen=True, omit_defaults=True):
    subtype: str
    message_uuid: str | None = None
    model: str | None = None
    mode: str | None = None


class RequestLine(_Line, frozen=True, tag="control_request"):
    request_id: str
    request: ControlRequest


class Decision(Struct, frozen=True, omit_defaults=True):
    """The answer to a permission request."""

    behavior: str
    updated_input: Raw | UnsetType = field(default=UNSET, name="updatedInput")
    message: str | None = None
    interrupt: bool = False
    updated_permissions: Raw | UnsetType = field(default=UNSET, name="updatedPermissions")


class ControlAnswer(Struct, frozen=True, omit_defaults=True):
    subtype: str
    request_id: str
    response: Decision | None = None
    error: str | None = None


class AnswerLine(_Line, frozen=True, tag="control_response"):
    response: ControlAnswer


ClaudeInput = UserLine | RequestLine | AnswerLine

# -- lines that are printed


class StreamDelta(Struct, frozen=True, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""


class CallUsage(Struct, frozen=True, gc=False):
    """The tokens of one model call, or of a turn."""

    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    cache_read_input_tokens: TokenCount | None = None
    cache_creation_input_tokens: TokenCount | None = None


class StreamMessage(Struct, frozen=True, gc=False):
    id: str = ""
    model: str | None = None
    usage: CallUsage = CallUsage()


class StreamEvent(Struct, frozen=True, gc=False):
    """An event of the Messages API. Its type decides which fields are present."""

    type: str
    delta: StreamDelta | None = None
    message: StreamMessage | None = None
    usage: CallUsage | None = None


class StreamLine(_Line, frozen=True, tag="stream_event", gc=False):
    event: StreamEvent
    parent_tool_use_id: str | None = None


class ContentBlock(Struct, frozen=True):
    """A part of a message. Its type decides which fields are present."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: Raw = Raw(b"null")
    tool_use_id: str = ""
    content: Any = None
    is_error: bool | None = None


class AssistantMessage(Struct, frozen=True):
    content: list[ContentBlock]
    id: str = ""
    model: str = ""


class AssistantLine(_Line, frozen=True, tag="assistant"):
    message: AssistantMessage
    parent_tool_use_id: str | None = None
    error: str | None = None


class EchoMessage(Struct, frozen=True):
    content: str | list[ContentBlock]


class EchoLine(_Line, frozen=True, tag="user"):
    """Results of tools, the echo of written messages, or text from Claude Code to the model."""

    message: EchoMessage
    uuid: str | None = None
    # None for a message that is echoed before its turn begins, or whose turn never begins.
    timestamp: Any = None
    parent_tool_use_id: str | None = None
    is_replay: bool = field(default=False, name="isReplay")
    is_synthetic: bool = field(default=False, name="isSynthetic")


class SystemLine(_Line, frozen=True, tag="system"):
    subtype: str


class ModelUsage(Struct, frozen=True, rename="camel"):
    """The tokens of one model since the process started."""

    input_tokens: TokenCount = 0
    output_tokens: TokenCount = 0
    cache_read_input_tokens: TokenCount = 0
    cache_creation_input_tokens: TokenCount = 0
    context_window: TokenCount | None = None


class Origin(Struct, frozen=True):
    kind: str = "human"


class ResultLine(_Line, frozen=True, tag="result"):
    """The end of a turn. Costs and `model_usage` are totals of the whole process."""

    # Required: an end without it does not count as a success.
    is_error: bool
    subtype: str = ""
    session_id: str | None = None
    num_turns: StoredInteger | None = None
    result: str | None = None
    errors: list[Any] | None = None
    api_error_status: StoredInteger | None = None
    terminal_reason: str | None = None
    total_cost_usd: float | None = None
    usage: CallUsage | None = None
    model_usage: dict[str, ModelUsage] | None = field(default=None, name="modelUsage")
    origin: Origin | None = None
    user_message_uuid: str | None = None
    user_message_uuids: list[str] | None = None


class PermissionRequest(Struct, frozen=True):
    subtype: str
    tool_name: str = ""
    tool_use_id: str | None = None
    # The sub-agent that asks; None for the main agent.
    agent_id: str | None = None
    input: Raw = Raw(b"{}")
    # The rules that would always allow the tool.
    permission_suggestions: Any = None


class PermissionRequestLine(_Line, frozen=True, tag="control_request"):
    request_id: str
    request: PermissionRequest


class PermissionCancelLine(_Line, frozen=True, tag="control_cancel_request"):
    request_id: str


class ControlReply(Struct, frozen=True):
    request_id: str
    subtype: str = "success"
    response: Raw = Raw(b"null")
    error: str | None = None


class ReplyLine(_Line, frozen=True, tag="control_response"):
    response: ControlReply


class RateLimitInfo(Struct, frozen=True):
    status: str
    resets_at: float | None = field(default=None, name="resetsAt")
    window: str = field(default="", name="rateLimitType")
    utilization: float | None = None


class RateLimitLine(_Line, frozen=True, tag="rate_limit_event"):
    info: RateLimitInfo = field(name="rate_limit_info")


ClaudeOutput = (
    StreamLine | AssistantLine | EchoLine | SystemLine | ResultLine
    | PermissionRequestLine | PermissionCancelLine | ReplyLine | RateLimitLine
)  # fmt: skip

# -- lines that are printed with type `system`


class Init(Struct, frozen=True):
    """The beginning of a turn."""

    session_id: str
    model: str | None = None
    mode: str | None = field(default=None, name="permissionMode")


class StateChanged(Struct, frozen=True):
    state: str


class Status(Struct, frozen=True):
    status: str | None = None
    mode: str | None = field(default=None, name="permissionMode")
    compact_result: str | None = None
    compact_error: str | None = None


class CompactMetadata(Struct, frozen=True):
    trigger: str | None = None
    pre_tokens: StoredInteger | None = None
    post_tokens: StoredInteger | None = None


class CompactBoundary(Struct, frozen=True):
    metadata: CompactMetadata = field(default=CompactMetadata(), name="compact_metadata")


class ApiRetry(Struct, frozen=True):
    attempt: StoredInteger
    retry_delay_ms: float | None = None
    error: str = "unknown"


class ModelFallback(Struct, frozen=True):
    fallback_model: str
    content: str = ""


class TaskNotice(Struct, frozen=True):
    """A task started or ended."""

    task_id: str
    tool_use_id: str | None = None


class TaskPatch(Struct, frozen=True):
    status: str | None = None


class TaskUpdated(Struct, frozen=True):
    task_id: str
    patch: TaskPatch = TaskPatch()


class Task(Struct, frozen=True):
    task_id: str = ""
    id: str = ""
    tool_use_id: str | None = None


class TasksChanged(Struct, frozen=True):
    tasks: list[Task]


class Notice(Struct, frozen=True):
    """A text for people. The name of its field depends on the subtype."""

    content: str | None = None
    message: str | None = None
    text: str | None = None
    # A hook of the user ended the turn.
    prevent_continuation: bool = False


# Known lines that cause no event: progress, and messages for the user of a terminal.
SILENT_SUBTYPES = frozenset(
    {
        "thinking_tokens", "task_progress", "hook_started", "hook_progress", "hook_response",
        "commands_changed", "files_persisted", "elicitation_complete",
    }
)  # fmt: skip
SILENT_TYPES = frozenset(
    {
        "keep_alive", "tool_progress", "tool_use_summary", "auth_status", "prompt_suggestion",
        "conversation_reset", "files_persisted", "elicitation_complete", "command_lifecycle",
    }
)  # fmt: skip


class LineKind(Struct, frozen=True):
    """The fields that are read of a line that matches no frame."""

    type: Any = None
    request_id: Any = None


decode_input: Callable[[bytes], ClaudeInput] = msgspec.json.Decoder(ClaudeInput).decode
decode_output: Callable[[bytes], ClaudeOutput] = msgspec.json.Decoder(ClaudeOutput).decode
decode_kind: Callable[[bytes], LineKind] = msgspec.json.Decoder(LineKind).decode
decode_init: Callable[[bytes], Init] = msgspec.json.Decoder(Init).decode


class RecoveredResult(Struct, frozen=True):
    """The valid fields of an invalid result, and the names of the others.

    `line` is None if `is_error` is not among the valid fields.
    """

    line: ResultLine | None
    refused: frozenset[str]


def recover_result(raw: bytes) -> RecoveredResult:
    """Decode an invalid result: the end of a turn must not be lost for an invalid cost, or for too
    large a number of tokens."""
    raw_fields = msgspec.json.decode(raw, type=dict[str, Any])
    fitting: dict[str, Any] = {}
    refused: set[str] = set()
    for each in msgspec.structs.fields(ResultLine):
        if each.encode_name in raw_fields:
            try:
                fitting[each.name] = msgspec.convert(raw_fields[each.encode_name], each.type)
            except msgspec.ValidationError:
                refused.add(each.name)
    line = ResultLine(**fitting) if "is_error" in fitting else None
    return RecoveredResult(line, frozenset(refused))


def decode_value(raw: bytes) -> Any:
    """Decode a JSON value; return it as text if it cannot be decoded."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return bytes(raw).decode(errors="replace")


def compact_json(raw: bytes) -> str:
    """Remove the spaces between the parts of a JSON value."""
    with suppress(ValueError, RecursionError):
        raw = msgspec.json.format(raw, indent=-1)
    return raw.decode(errors="replace")


def repair_text(raw: bytes) -> bytes | None:
    """Replace invalid characters in a line; None if that is not the problem of the line.

    JavaScript may cut a text within a character, and prints the first half as an escape.
    """
    try:
        value = json.loads(raw.decode(errors="replace"))
        mended = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    except (ValueError, RecursionError):
        return None
    return None if mended == raw else mended
