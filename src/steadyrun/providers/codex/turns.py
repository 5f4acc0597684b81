"""Opens and closes turns.

Codex gives each turn an id and reports its start and its end. It also runs turns of sub-agents, of
other conversations, and turns that it begins itself.
"""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import STILL_RUNNING, DialectOutput, ProcessExit, TurnBegan, TurnEnded
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.providers.codex import errors, frames, offers, usage
from steadyrun.providers.codex.requests import build_empty_turn, build_terminate
from steadyrun.providers.codex.state import CodexPendingRequest, CodexState, CodexTurn
from steadyrun.providers.shared.approvals import resolve_approvals
from steadyrun.providers.shared.errors import fail_turn

_INTERRUPTED, _COMPLETED = "interrupted", "completed"
# A message that begins a turn later. Steadyrun never sends it; a recording may contain it.
_QUEUE = "thread/queue/add"
MESSAGES = frozenset({"turn/start", "turn/steer", _QUEUE})
STATUSES = (_COMPLETED, _INTERRUPTED, "failed")
# The ends of hooks that are reported, and the two that block an action.
_HOOK_STATUSES = frozenset({"failed", "blocked", "stopped"})
_BLOCKING_STATUSES = frozenset({"blocked", "stopped"})
# The hooks that run before the model is asked.
_FIRST_HOOKS = frozenset({"sessionStart", "userPromptSubmit", "preModelRequest"})


def record_message(
    state: CodexState, asked: CodexPendingRequest, params: frames.SentParams
) -> list[DialectOutput]:
    """Begin a turn or record an offer, because a message was written.

    The lines of a recording have no keys. There, a message that was written during a turn is a
    follow-up.
    """
    is_elsewhere = state.is_other(params.thread_id)
    if is_elsewhere and state.turn:
        return _record_parallel_turn(state, params.thread_id or "")
    if asked.method == "turn/start" and (is_elsewhere or not _is_busy(state)):
        return _begin_turn(state, asked.name, params)
    is_queued, asked.method = asked.method == _QUEUE, "turn/steer"
    return offers.record_offer(state, asked.name, params, is_queued=is_queued)


def _is_busy(state: CodexState) -> bool:
    """Whether a message that is written now does not begin a turn."""
    waiting = [offer for offer in state.offers.values() if not offer.is_taken]
    return state.turn is not None or bool(waiting)


def _begin_turn(state: CodexState, name: str, params: frames.SentParams) -> list[DialectOutput]:
    thread = params.thread_id
    state.begin_turn(CodexTurn(name))
    state.unsent_mode = None
    state.model = params.model or state.model
    if thread is not None and state.is_other(thread):
        # The process continues with another conversation.
        state.thread, state.context_tokens = thread, None
        state.beside.discard(thread)
    return [*offers.absorb_taken(state), TurnBegan(name)]


def on_turn(
    state: CodexState, notification: frames.TurnNotification, method: str, frame: Frame
) -> list[DialectOutput]:
    """Handle the start or the end of a turn. An end with an unknown status is kept, too."""
    if method == "turn/started":
        return on_turn_started(state, notification.turn, frame.end)
    is_known = notification.turn.status in STATUSES
    kept = [] if is_known else [ev.Unknown.from_line(frame.raw)]
    return [*kept, *on_turn_completed(state, notification.turn)]


def on_turn_started(state: CodexState, turn: frames.TurnBody, place: int) -> list[DialectOutput]:
    """Handle the start of a turn. A turn that steadyrun began is already open."""
    opened = state.turn
    if opened is None:
        return _begin_own_turn(state, turn, place)
    if opened.id is None:
        opened.id, opened.other_id = turn.root_id, turn.id
    if opened.id in {turn.id, turn.root_id}:
        return bind_thread(state)
    return [ev.Note(f"another turn began before this one had ended: {turn.id}")]


def bind_thread(state: CodexState) -> list[DialectOutput]:
    """Report the token of the conversation.

    This waits for the first turn, because a conversation without a turn cannot be resumed.
    """
    before, state.bound_thread = state.bound_thread, state.thread
    if state.thread is None or before == state.thread:
        return []
    model: list[DialectOutput] = [ev.StatsUpdated(model=state.model)] if state.model else []
    token = ev.TokenRotated(state.thread) if before else ev.TokenBound(state.thread)
    return [token, *model]


def _begin_own_turn(state: CodexState, turn: frames.TurnBody, place: int) -> list[DialectOutput]:
    """Open a turn that Codex began: for a queued message, or by itself."""
    queued = offers.find_queued(state)
    if queued is not None:
        state.begin_turn(CodexTurn(queued, turn.root_id, turn.id))
        return offers.begin_own_turn(state, queued)
    is_wanted, state.wants_compaction = state.wants_compaction, False
    name = f"self{place}"
    state.begin_turn(CodexTurn(name, turn.root_id, turn.id, is_compaction=is_wanted))
    return [TurnBegan(None), *bind_thread(state)]


def _record_parallel_turn(state: CodexState, thread: str) -> list[DialectOutput]:
    """Record a turn of another conversation that begins during the open turn.

    A process has one run at a time, so that turn belongs to no run and is not a follow-up.
    """
    state.beside.add(thread)
    note = f"a turn of {thread} began during this one: its output is kept as unknown events"
    return [ev.Note(note)]


def on_parallel_notification(
    state: CodexState, notification: Struct, frame: Frame
) -> list[DialectOutput]:
    """Keep a line of another conversation. Deltas are skipped, as the whole text follows."""
    thread = getattr(notification, "thread_id", None)
    if thread not in state.beside or isinstance(
        notification, frames.DeltaNotification | frames.SummaryPartNotification
    ):
        return []
    if isinstance(notification, frames.TurnNotification) and notification.turn.status in STATUSES:
        state.beside.discard(thread)
    return [ev.Unknown.from_line(frame.raw)]


def on_turn_completed(state: CodexState, ended: frames.TurnBody) -> list[DialectOutput]:
    """Handle the end of a turn."""
    turn = state.turn
    if turn is None or state.is_other(None, ended.id):
        return [ev.Note(f"a turn ended that was not open: {ended.id}")]
    turn.id = ended.id
    text = _find_stated_answer(ended.items) or choose_text(turn)
    end = TurnEnded("completed", text, usage.to_usage(turn.used), turn.cost)
    if ended.status == _INTERRUPTED:
        end = _end_interrupted(state, end, ended.error)
    elif ended.status != _COMPLETED:
        end = _end_failed(state, end, ended.error)
    elif turn.blocked and not turn.has_answer:
        # Codex reports it as completed, but the model did not answer.
        end = replace(end, status="failed", error=turn.blocked)
    asked = _withdraw_approvals(state)
    stopped = _stop_open_tools(state) if ended.status == _INTERRUPTED else []
    reason = ended.status if isinstance(ended.status, str) else None
    stats = _build_stats(state, end, reason)
    before = [*_fail_compaction(turn, end), *asked, *stopped, stats]
    return [*before, *close_turn(state, end), *_answer_late_offer(state, end)]


def _answer_late_offer(state: CodexState, end: TurnEnded) -> list[DialectOutput]:
    """Begin a turn for a follow-up that was taken too late for an answer.

    In a turn that failed, the follow-up counts as part of that turn.
    """
    unanswered = offers.find_unanswered(state)
    if end.status != "completed" or unanswered is None:
        return []
    return [build_empty_turn(unanswered, state.thread or "")]


def _end_interrupted(state: CodexState, end: TurnEnded, error: Any) -> TurnEnded:
    """Return the end of an interrupted turn. If Codex interrupted it, there is an error."""
    if not error:
        return replace(end, status="cancelled")
    failed = fail_turn(end, errors.build_error(error, state.windows.values()))
    return failed if failed.stop_reason else replace(failed, status="cancelled")


def _end_failed(state: CodexState, end: TurnEnded, error: Any) -> TurnEnded:
    turn = state.turn
    fact = errors.build_error(error, state.windows.values()) if error else None
    fact = fact or (turn.error if turn else None) or errors.build_error(None)
    return fail_turn(end, errors.explain_error(fact, turn.retry if turn else None))


def on_hook(state: CodexState, notification: frames.HookNotification) -> list[DialectOutput]:
    """Handle the end of a hook from the settings of Codex."""
    run, turn = notification.run, state.turn
    if run.status not in _HOOK_STATUSES:
        return []
    words = "; ".join(frames.collect_texts(run.entries)) or "it gave no reason"
    is_mine = turn is not None and not state.is_other(None, notification.turn_id)
    if turn and is_mine and run.status in _BLOCKING_STATUSES and run.event_name in _FIRST_HOOKS:
        turn.blocked = errors.build_hook_error(words)
    return [ev.Note(f"a hook of Codex ({run.event_name}) {run.status}: {words}")]


def refuse_turn(state: CodexState, why: ErrorFact) -> list[DialectOutput]:
    """Close the open turn, because Codex refused it."""
    return close_turn(state, TurnEnded("failed", error=why)) if state.turn else []


def close_turn(state: CodexState, end: TurnEnded) -> list[DialectOutput]:
    """Close the open turn. Tools that still run may end later."""
    asked = _withdraw_approvals(state)
    back = offers.settle_offers(state)
    if end.status != "completed":
        back += offers.absorb_taken(state)
    for tool in state.tools.values():
        tool.is_late = True
    if state.turn:
        state.last_turn, state.turn = state.turn.id, None
    return [*back, *asked, end]


def choose_text(turn: CodexTurn) -> str | None:
    """Return the answer of a turn. Commentary or a plan counts only without any other text."""
    return turn.answer or turn.text or turn.aside or turn.plan


def _withdraw_approvals(state: CodexState) -> list[DialectOutput]:
    return resolve_approvals(state.asks, lambda _: True, "cancelled", by="provider")


def end_from_exit(state: CodexState, last: ProcessExit) -> TurnEnded | None:
    """Return the end of a turn whose process exited; None if the driver decides the end."""
    if not state.has_spoken:
        return errors.end_from_exit(last)
    return errors.end_mid_turn(last, state.turn.error) if state.turn else None


def _find_stated_answer(items: Any) -> str | None:
    """Find the answer among the items in the end of the turn."""
    parts = items if isinstance(items, list) else []
    for part in reversed(parts):
        match part:
            case {"type": "agentMessage", "text": str(text)} if text:
                return text
    return None


def _fail_compaction(turn: CodexTurn, end: TurnEnded) -> list[DialectOutput]:
    """Report the failure of a compaction that was running."""
    if not turn.is_compacting:
        return []
    return [ev.CompactionFailed(end.error.code if end.error else end.status)]


def _stop_open_tools(state: CodexState) -> list[DialectOutput]:
    """Terminate the commands that Codex leaves running after an interrupt."""
    output: list[DialectOutput] = []
    for item, tool in state.tools.items():
        if tool.is_late:
            continue
        given = msgspec.json.decode(tool.input)
        output.append(ev.ToolFailed(item, tool.name, given, error=STILL_RUNNING))
        if tool.process is not None:
            output.append(build_terminate(item, tool.process, state.thread or ""))
        tool.is_cut_off = True
    return output


def _build_stats(state: CodexState, end: TurnEnded, reason: str | None) -> ev.StatsUpdated:
    usage = end.usage
    return ev.StatsUpdated(
        state.model,
        state.context_window,
        usage.cache_read_tokens if usage else None,
        usage.cache_write_tokens if usage else None,
        usage.output_tokens if usage else None,
        reason,
        errors.build_limit_windows(state.windows),
    )
