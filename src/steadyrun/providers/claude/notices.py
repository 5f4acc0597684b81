"""Translates lines of type `system`, and the lines about limits of the account.

Lines of type `system` report states, compactions, retries, tasks and notices.
"""

from collections.abc import Callable
from typing import Any

from msgspec.json import Decoder

from steadyrun.dialect import DialectOutput
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.providers.claude import frames, turns
from steadyrun.providers.claude.errors import to_error_code
from steadyrun.providers.claude.state import ClaudeState
from steadyrun.providers.shared.errors import to_datetime

# A task with any other status has ended.
# A longer delay than a week is not plausible, and could not be stored.
_MOST_DELAY_MS = 7 * 24 * 3600 * 1000
_ALIVE = frozenset({None, "pending", "running", "paused"})


def on_system_line(state: ClaudeState, subtype: str, frame: Frame) -> list[DialectOutput]:
    """Handle a line of type `system`. A line with an unknown subtype is kept."""
    if subtype in frames.SILENT_SUBTYPES:
        return []
    if subtype == "init":
        return turns.on_init(state, frames.decode_init(frame.raw), frame.end)
    if subtype not in _HANDLERS:
        return [ev.Unknown.from_line(frame.raw)]
    decoder, handle = _HANDLERS[subtype]
    return handle(state, decoder.decode(frame.raw))


def on_rate_limit(state: ClaudeState, line: frames.RateLimitLine) -> list[DialectOutput]:
    """Record the end of a reached limit, and report a limit that is close."""
    info = line.info
    state.resets_at = info.resets_at if info.status == "rejected" else None
    if info.status in {"rejected", "allowed"}:
        return []
    used = "" if info.utilization is None else f", {info.utilization:.0%} used"
    return [ev.Note(f"limit {info.window}: {info.status}{used}{_format_reset(info.resets_at)}")]


def _format_reset(epoch: float | None) -> str:
    at = to_datetime(epoch)
    return "" if at is None else f", until {at:%Y-%m-%d %H:%M} UTC"


def _on_state_changed(state: ClaudeState, notice: frames.StateChanged) -> list[DialectOutput]:
    state.is_running = notice.state != "idle"
    return [] if state.is_running else turns.on_idle(state)


def _on_status(state: ClaudeState, notice: frames.Status) -> list[DialectOutput]:
    state.mode = notice.mode or state.mode
    turn = state.turn
    if notice.status == "compacting":
        return [ev.CompactionStarted("manual" if turn and turn.is_command else "auto")]
    if notice.compact_result != "failed":
        return []
    if turn:
        turn.has_failed_compaction = True
    return [ev.CompactionFailed(notice.compact_error)]


def _on_compacted(_: ClaudeState, notice: frames.CompactBoundary) -> list[DialectOutput]:
    metadata = notice.metadata
    return [ev.CompactionCompleted(metadata.trigger, metadata.pre_tokens, metadata.post_tokens)]


def _on_retry(state: ClaudeState, notice: frames.ApiRetry) -> list[DialectOutput]:
    if state.turn:
        state.turn.retry = notice.error
    delay = notice.retry_delay_ms
    stated = None if delay is None or not 0 <= delay <= _MOST_DELAY_MS else round(delay)
    return [ev.ProviderRetrying(notice.attempt, stated, to_error_code(notice.error))]


def _on_fallback(state: ClaudeState, notice: frames.ModelFallback) -> list[DialectOutput]:
    """Record the model of this turn. The next `init` names the model again."""
    state.model = notice.fallback_model
    why = notice.content or f"continuing with {notice.fallback_model}"
    return [ev.Note(why), ev.StatsUpdated(model=notice.fallback_model)]


def _on_task_started(state: ClaudeState, notice: frames.TaskNotice) -> list[DialectOutput]:
    state.tasks[notice.task_id] = notice.tool_use_id
    return []


def _on_task_updated(state: ClaudeState, notice: frames.TaskUpdated) -> list[DialectOutput]:
    if notice.patch.status not in _ALIVE:
        state.tasks.pop(notice.task_id, None)
    return []


def _on_task_ended(state: ClaudeState, notice: frames.TaskNotice) -> list[DialectOutput]:
    """Remove a task. The end of a slow tool that is still open is not background work."""
    state.tasks.pop(notice.task_id, None)
    state.has_ended_task = state.has_ended_task or notice.tool_use_id not in state.tools
    return []


def _on_tasks_changed(state: ClaudeState, notice: frames.TasksChanged) -> list[DialectOutput]:
    """Replace the list of tasks by the complete list in the notice."""
    names = {task.task_id or task.id: task.tool_use_id for task in notice.tasks}
    state.tasks = {name: tool or state.tasks.get(name) for name, tool in names.items()}
    return []


def _on_notice(state: ClaudeState, notice: frames.Notice) -> list[DialectOutput]:
    if state.turn and notice.prevent_continuation:
        state.turn.is_stopped = True
    words = notice.content or notice.message or notice.text
    return [ev.Note(words)] if words else []


# How a line of each subtype is decoded and handled.
_HANDLERS: dict[str, tuple[Decoder[Any], Callable[[ClaudeState, Any], list[DialectOutput]]]] = {
    "session_state_changed": (Decoder(frames.StateChanged), _on_state_changed),
    "status": (Decoder(frames.Status), _on_status),
    "compact_boundary": (Decoder(frames.CompactBoundary), _on_compacted),
    "api_retry": (Decoder(frames.ApiRetry), _on_retry),
    "model_fallback": (Decoder(frames.ModelFallback), _on_fallback),
    "task_started": (Decoder(frames.TaskNotice), _on_task_started),
    "task_updated": (Decoder(frames.TaskUpdated), _on_task_updated),
    "task_notification": (Decoder(frames.TaskNotice), _on_task_ended),
    "background_tasks_changed": (Decoder(frames.TasksChanged), _on_tasks_changed),
    "notification": (Decoder(frames.Notice), _on_notice),
    "informational": (Decoder(frames.Notice), _on_notice),
    "permission_denied": (Decoder(frames.Notice), _on_notice),
}
