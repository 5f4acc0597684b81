"""Translates the lines of `codex exec --json`, which runs one turn.

The items are those of the app server, with other names. `exec` does not report the windows of
limits, and its usage is the total of the whole conversation.
"""

from collections.abc import Callable

from steadyrun.dialect import DialectOutput, TurnBegan, TurnEnded
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.providers.codex import errors, items, turns, usage
from steadyrun.providers.codex.frames import CodexTokens, ExecLine, to_item
from steadyrun.providers.codex.launch import RESUMED
from steadyrun.providers.codex.state import CodexState, CodexTurn
from steadyrun.providers.shared.errors import fail_turn


def on_line(state: CodexState, line: ExecLine, place: int) -> list[DialectOutput] | None:
    """Handle a line; None if its type is unknown."""
    if line.type not in _HANDLERS:
        return None
    first: list[DialectOutput] = []
    if line.type in _FIRST and not state.has_begun:
        state.begin_turn(CodexTurn(f"self{place}"))
        first = [TurnBegan(None)]
    if state.has_begun and state.turn is None:
        # The turn has already ended, because this is not the requested conversation.
        return []
    output = _HANDLERS[line.type](state, line)
    return None if output is None else [*first, *output]


def is_unreadable(line: ExecLine) -> bool:
    """Whether the type of a line is known but its content cannot be read."""
    return line.type == "turn.failed" and line.failure_message is None


def _on_resumed(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    """Handle the line that steadyrun prints before Codex starts: the conversation to resume."""
    state.is_resumed, state.resumed = True, line.thread_id
    return []


def _on_thread_started(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    if state.resumed not in {None, line.thread_id}:
        # Codex began a new conversation, because it did not find the requested one.
        why = errors.build_missing_error(f"there is no conversation {state.resumed}")
        return turns.refuse_turn(state, why)
    state.thread = line.thread_id
    return turns.bind_thread(state)


def _on_item(state: CodexState, line: ExecLine) -> list[DialectOutput] | None:
    if not line.item:
        return None
    item = to_item(line.item)
    if state.turn and item.type != "error":
        # The turn continues, so the earlier error did not end it.
        state.turn.error = None
        state.turn.has_steps = True
    step = items.start_item if line.type == "item.started" else items.end_item
    return step(state, item)


def _on_item_updated(_: CodexState, line: ExecLine) -> list[DialectOutput] | None:
    """Skip an update of a known item, because its end is reported whole."""
    return [] if line.item and items.is_known(to_item(line.item)) else None


def _on_error(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    """Record an error. Codex may retry, which only the text states, or exit without a line."""
    if state.turn and line.message:
        state.turn.error = errors.parse_exec_error(line.message)
    return [ev.Note(line.message)] if line.message else []


def _on_turn_completed(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    turn, note = state.turn, list[DialectOutput]()
    used = line.tokens
    if turn and used:
        if state.is_resumed:
            note = [
                ev.Note("the usage of this turn is unknown: Codex reports the total of all turns")
            ]
        else:
            usage.add_usage(state, turn, used, is_one_call=False)
    return [*note, *turns.close_turn(state, _build_end(state, _find_missing_answer(state, used)))]


def _find_missing_answer(state: CodexState, used: CodexTokens | None) -> ErrorFact | None:
    """Return the error of a turn without usage and without items.

    A hook may have blocked it, which `exec` does not report. A resumed turn reports the total of
    its conversation, so it is never empty.
    """
    is_empty = state.turn and used == CodexTokens() and not state.turn.has_steps
    return errors.build_no_answer_error() if is_empty else None


def _on_turn_failed(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    return turns.close_turn(state, _build_end(state, errors.parse_exec_error(line.failure_message)))


def _build_end(state: CodexState, why: ErrorFact | None = None) -> TurnEnded:
    turn = state.turn or CodexTurn("")
    end = TurnEnded("completed", turns.choose_text(turn), usage.to_usage(turn.used), turn.cost)
    return fail_turn(end, why) if why else end


_FIRST = frozenset({"thread.started", "turn.started"})
_HANDLERS: dict[str, Callable[[CodexState, ExecLine], list[DialectOutput] | None]] = {
    RESUMED: _on_resumed,
    "thread.started": _on_thread_started,
    "turn.started": lambda _, __: [],
    "item.started": _on_item,
    "item.updated": _on_item_updated,
    "item.completed": _on_item,
    "turn.completed": _on_turn_completed,
    "turn.failed": _on_turn_failed,
    "error": _on_error,
}
