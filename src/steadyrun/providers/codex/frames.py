"""What does Codex print? Notifications of its app server, and the lines of `codex exec --json`.

Only what is used is named here, and what is not needed to go on may be anything: a later version
says more, and says it otherwise.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field


class TurnBody(Struct, frozen=True, rename="camel"):
    id: str
    # The turn that this one is a part of: a sub-agent has turns of its own.
    root_turn_id: Any = None
    status: Any = None
    error: Any = None
    items: Any = None

    @property
    def root_id(self) -> str:
        """What its steps and its end call it: a review begins under another name."""
        return self.root_turn_id if isinstance(self.root_turn_id, str) else self.id


class TurnNotification(Struct, frozen=True, rename="camel"):
    """A turn has begun or ended."""

    turn: TurnBody
    thread_id: str | None = None


class CodexItem(Struct, frozen=True, rename="camel"):
    """A step of a turn, of any type."""

    type: str
    id: str = ""
    status: str | None = None
    # What was said: by the agent, or in the words of a plan or a warning.
    text: str | None = None
    message: str | None = None
    phase: str | None = None
    # What was said to it, and the name we gave to that; or thoughts.
    content: Any = None
    client_id: str | None = None
    summary: Any = None
    # What was done.
    command: Any = None
    cwd: Any = None
    process_id: str | None = None
    aggregated_output: Any = None
    exit_code: int | None = None
    changes: Any = None
    server: Any = None
    tool: Any = None
    namespace: Any = None
    arguments: Any = None
    prompt: Any = None
    receiver_thread_ids: Any = None
    query: Any = None
    action: Any = None
    results: Any = None
    path: Any = None
    duration_ms: Any = None
    result: Any = None
    error: Any = None
    success: bool | None = None
    content_items: Any = None
    # Of a picture: what was drawn in the end, where it is, and why it is not.
    revised_prompt: Any = None
    saved_path: Any = None
    file_id: Any = None
    failure: Any = None


class ItemNotification(Struct, frozen=True, rename="camel"):
    """A step has begun or ended."""

    item: CodexItem
    thread_id: str | None = None
    turn_id: str | None = None


class DeltaNotification(Struct, frozen=True, rename="camel"):
    """A piece of an item, as it is written."""

    delta: str
    item_id: str = ""
    thread_id: str | None = None
    turn_id: str | None = None


class SummaryPartNotification(Struct, frozen=True, rename="camel"):
    """Another paragraph of thoughts begins."""

    summary_index: int = 0
    thread_id: str | None = None


# What is counted; a larger number could not be saved.
CodexCount = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class CodexTokens(Struct, frozen=True, rename="camel"):
    """Input counts what was read from a cache and written to it, too."""

    input_tokens: CodexCount = 0
    cached_input_tokens: CodexCount = 0
    cache_write_input_tokens: CodexCount = 0
    output_tokens: CodexCount = 0
    total_tokens: CodexCount = 0


class TokenUsage(Struct, frozen=True, rename="camel"):
    total: CodexTokens
    last: CodexTokens
    model_context_window: CodexCount | None = None


class UsageNotification(Struct, frozen=True, rename="camel"):
    token_usage: TokenUsage
    thread_id: str | None = None
    turn_id: str | None = None


class RateLimitWindow(Struct, frozen=True, rename="camel"):
    used_percent: float
    window_duration_mins: CodexCount | None = None
    resets_at: float | None = None


class RateLimits(Struct, frozen=True, rename="camel"):
    limit_id: str | None = None
    primary: RateLimitWindow | None = None
    secondary: RateLimitWindow | None = None


class RateLimitNotification(Struct, frozen=True, rename="camel"):
    rate_limits: RateLimits


class ErrorNotification(Struct, frozen=True, rename="camel"):
    """What went wrong; it may try again."""

    error: Any = None
    will_retry: bool = False
    thread_id: str | None = None
    turn_id: str | None = None


class WarningNotification(Struct, frozen=True, rename="camel"):
    """Something that a person may want to know."""

    message: str | None = None
    summary: str | None = None
    thread_id: str | None = None


class RerouteNotification(Struct, frozen=True, rename="camel"):
    """Another model answers."""

    to_model: str
    from_model: str | None = None
    thread_id: str | None = None


class McpStatusNotification(Struct, frozen=True):
    """How an MCP server is."""

    name: str = ""
    status: Any = None
    error: str | None = None


class HookRun(Struct, frozen=True, rename="camel"):
    event_name: Any = None
    status: Any = None
    entries: Any = None


class HookNotification(Struct, frozen=True, rename="camel"):
    """A hook of Codex's own settings has ended."""

    run: HookRun
    thread_id: str | None = None
    turn_id: str | None = None


class ResolvedNotification(Struct, frozen=True, rename="camel"):
    """What it has asked is not asked any more."""

    request_id: int | str


class ThreadBody(Struct, frozen=True):
    id: str


class ThreadReply(Struct, frozen=True):
    """The answer to the start of a conversation."""

    thread: ThreadBody
    model: Any = None


class TurnReply(Struct, frozen=True):
    """The answer to the start of a turn."""

    turn: ThreadBody


class ApprovalParams(Struct, frozen=True, rename="camel"):
    """The parameters of a question."""

    thread_id: str | None = None
    item_id: str | None = None
    reason: Any = None
    command: Any = None
    cwd: Any = None
    permissions: Any = None
    questions: Any = None
    # Of an MCP server: what it is called, and what is asked for.
    server_name: str | None = None
    meta: Any = field(default=None, name="_meta")


class SentParams(Struct, frozen=True, rename="camel"):
    """The parameters of what we say."""

    thread_id: str | None = None
    client_user_message_id: str | None = None
    input: Any = ()
    model: str | None = None


NOTIFICATIONS: dict[str, type[Struct]] = {
    "turn/started": TurnNotification,
    "turn/completed": TurnNotification,
    "item/started": ItemNotification,
    "item/completed": ItemNotification,
    "item/agentMessage/delta": DeltaNotification,
    "item/reasoning/summaryTextDelta": DeltaNotification,
    "item/reasoning/textDelta": DeltaNotification,
    "item/reasoning/summaryPartAdded": SummaryPartNotification,
    "thread/tokenUsage/updated": UsageNotification,
    "account/rateLimits/updated": RateLimitNotification,
    "error": ErrorNotification,
    "warning": WarningNotification,
    "configWarning": WarningNotification,
    "guardianWarning": WarningNotification,
    "deprecationNotice": WarningNotification,
    "model/rerouted": RerouteNotification,
    "mcpServer/startupStatus/updated": McpStatusNotification,
    "hook/completed": HookNotification,
    "serverRequest/resolved": ResolvedNotification,
}
# They say nothing that is not said elsewhere, or nothing that matters here.
_SILENT = """
    account/gatewayOAuth/changed account/login/completed account/updated app/list/updated
    autoApprovalReview/strictReviewRequired command/exec/outputDelta
    externalAgentConfig/import/completed externalAgentConfig/import/progress fs/changed
    fuzzyFileSearch/sessionCompleted fuzzyFileSearch/sessionUpdated hook/started
    item/autoApprovalReview/completed item/autoApprovalReview/started
    item/commandExecution/outputDelta item/commandExecution/terminalInteraction
    item/fileChange/outputDelta item/fileChange/patchUpdated item/mcpToolCall/progress
    item/plan/delta mcpServer/event/stream/notification mcpServer/oauthLogin/completed
    model/safetyBuffering/updated model/verification modelProvider/authRecoveryCompleted
    modelProvider/authRecoveryStarted process/exited process/outputDelta project/changed
    remoteControl/status/changed skills/changed thread/archived thread/attachment/updated
    thread/closed thread/compacted thread/deleted thread/environment/connected
    thread/environment/disconnected thread/goal/cleared thread/goal/updated thread/name/updated
    thread/prediction/updated thread/project/updated thread/queue/changed thread/readState/changed
    thread/reverted thread/settings/updated thread/started thread/status/changed thread/unarchived
    turn/diff/updated turn/moderationMetadata turn/plan/updated
"""
SILENT_METHODS = frozenset(_SILENT.split())


# -- the lines of `codex exec --json`


class ExecUsage(Struct, frozen=True):
    """Of the whole conversation, not of this turn."""

    input_tokens: CodexCount
    output_tokens: CodexCount
    cached_input_tokens: CodexCount = 0
    cache_write_input_tokens: CodexCount = 0

    @property
    def tokens(self) -> CodexTokens:
        return CodexTokens(
            self.input_tokens,
            self.cached_input_tokens,
            self.cache_write_input_tokens,
            self.output_tokens,
        )


class ExecLine(Struct, frozen=True):
    """Any of its lines."""

    type: str
    thread_id: str | None = None
    item: dict[str, Any] | None = None
    usage: Any = None
    error: Any = None
    message: str | None = None

    @property
    def failure_message(self) -> str | None:
        """Why it failed; None if that cannot be read."""
        message = self.error.get("message") if isinstance(self.error, dict) else None
        return message if isinstance(message, str) else None

    @property
    def tokens(self) -> CodexTokens | None:
        """What was used; None if it cannot be read."""
        try:
            return msgspec.convert(self.usage, ExecUsage).tokens
        except msgspec.ValidationError:
            return None


class LooseFailure(Struct, frozen=True):
    """An answer that says no, and that in a way of its own."""

    id: int | str
    error: Any


def decode_exec_line(raw: bytes) -> ExecLine:
    try:
        return msgspec.json.decode(raw, type=ExecLine)
    except (UnicodeDecodeError, RecursionError) as odd:
        raise msgspec.DecodeError(f"JSON is malformed: {odd}") from odd


def decode_loose_failure(raw: bytes) -> LooseFailure | None:
    try:
        return msgspec.json.decode(raw, type=LooseFailure)
    except (ValueError, RecursionError):
        return None


_OTHER_NAMES = {"collabToolCall": "collabAgentToolCall"}
_UNDERSCORE = re.compile(r"_(.)")


def to_item(given: Mapping[str, Any]) -> CodexItem:
    """A step as the app server would name it and its parts."""
    named = {_to_camel(key): value for key, value in given.items()}
    if isinstance(named.get("type"), str):
        kind = _to_camel(named["type"])
        named["type"] = _OTHER_NAMES.get(kind, kind)
    return msgspec.convert(named, CodexItem)


def _to_camel(name: str) -> str:
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name)


def collect_texts(content: Any) -> list[str]:
    """The texts of a message, or of thoughts."""
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]
