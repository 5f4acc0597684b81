"""When does a turn begin and end, and is it ours? Claude Code prints an `init` and a `result`.

Neither names what was asked, and both come for turns that nobody has asked for: when something ends
in the background, or for what an earlier process has left behind.
"""

from msgspec.structs import replace

from steadyrun.dialect import DialectOutput, ProcessExit, TurnBegan, TurnEnded
from steadyrun.model import event as ev
from steadyrun.model.usage import Cost
from steadyrun.providers.claude import errors, offers, usage
from steadyrun.providers.claude.errors import ResultContext, TurnOutcome
from steadyrun.providers.claude.frames import Init, ResultLine
from steadyrun.providers.claude.requests import build_interrupt
from steadyrun.providers.claude.state import ClaudeState, ClaudeTurn
from steadyrun.providers.claude.usage import TurnUsage


def on_init(state: ClaudeState, init: Init, place: int) -> list[DialectOutput]:
    """An `init` was printed. A turn that was told is open already."""
    state.has_init, state.held = True, None
    state.mode = init.mode or state.mode
    began = [] if state.turn else offers.begin_unprompted_turn(state, place)
    state.is_woken = False
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
    """Some versions answer an interrupt that they read before the turn has begun, and go on.

    Others are about to end the turn: said again, it would hit what is queued.
    """
    turn = state.turn
    assert turn
    is_too_early = turn.is_interrupted and not turn.has_init and not state.offers
    turn.has_init, turn.doubtful_end = True, None
    return [build_interrupt(f"{turn.name}:2")] if is_too_early else []


def on_result(state: ClaudeState, result: ResultLine) -> list[DialectOutput]:
    """A `result` was printed."""
    turn = state.turn
    if turn is None:
        return _on_result_without_turn(state, result)
    if _is_foreign(turn, result):
        return _set_aside_result(turn, f"a turn of its own ended: {result.subtype}")
    if _is_empty(turn, result):
        # Whatever it has cost is counted with the next result.
        end = _build_end(state, result, TurnUsage(None, Cost()))
        return _set_aside_result(turn, "a result came for what it was not asked for", end)
    settled = offers.settle_offers(state)
    token = _bind_late_token(state, result)
    spent = usage.measure_turn(state, result)
    stats = _build_stats(state, result, spent)
    return [*settled, *token, *stats, *close_turn(state, _build_end(state, result, spent))]


def on_invalid_result(state: ClaudeState, result: ResultLine | None) -> list[DialectOutput]:
    """A `result` was printed that does not fit; None if it does not even say how it ended."""
    if result is not None:
        return on_result(state, result)
    turn = state.turn
    failed = TurnEnded("failed", turn.text if turn else None, error=errors.build_unreadable_error())
    return close_turn(state, failed) if turn else []


def close_turn(state: ClaudeState, end: TurnEnded) -> list[DialectOutput]:
    """The open turn is over; what still runs without it is in the background."""
    asking = [ask.request for ask in state.asks.values() if not ask.is_sub_agent]
    moot = [
        each for ask in asking for each in resolve_approval(state, ask, "cancelled", "provider")
    ]
    foreground = state.tools.keys()
    state.tasks = {task: tool for task, tool in state.tasks.items() if tool not in foreground}
    state.tools, state.turn, state.is_woken, state.streaming = {}, None, False, None
    if end.status == "completed":
        state.resets_at = None
    return [*moot, end]


def resolve_approval(
    state: ClaudeState, request: str, verdict: str, by: str
) -> list[DialectOutput]:
    """A question was answered, or is not asked any more."""
    approvals = [name for name, ask in state.asks.items() if ask.request == request]
    for name in approvals:
        del state.asks[name]
    return [ev.ApprovalResolved(name, verdict, by) for name in approvals]


def on_idle(state: ClaudeState) -> list[DialectOutput]:
    """Nothing is queued any more. A turn ends by its result, not by this."""
    if state.turn is None:
        return offers.settle_offers(state)
    doubtful = state.turn.doubtful_end
    return close_turn(state, doubtful) if doubtful else []


def end_from_exit(state: ClaudeState, last: ProcessExit) -> TurnEnded | None:
    """How the turn ended that is open or never began; None where others have to say it."""
    is_due = state.turn is not None or state.first_turn is None
    if not is_due or last.reason is not None:
        return None
    if state.held:
        return replace(state.held, exit_code=last.code)
    # It was started for a turn: whoever ends without a word was no Claude Code.
    has_answered = state.has_spoken or last.code is None
    return errors.end_from_exit(last, has_init=state.has_init, has_answered=has_answered)


def _on_result_without_turn(state: ClaudeState, result: ResultLine) -> list[DialectOutput]:
    """A process that cannot start says so before it was told anything; its exit ends the turn."""
    if result.is_error and not state.has_init:
        state.held = _build_end(state, result, usage.measure_turn(state, result))
        return []
    if not result.num_turns:
        return [ev.Note(f"a result came without a turn: {result.subtype}")]
    spent = usage.measure_turn(state, result)
    return [TurnBegan(None), *_bind_late_token(state, result), _build_end(state, result, spent)]


def _bind_late_token(state: ClaudeState, result: ResultLine) -> list[DialectOutput]:
    """Some print nothing but a result; one that the model had a part in has a conversation."""
    is_real = not result.is_error or bool(result.total_cost_usd)
    if state.token is not None or result.session_id is None or not is_real:
        return []
    return _bind_token(state, result.session_id)


def _is_foreign(turn: ClaudeTurn, result: ResultLine) -> bool:
    """It was busy with a turn of its own when ours was told, and ours is still to come."""
    if _is_named(turn, result) or turn.is_echoed or not turn.is_told:
        return False
    return result.origin is not None and result.origin.kind != "human"


def _is_empty(turn: ClaudeTurn, result: ResultLine) -> bool:
    """No model was asked and nothing was said, though what we told was for the model."""
    if _is_named(turn, result) or not turn.is_told or turn.is_command:
        return False
    is_answered = turn.has_spoken or turn.is_stopped
    return not (is_answered or result.is_error) and result.num_turns == 0


def _is_named(turn: ClaudeTurn, result: ResultLine) -> bool:
    named = {result.user_message_uuid, *(result.user_message_uuids or ())}
    return turn.uuid is not None and turn.uuid in named


def _set_aside_result(
    turn: ClaudeTurn, why: str, end: TurnEnded | None = None
) -> list[DialectOutput]:
    """A result that is not for the open turn: nothing that was heard so far is of it."""
    turn.doubtful_end = end if turn.has_init else None
    turn.text = turn.error = None
    turn.has_init = turn.has_spoken = False
    return [ev.Note(why)]


def _build_end(state: ClaudeState, result: ResultLine, spent: TurnUsage) -> TurnEnded:
    turn = state.turn or ClaudeTurn("")
    found = ResultContext(turn.error, state.has_init, turn.retry, turn.is_stopped, state.resets_at)
    out = errors.classify_result(result, found)
    if out.status == "completed" and turn.is_interrupted and turn.has_failed_compaction:
        # Nothing but a compaction was interrupted, and that looks like a success.
        out = TurnOutcome("cancelled")
    return TurnEnded(
        out.status,
        _choose_text(result, turn, out),
        spent.usage,
        spent.cost,
        out.error,
        stop_reason=out.stop_reason,
    )


def _choose_text(result: ResultLine, turn: ClaudeTurn, out: TurnOutcome) -> str | None:
    """What was said; an error's words are no answer."""
    if out.error is not None or (out.status == "cancelled" and not result.result):
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
