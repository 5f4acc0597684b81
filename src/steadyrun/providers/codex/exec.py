"""What do the lines of `codex exec --json` say? The same steps in another shape, for one turn.

It says nothing about the windows of limits, and what a turn has used is the sum of its whole
conversation.
"""

from collections.abc import Callable

from msgspec.structs import replace

from steadyrun.dialect import Began, DialectOutput, Ended
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.providers.codex import errors, items, turns, usage
from steadyrun.providers.codex.frames import ExecLine, Tokens, exec_item_of
from steadyrun.providers.codex.launch import RESUMED
from steadyrun.providers.codex.state import CodexState, OpenTurn


def heard(state: CodexState, line: ExecLine, place: int) -> list[DialectOutput] | None:
    """What a line comes to; None if it is not known."""
    if line.type not in _HEARD:
        return None
    first: list[DialectOutput] = []
    if line.type in _FIRST and not state.has_begun:
        state.begin(OpenTurn(f"self{place}"))
        first = [Began(None)]
    if state.has_begun and state.turn is None:
        # Its turn is over: it was another conversation than the one that was wanted.
        return []
    said = _HEARD[line.type](state, line)
    return None if said is None else [*first, *said]


def is_odd(line: ExecLine) -> bool:
    """Whether it is known, and not to be understood."""
    return line.type == "turn.failed" and line.why is None


def _resumed(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    """A line of ours, before any of Codex: this conversation is to be gone on with."""
    state.is_resumed, state.resumed = True, line.thread_id
    return []


def _opened(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    if state.resumed not in {None, line.thread_id}:
        # What is no id at all is taken for nothing, and a new conversation begun.
        why = errors.not_there(f"there is no conversation {state.resumed}")
        return turns.refused(state, why)
    state.thread = line.thread_id
    return turns.bound(state)


def _step(state: CodexState, line: ExecLine) -> list[DialectOutput] | None:
    if not line.item:
        return None
    item = exec_item_of(line.item)
    if state.turn and item.type != "error":
        # It has got over what was wrong.
        state.turn.error = None
        state.turn.has_steps = True
    step = items.started if line.type == "item.started" else items.completed
    return step(state, item)


def _updated(_: CodexState, line: ExecLine) -> list[DialectOutput] | None:
    """It will be told whole."""
    return [] if line.item and items.is_known(exec_item_of(line.item)) else None


def _warned(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    """It may try again, which is said in words only, or end without another line."""
    if state.turn and line.message:
        state.turn.error = errors.said(line.message)
    return [ev.Note(line.message)] if line.message else []


def _completed(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    turn, note = state.turn, list[DialectOutput]()
    used = line.used
    if turn and used:
        if state.is_resumed:
            note = [ev.Note("what the turn has used is not known: Codex tells the sum of all")]
        else:
            usage.add(state, turn, used, is_one_call=False)
    return [*note, *turns.close(state, _end(state, _unasked(state, used)))]


def _unasked(state: CodexState, used: Tokens | None) -> ErrorFact | None:
    """What used nothing and did nothing was never asked; of hooks `exec` does not tell. Of a turn
    that was resumed only the sum of all is told."""
    is_empty = state.turn and used == Tokens() and not state.turn.has_steps
    return errors.not_asked() if is_empty else None


def _failed(state: CodexState, line: ExecLine) -> list[DialectOutput]:
    return turns.close(state, _end(state, errors.said(line.why)))


def _end(state: CodexState, why: ErrorFact | None = None) -> Ended:
    turn = state.turn or OpenTurn("")
    end = Ended("completed", turns.text_of(turn), usage.usage_of(turn.used), turn.cost)
    if why is None:
        return end
    status, reason = errors.status_of(why)
    return replace(end, status=status, error=why, stop_reason=reason)


_FIRST = frozenset({"thread.started", "turn.started"})
_HEARD: dict[str, Callable[[CodexState, ExecLine], list[DialectOutput] | None]] = {
    RESUMED: _resumed,
    "thread.started": _opened,
    "turn.started": lambda _, __: [],
    "item.started": _step,
    "item.updated": _updated,
    "item.completed": _step,
    "turn.completed": _completed,
    "turn.failed": _failed,
    "error": _warned,
}
