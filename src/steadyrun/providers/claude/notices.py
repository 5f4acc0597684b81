"""Translates lines of type `system`, and the lines about limits of the account.

Lines of type `system` report states, compactions, retries, tasks and notices.
"""

from collections.abc import Callable
from typing import Any

from steadyrun.dialect import DialectOutput
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.providers.claude import turns
from steadyrun.providers.claude.errors import to_error_code
from steadyrun.providers.claude.frames import (
    SILENT_SUBTYPES,
    SYSTEM_DECODERS,
    ApiRetry,
    CompactBoundary,
    Init,
    ModelFallback,
    Notice,
    RateLimitLine,
    StateChanged,
    Status,
    SystemPart,
    TaskNotification,
    TasksChanged,
    TaskStarted,
    TaskUpdated,
)
from steadyrun.providers.claude.state import ClaudeState
from steadyrun.providers.shared.epoch import to_datetime

# A task with any other status has ended.
_ALIVE = frozenset({None, "pending", "running", "paused"})


def on_system_line(state: ClaudeState, subtype: str, frame: Frame) -> list[DialectOutput]:
    """Handle a line of type `system`. A line with an unknown subtype is kept."""
    if subtype in SILENT_SUBTYPES:
        return []
    read = SYSTEM_DECODERS.get(subtype)
    if read is None:
        return [ev.Unknown.from_line(frame.raw)]
    notice = read(frame.raw)
    if type(notice) is Init:
        return turns.on_init(state, notice, frame.end)
    return _HANDLERS[type(notice)](state, notice)


def on_rate_limit(state: ClaudeState, line: RateLimitLine) -> list[DialectOutput]:
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


def _on_state_changed(state: ClaudeState, notice: StateChanged) -> list[DialectOutput]:
    state.is_running = notice.state != "idle"
    return [] if state.is_running else turns.on_idle(state)


def _on_status(state: ClaudeState, notice: Status) -> list[DialectOutput]:
    state.mode = notice.mode or state.mode
    turn = state.turn
    if notice.status == "compacting":
        return [ev.CompactionStarted("manual" if turn and turn.is_command else "auto")]
    if notice.compact_result != "failed":
        return []
    if turn:
        turn.has_failed_compaction = True
    return [ev.CompactionFailed(notice.compact_error)]


def _on_compacted(_: ClaudeState, notice: CompactBoundary) -> list[DialectOutput]:
    metadata = notice.metadata
    return [ev.CompactionCompleted(metadata.trigger, metadata.pre_tokens, metadata.post_tokens)]


def _on_retry(state: ClaudeState, notice: ApiRetry) -> list[DialectOutput]:
    if state.turn:
        state.turn.retry = notice.error
    delay = None if notice.retry_delay_ms is None else round(notice.retry_delay_ms)
    return [ev.ProviderRetrying(notice.attempt, delay, to_error_code(notice.error))]


def _on_fallback(state: ClaudeState, notice: ModelFallback) -> list[DialectOutput]:
    """Record the model of this turn. The next `init` names the model again."""
    state.model = notice.fallback_model
    why = notice.content or f"going on with {notice.fallback_model}"
    return [ev.Note(why), ev.StatsUpdated(model=notice.fallback_model)]


def _on_task_started(state: ClaudeState, notice: TaskStarted) -> list[DialectOutput]:
    state.tasks[notice.task_id] = notice.tool_use_id
    return []


def _on_task_updated(state: ClaudeState, notice: TaskUpdated) -> list[DialectOutput]:
    if notice.patch.status not in _ALIVE:
        state.tasks.pop(notice.task_id, None)
    return []


def _on_task_ended(state: ClaudeState, notice: TaskNotification) -> list[DialectOutput]:
    """Remove a task. The end of a slow tool that is still open is not background work."""
    state.tasks.pop(notice.task_id, None)
    state.is_woken = state.is_woken or notice.tool_use_id not in state.tools
    return []


def _on_tasks_changed(state: ClaudeState, notice: TasksChanged) -> list[DialectOutput]:
    """Replace the list of tasks by the complete list in the notice."""
    names = {task.task_id or task.id: task.tool_use_id for task in notice.tasks}
    state.tasks = {name: tool or state.tasks.get(name) for name, tool in names.items()}
    return []


def _on_notice(state: ClaudeState, notice: Notice) -> list[DialectOutput]:
    if state.turn and notice.prevent_continuation:
        state.turn.is_stopped = True
    words = notice.content or notice.message or notice.text
    return [ev.Note(words)] if words else []


_HANDLERS: dict[type[SystemPart], Callable[[ClaudeState, Any], list[DialectOutput]]] = {
    StateChanged: _on_state_changed,
    Status: _on_status,
    CompactBoundary: _on_compacted,
    ApiRetry: _on_retry,
    ModelFallback: _on_fallback,
    TaskStarted: _on_task_started,
    TaskUpdated: _on_task_updated,
    TaskNotification: _on_task_ended,
    TasksChanged: _on_tasks_changed,
    Notice: _on_notice,
}
