"""Opens and closes turns, and decides which turn an `init` or a `result` belongs to.

Claude Code prints an `init` when a turn begins and a `result` when it ends. Neither names the input
of the turn. Both are also printed for turns without a request: when a background task ends, and
for input that an earlier process of the same conversation did not finish.
"""

from msgspec.structs import replace

from steadyrun.dialect import DialectOutput, ProcessExit, TurnBegan, TurnEnded
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.usage import Cost
from steadyrun.providers.claude import errors, offers, usage
from steadyrun.providers.claude.frames import Init, ResultLine, UserLine
from steadyrun.providers.claude.requests import BEGIN, OFFER, build_interrupt
from steadyrun.providers.claude.state import ClaudeState, ClaudeTurn
from steadyrun.providers.claude.usage import TurnUsage
from steadyrun.providers.shared.approvals import resolve_approvals


def on_user_line(state: ClaudeState, line: UserLine, frame: Frame) -> list[DialectOutput]:
    """Begin a turn or record an offer, because a user message was written.

    The lines of a recording have no keys. There, a line that was written during a turn is a
    follow-up.
    """
    kind, _, name = frame.key.partition(":")
    if kind == BEGIN:
        return _begin_turn(state, name, line)
    if kind == OFFER:
        return offers.record_offer(state, name, line)
    name = line.uuid or f"line{frame.number}"
    # A turn with a doubtful end has ended if another message follows.
    before = on_idle(state)
    if state.turn is not None or state.offers:
        return [*before, *offers.record_offer(state, name, line)]
    return [*before, *_begin_turn(state, name, line)]


def _begin_turn(state: ClaudeState, name: str, line: UserLine) -> list[DialectOutput]:
    is_command = not line.should_query or offers.read_text(line).startswith("/")
    state.begin_turn(ClaudeTurn(name, line.uuid, is_requested=True, is_command=is_command))
    return [TurnBegan(name)]


def on_init(state: ClaudeState, init: Init, place: int) -> list[DialectOutput]:
    """Handle an `init`. A turn that steadyrun began is already open."""
    state.has_init, state.held = True, None
    state.mode = init.mode or state.mode
    began = [] if state.turn else offers.begin_unprompted_turn(state, place)
    state.has_ended_task = False
    return [
        *began,
        *_bind_token(state, init.session_id),
        *_update_model(state, init),
        *_repeat_interrupt(state),
    ]


def _bind_token(state: ClaudeState, token: str) -> list[DialectOutput]:
    before, state.token = state.token, token
    if before is None:
        return [ev.TokenBound(token)]
    return [] if before == token else [ev.TokenRotated(token)]


def _update_model(state: ClaudeState, init: Init) -> list[DialectOutput]:
    if init.model is None or init.model == state.model:
        return []
    state.model = init.model
    return [ev.StatsUpdated(model=init.model)]


def _repeat_interrupt(state: ClaudeState) -> list[DialectOutput]:
    """Send an interrupt again that came before the turn began.

    Some versions acknowledge such an interrupt and continue. Other versions are about to end the
    turn. With queued offers the interrupt is not repeated, because it could hit the next turn.
    """
    turn = state.turn
    assert turn
    is_too_early = turn.is_interrupted and not turn.has_init and not state.offers
    turn.has_init, turn.doubtful_end = True, None
    return [build_interrupt(f"{turn.name}:2")] if is_too_early else []


def on_result(state: ClaudeState, result: ResultLine) -> list[DialectOutput]:
    """Handle a `result`."""
    turn = state.turn
    if turn is None:
        return _on_result_without_turn(state, result)
    if _is_foreign(turn, result):
        return _set_aside_result(
            turn, f"a turn that Claude Code began itself ended: {result.subtype}"
        )
    if _is_empty(turn, result):
        # Its cost is counted with the next result.
        end = _build_end(state, result, TurnUsage(None, Cost()))
        return _set_aside_result(turn, "a result came that belongs to no request", end)
    settled = offers.settle_offers(state)
    token = _bind_late_token(state, result)
    spent = usage.measure_turn(state, result)
    stats = _build_stats(state, result, spent)
    return [*settled, *token, *stats, *close_turn(state, _build_end(state, result, spent))]


def on_invalid_result(state: ClaudeState, result: ResultLine | None) -> list[DialectOutput]:
    """Handle a `result` that does not match its frame; None if no status could be read."""
    if result is not None:
        return on_result(state, result)
    if state.turn is None:
        return []
    return close_turn(state, TurnEnded("failed", state.turn.text, error=errors.UNREADABLE))


def close_turn(state: ClaudeState, end: TurnEnded) -> list[DialectOutput]:
    """Close the open turn. Tasks that still run are background work from now on."""
    moot = resolve_approvals(
        state.asks, lambda ask: not ask.is_sub_agent, "cancelled", by="provider"
    )
    foreground = state.tools.keys()
    state.tasks = {task: tool for task, tool in state.tasks.items() if tool not in foreground}
    state.tools, state.turn, state.has_ended_task, state.streaming = {}, None, False, None
    if end.status == "completed":
        state.resets_at = None
    return [*moot, end]


def on_idle(state: ClaudeState) -> list[DialectOutput]:
    """Handle an empty queue. It ends a turn only if its result was doubtful."""
    if state.turn is None:
        return offers.settle_offers(state)
    doubtful = state.turn.doubtful_end
    return close_turn(state, doubtful) if doubtful else []


def end_from_exit(state: ClaudeState, last: ProcessExit) -> TurnEnded | None:
    """Return the end of a turn whose process exited; None if the driver decides the end."""
    is_due = state.turn is not None or state.first_turn is None
    if not is_due or last.reason is not None:
        return None
    if state.held:
        return replace(state.held, exit_code=last.code)
    # A program that exits without output is not Claude Code.
    has_answered = state.has_spoken or last.code is None
    return errors.end_from_exit(last, has_init=state.has_init, has_answered=has_answered)


def _on_result_without_turn(state: ClaudeState, result: ResultLine) -> list[DialectOutput]:
    """Handle a result while no turn is open.

    A process that cannot start prints an error before it reads anything. The turn then ends with
    the exit of the process.
    """
    if result.is_error and not state.has_init:
        state.held = _build_end(state, result, usage.measure_turn(state, result))
        return []
    if not result.num_turns:
        return [ev.Note(f"a result came without a turn: {result.subtype}")]
    spent = usage.measure_turn(state, result)
    return [TurnBegan(None), *_bind_late_token(state, result), _build_end(state, result, spent)]


def _bind_late_token(state: ClaudeState, result: ResultLine) -> list[DialectOutput]:
    """Bind the session id of a process that printed no `init`.

    Only a result that involved the model has a conversation.
    """
    is_real = not result.is_error or bool(result.total_cost_usd)
    if state.token is not None or result.session_id is None or not is_real:
        return []
    return _bind_token(state, result.session_id)


def _is_foreign(turn: ClaudeTurn, result: ResultLine) -> bool:
    """Whether the result ends a turn that Claude Code began itself, before the open turn."""
    if _is_named(turn, result) or turn.is_echoed or not turn.is_requested:
        return False
    return result.origin is not None and result.origin.kind != "human"


def _is_empty(turn: ClaudeTurn, result: ResultLine) -> bool:
    """Whether the result has no answer, although the input was meant for the model."""
    if _is_named(turn, result) or not turn.is_requested or turn.is_command:
        return False
    is_answered = turn.has_spoken or turn.is_stopped
    return not (is_answered or result.is_error) and result.num_turns == 0


def _is_named(turn: ClaudeTurn, result: ResultLine) -> bool:
    named = {result.user_message_uuid, *(result.user_message_uuids or ())}
    return turn.uuid is not None and turn.uuid in named


def _set_aside_result(
    turn: ClaudeTurn, why: str, end: TurnEnded | None = None
) -> list[DialectOutput]:
    """Set aside a result of another turn, with all output that came before it."""
    turn.doubtful_end = end if turn.has_init else None
    turn.text = turn.error = None
    turn.has_init = turn.has_spoken = False
    return [ev.Note(why)]


def _build_end(state: ClaudeState, result: ResultLine, spent: TurnUsage) -> TurnEnded:
    turn = state.turn or ClaudeTurn("")
    end = errors.classify_result(result, state)
    if end.status == "completed" and turn.is_interrupted and turn.has_failed_compaction:
        # Only a compaction was interrupted. Claude Code reports that as a success.
        end = TurnEnded("cancelled")
    text = _choose_text(result, turn, end)
    return replace(end, text=text, usage=spent.usage, cost=spent.cost)


def _choose_text(result: ResultLine, turn: ClaudeTurn, end: TurnEnded) -> str | None:
    """Return the answer. The message of an error is not an answer."""
    if end.error is not None or (end.status == "cancelled" and not result.result):
        return turn.text
    return turn.text if result.result is None else result.result


def _build_stats(state: ClaudeState, result: ResultLine, spent: TurnUsage) -> list[DialectOutput]:
    if state.model is None:
        return []
    used, usage = (result.model_usage or {}).get(state.model), spent.usage
    return [
        ev.StatsUpdated(
            state.model,
            used.context_window if used else None,
            usage.cache_read_tokens if usage else None,
            usage.cache_write_tokens if usage else None,
            usage.output_tokens if usage else None,
            result.terminal_reason,
        )
    ]
