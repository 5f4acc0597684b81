"""What do the lines of type `system` say? How it is, not what it answers."""

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
    StateChanged,
    Status,
    SystemPart,
    TaskNotification,
    TasksChanged,
    TaskStarted,
    TaskUpdated,
)
from steadyrun.providers.claude.state import ClaudeState

# A task in any other state has come to its end.
_ALIVE = frozenset({None, "pending", "running", "paused"})


def on_system_line(state: ClaudeState, subtype: str, frame: Frame) -> list[DialectOutput] | None:
    """What the line comes to; None if it is not known."""
    if subtype in SILENT_SUBTYPES:
        return []
    read = SYSTEM_DECODERS.get(subtype)
    if read is None:
        return None
    said = read(frame.raw)
    if type(said) is Init:
        return turns.on_init(state, said, frame.end)
    return _HANDLERS[type(said)](state, said)


def _on_state_changed(state: ClaudeState, said: StateChanged) -> list[DialectOutput]:
    state.is_running = said.state != "idle"
    return [] if state.is_running else turns.on_idle(state)


def _on_status(state: ClaudeState, said: Status) -> list[DialectOutput]:
    state.mode = said.mode or state.mode
    turn = state.turn
    if said.status == "compacting":
        return [ev.CompactionStarted("manual" if turn and turn.is_command else "auto")]
    if said.compact_result != "failed":
        return []
    if turn:
        turn.has_failed_compaction = True
    return [ev.CompactionFailed(said.compact_error)]


def _on_compacted(_: ClaudeState, said: CompactBoundary) -> list[DialectOutput]:
    found = said.metadata
    return [ev.CompactionCompleted(found.trigger, found.pre_tokens, found.post_tokens)]


def _on_retry(state: ClaudeState, said: ApiRetry) -> list[DialectOutput]:
    if state.turn:
        state.turn.retry = said.error
    delay = None if said.retry_delay_ms is None else round(said.retry_delay_ms)
    return [ev.ProviderRetrying(said.attempt, delay, to_error_code(said.error))]


def _on_fallback(state: ClaudeState, said: ModelFallback) -> list[DialectOutput]:
    """For this turn only: the next `init` names the model again."""
    state.model = said.fallback_model
    why = said.content or f"going on with {said.fallback_model}"
    return [ev.Note(why), ev.StatsUpdated(model=said.fallback_model)]


def _on_task_started(state: ClaudeState, said: TaskStarted) -> list[DialectOutput]:
    state.tasks[said.task_id] = said.tool_use_id
    return []


def _on_task_updated(state: ClaudeState, said: TaskUpdated) -> list[DialectOutput]:
    if said.patch.status not in _ALIVE:
        state.tasks.pop(said.task_id, None)
    return []


def _on_task_ended(state: ClaudeState, said: TaskNotification) -> list[DialectOutput]:
    """A tool that takes long is a task, too: its end is no news while the tool is open."""
    state.tasks.pop(said.task_id, None)
    state.is_woken = state.is_woken or said.tool_use_id not in state.tools
    return []


def _on_tasks_changed(state: ClaudeState, said: TasksChanged) -> list[DialectOutput]:
    """These are all."""
    names = {task.task_id or task.id: task.tool_use_id for task in said.tasks}
    state.tasks = {name: tool or state.tasks.get(name) for name, tool in names.items()}
    return []


def _on_notice(state: ClaudeState, said: Notice) -> list[DialectOutput]:
    if state.turn and said.prevent_continuation:
        state.turn.is_stopped = True
    words = said.content or said.message or said.text
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
