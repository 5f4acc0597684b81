"""Defines the notifications of Codex's app server, and the lines of `codex exec --json`.

Only fields that are used are defined. Fields that are not essential accept any value, because
later versions of Codex may change them.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from steadyrun.providers.shared.numbers import StoredInteger, TokenCount


class TurnBody(Struct, frozen=True, rename="camel"):
    id: str
    # The turn that this one is part of: a sub-agent has turns of its own.
    root_turn_id: Any = None
    status: Any = None
    error: Any = None
    items: Any = None

    @property
    def root_id(self) -> str:
        """The id in its items and its end. A review begins with another id."""
        return self.root_turn_id if isinstance(self.root_turn_id, str) else self.id


class _Notification(Struct, frozen=True, rename="camel", kw_only=True):
    """A notification about a conversation, or about one of its turns."""

    thread_id: str | None = None
    turn_id: str | None = None


class TurnNotification(_Notification, frozen=True):
    """A turn began or ended."""

    turn: TurnBody


class CodexItem(Struct, frozen=True, rename="camel"):
    """An item of a turn, of any type."""

    type: str
    id: str = ""
    status: str | None = None
    # The text of the agent, of a plan or of a warning.
    text: str | None = None
    message: str | None = None
    phase: str | None = None
    # The content of a user message and our id of it; or reasoning.
    content: Any = None
    client_id: str | None = None
    summary: Any = None
    # The fields of tools.
    command: Any = None
    cwd: Any = None
    process_id: str | None = None
    aggregated_output: Any = None
    exit_code: StoredInteger | None = None
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
    # The fields of a generated image: its final prompt, its place, or why it failed.
    revised_prompt: Any = None
    saved_path: Any = None
    file_id: Any = None
    failure: Any = None


class ItemNotification(_Notification, frozen=True):
    """An item began or ended."""

    item: CodexItem


class DeltaNotification(_Notification, frozen=True):
    """A piece of an item while it is written."""

    delta: str
    item_id: str = ""


class SummaryPartNotification(_Notification, frozen=True):
    """Another paragraph of reasoning begins."""

    summary_index: StoredInteger = 0


class CodexTokens(Struct, frozen=True, rename="camel"):
    """Token counts. The input includes tokens read from and written to a cache."""

    input_tokens: TokenCount = 0
    cached_input_tokens: TokenCount = 0
    cache_write_input_tokens: TokenCount = 0
    output_tokens: TokenCount = 0
    total_tokens: TokenCount = 0


class TokenUsage(Struct, frozen=True, rename="camel"):
    total: CodexTokens
    last: CodexTokens
    model_context_window: TokenCount | None = None


USAGE = "thread/tokenUsage/updated"


class UsageNotification(_Notification, frozen=True):
    token_usage: TokenUsage


class RateLimitWindow(Struct, frozen=True, rename="camel"):
    used_percent: float
    window_duration_mins: TokenCount | None = None
    resets_at: float | None = None


class RateLimits(Struct, frozen=True, rename="camel"):
    limit_id: str | None = None
    primary: RateLimitWindow | None = None
    secondary: RateLimitWindow | None = None


class RateLimitNotification(Struct, frozen=True, rename="camel"):
    rate_limits: RateLimits


class ErrorNotification(_Notification, frozen=True):
    """An error. Codex may retry."""

    error: Any = None
    will_retry: bool = False


class WarningNotification(_Notification, frozen=True):
    """A warning for the user."""

    message: str | None = None
    summary: str | None = None


class RerouteNotification(_Notification, frozen=True):
    """Another model answers from now on."""

    to_model: str
    from_model: str | None = None


class McpStatusNotification(Struct, frozen=True):
    """The status of an MCP server."""

    name: str = ""
    status: Any = None
    error: str | None = None


class HookRun(Struct, frozen=True, rename="camel"):
    event_name: Any = None
    status: Any = None
    entries: Any = None


class HookNotification(_Notification, frozen=True):
    """A hook from the settings of Codex ended."""

    run: HookRun


class ResolvedNotification(Struct, frozen=True, rename="camel"):
    """A request of Codex is no longer open."""

    request_id: StoredInteger | str


class ThreadBody(Struct, frozen=True):
    id: str


class ThreadReply(Struct, frozen=True):
    """The reply to the start of a conversation."""

    thread: ThreadBody
    model: Any = None


class TurnReply(Struct, frozen=True):
    """The reply to the start of a turn."""

    turn: ThreadBody


class ApprovalParams(Struct, frozen=True, rename="camel"):
    """The parameters of a request from Codex."""

    thread_id: str | None = None
    item_id: str | None = None
    reason: Any = None
    command: Any = None
    cwd: Any = None
    permissions: Any = None
    questions: Any = None
    # The name of an MCP server, and the details of its request.
    server_name: str | None = None
    meta: Any = field(default=None, name="_meta")


class SentParams(Struct, frozen=True, rename="camel"):
    """The parameters of a request that was written."""

    thread_id: str | None = None
    client_user_message_id: str | None = None
    input: Any = ()
    model: str | None = None


# These notifications repeat other ones, or have no meaning for a run.
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
    """The tokens of the whole conversation, not of this turn."""

    input_tokens: TokenCount
    output_tokens: TokenCount
    cached_input_tokens: TokenCount = 0
    cache_write_input_tokens: TokenCount = 0

    @property
    def tokens(self) -> CodexTokens:
        return CodexTokens(
            self.input_tokens,
            self.cached_input_tokens,
            self.cache_write_input_tokens,
            self.output_tokens,
        )


class ExecLine(Struct, frozen=True):
    """A line of `codex exec --json`, of any type."""

    type: str
    thread_id: str | None = None
    item: dict[str, Any] | None = None
    usage: Any = None
    error: Any = None
    message: str | None = None

    @property
    def failure_message(self) -> str | None:
        """The message of the error; None if it cannot be read."""
        message = self.error.get("message") if isinstance(self.error, dict) else None
        return message if isinstance(message, str) else None

    @property
    def tokens(self) -> CodexTokens | None:
        """The tokens that were used; None if they cannot be read."""
        try:
            return msgspec.convert(self.usage, ExecUsage).tokens
        except msgspec.ValidationError:
            return None


class LooseFailure(Struct, frozen=True):
    """A failure whose error is not a JSON-RPC error."""

    id: StoredInteger | str
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
    """Convert an item of `exec` to the names that the app server uses."""
    named = {_to_camel(key): value for key, value in given.items()}
    if isinstance(named.get("type"), str):
        kind = _to_camel(named["type"])
        named["type"] = _OTHER_NAMES.get(kind, kind)
    return msgspec.convert(named, CodexItem)


def _to_camel(name: str) -> str:
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name)


def collect_texts(content: Any) -> list[str]:
    """Collect the texts of a message, or of reasoning."""
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]
