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


class TurnNews(Struct, frozen=True, rename="camel"):
    """A turn has begun or ended."""

    turn: TurnBody
    thread_id: str | None = None


class Item(Struct, frozen=True, rename="camel"):
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


class ItemNews(Struct, frozen=True, rename="camel"):
    """A step has begun or ended."""

    item: Item
    thread_id: str | None = None
    turn_id: str | None = None


class Piece(Struct, frozen=True, rename="camel"):
    """A piece of an item, as it is written."""

    delta: str
    item_id: str = ""
    thread_id: str | None = None
    turn_id: str | None = None


class PartNews(Struct, frozen=True, rename="camel"):
    """Another paragraph of thoughts begins."""

    summary_index: int = 0
    thread_id: str | None = None


# What is counted; a larger number could not be saved.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Tokens(Struct, frozen=True, rename="camel"):
    """Input counts what was read from a cache and written to it, too."""

    input_tokens: Count = 0
    cached_input_tokens: Count = 0
    cache_write_input_tokens: Count = 0
    output_tokens: Count = 0
    total_tokens: Count = 0


class TokenUsage(Struct, frozen=True, rename="camel"):
    total: Tokens
    last: Tokens
    model_context_window: Count | None = None


class UsageNews(Struct, frozen=True, rename="camel"):
    token_usage: TokenUsage
    thread_id: str | None = None
    turn_id: str | None = None


class LimitNow(Struct, frozen=True, rename="camel"):
    used_percent: float
    window_duration_mins: Count | None = None
    resets_at: float | None = None


class Limits(Struct, frozen=True, rename="camel"):
    limit_id: str | None = None
    primary: LimitNow | None = None
    secondary: LimitNow | None = None


class LimitNews(Struct, frozen=True, rename="camel"):
    rate_limits: Limits


class ErrorNews(Struct, frozen=True, rename="camel"):
    """What went wrong; it may try again."""

    error: Any = None
    will_retry: bool = False
    thread_id: str | None = None
    turn_id: str | None = None


class Warned(Struct, frozen=True, rename="camel"):
    """Something that a person may want to know."""

    message: str | None = None
    summary: str | None = None
    thread_id: str | None = None


class Rerouted(Struct, frozen=True, rename="camel"):
    """Another model answers."""

    to_model: str
    from_model: str | None = None
    thread_id: str | None = None


class ServerStatus(Struct, frozen=True):
    """How an MCP server is."""

    name: str = ""
    status: Any = None
    error: str | None = None


class HookRun(Struct, frozen=True, rename="camel"):
    event_name: Any = None
    status: Any = None
    entries: Any = None


class HookNews(Struct, frozen=True, rename="camel"):
    """A hook of Codex's own settings has ended."""

    run: HookRun
    thread_id: str | None = None
    turn_id: str | None = None


class Answered(Struct, frozen=True, rename="camel"):
    """What it has asked is not asked any more."""

    request_id: int | str


class ThreadBody(Struct, frozen=True):
    id: str


class ThreadOpened(Struct, frozen=True):
    """The answer to the start of a conversation."""

    thread: ThreadBody
    model: Any = None


class TurnBegun(Struct, frozen=True):
    """The answer to the start of a turn."""

    turn: ThreadBody


class Asking(Struct, frozen=True, rename="camel"):
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


class ToldParams(Struct, frozen=True, rename="camel"):
    """The parameters of what we say."""

    thread_id: str | None = None
    client_user_message_id: str | None = None
    input: Any = ()
    model: str | None = None


NEWS: dict[str, type[Struct]] = {
    "turn/started": TurnNews,
    "turn/completed": TurnNews,
    "item/started": ItemNews,
    "item/completed": ItemNews,
    "item/agentMessage/delta": Piece,
    "item/reasoning/summaryTextDelta": Piece,
    "item/reasoning/textDelta": Piece,
    "item/reasoning/summaryPartAdded": PartNews,
    "thread/tokenUsage/updated": UsageNews,
    "account/rateLimits/updated": LimitNews,
    "error": ErrorNews,
    "warning": Warned,
    "configWarning": Warned,
    "guardianWarning": Warned,
    "deprecationNotice": Warned,
    "model/rerouted": Rerouted,
    "mcpServer/startupStatus/updated": ServerStatus,
    "hook/completed": HookNews,
    "serverRequest/resolved": Answered,
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
SILENT = frozenset(_SILENT.split())


# -- the lines of `codex exec --json`


class ExecUsage(Struct, frozen=True):
    """Of the whole conversation, not of this turn."""

    input_tokens: Count
    output_tokens: Count
    cached_input_tokens: Count = 0
    cache_write_input_tokens: Count = 0

    @property
    def tokens(self) -> Tokens:
        return Tokens(
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
    def why(self) -> str | None:
        """Why it failed; None if that cannot be read."""
        message = self.error.get("message") if isinstance(self.error, dict) else None
        return message if isinstance(message, str) else None

    @property
    def used(self) -> Tokens | None:
        """What was used; None if it cannot be read."""
        try:
            return msgspec.convert(self.usage, ExecUsage).tokens
        except msgspec.ValidationError:
            return None


class OddFailure(Struct, frozen=True):
    """An answer that says no, and that in a way of its own."""

    id: int | str
    error: Any


def exec_line_of(raw: bytes) -> ExecLine:
    try:
        return msgspec.json.decode(raw, type=ExecLine)
    except (UnicodeDecodeError, RecursionError) as odd:
        raise msgspec.DecodeError(f"JSON is malformed: {odd}") from odd


def odd_failure_of(raw: bytes) -> OddFailure | None:
    try:
        return msgspec.json.decode(raw, type=OddFailure)
    except (ValueError, RecursionError):
        return None


_OTHER_NAMES = {"collabToolCall": "collabAgentToolCall"}
_UNDERSCORE = re.compile(r"_(.)")


def exec_item_of(given: Mapping[str, Any]) -> Item:
    """A step as the app server would name it and its parts."""
    named = {_camel(key): value for key, value in given.items()}
    if isinstance(named.get("type"), str):
        kind = _camel(named["type"])
        named["type"] = _OTHER_NAMES.get(kind, kind)
    return msgspec.convert(named, Item)


def _camel(name: str) -> str:
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name)


def texts_in(content: Any) -> list[str]:
    """The texts of a message, or of thoughts."""
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]
