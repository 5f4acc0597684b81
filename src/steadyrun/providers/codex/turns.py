"""When does a turn begin and end, and is it ours? Codex gives each an id, and says so."""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import STILL_RUNNING, Began, DialectOutput, Ended, Exit
from steadyrun.lib.framing import Frame
from steadyrun.lib.jsonrpc import Id
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.providers.codex import errors, offers, usage
from steadyrun.providers.codex.frames import (
    HookNews,
    PartNews,
    Piece,
    TurnBody,
    TurnNews,
    texts_in,
)
from steadyrun.providers.codex.requests import again_line, is_allowing, terminate_line
from steadyrun.providers.codex.state import CodexState, OpenTurn

_INTERRUPTED, _COMPLETED = "interrupted", "completed"
STATUSES = (_COMPLETED, _INTERRUPTED, "failed")
# How a hook ends that somebody should know of, and the two that keep something from being done.
_HOOK_STATUSES = frozenset({"failed", "blocked", "stopped"})
_AGAINST = frozenset({"blocked", "stopped"})
# The hooks that come before the model is asked.
_FIRST_HOOKS = frozenset({"sessionStart", "userPromptSubmit", "preModelRequest"})


def started(state: CodexState, turn: TurnBody, place: int) -> list[DialectOutput]:
    """A turn has begun. One that was told is open already."""
    mine = state.turn
    if mine is None:
        return _own(state, turn, place)
    if mine.id is None:
        mine.id, mine.other_id = turn.root_id, turn.id
    if mine.id in {turn.id, turn.root_id}:
        return bound(state)
    return [ev.Note(f"another turn began before this one had ended: {turn.id}")]


def bound(state: CodexState) -> list[DialectOutput]:
    """Without a turn there is nothing to go on with: a conversation is told of with its first."""
    before, state.bound_thread = state.bound_thread, state.thread
    if state.thread is None or before == state.thread:
        return []
    model: list[DialectOutput] = [ev.StatsUpdated(model=state.model)] if state.model else []
    token = ev.TokenRotated(state.thread) if before else ev.TokenBound(state.thread)
    return [token, *model]


def _own(state: CodexState, turn: TurnBody, place: int) -> list[DialectOutput]:
    """Nobody has begun it, or it was queued."""
    queued = offers.next_queued(state)
    if queued is not None:
        state.begin(OpenTurn(queued, turn.root_id, turn.id))
        return offers.own_turn(state, queued)
    is_wanted, state.wants_compaction = state.wants_compaction, False
    name = f"self{place}"
    state.begin(OpenTurn(name, turn.root_id, turn.id, is_compaction=is_wanted))
    return [Began(None), *bound(state)]


def begun_beside(state: CodexState, thread: str) -> list[DialectOutput]:
    """Somebody begins a turn of another conversation before this one has ended. A process has one
    run at a time: there is none for it, and it is no follow-up."""
    state.beside.add(thread)
    return [ev.Note(f"a turn of {thread} was begun beside this one: it is kept as it is printed")]


def heard_beside(state: CodexState, news: Struct, frame: Frame) -> list[DialectOutput]:
    """A line of another conversation. Pieces are not kept: they come whole."""
    thread = getattr(news, "thread_id", None)
    if thread not in state.beside or isinstance(news, Piece | PartNews):
        return []
    if isinstance(news, TurnNews) and news.turn.status in STATUSES:
        state.beside.discard(thread)
    return [ev.Unknown.of(frame.raw)]


def completed(state: CodexState, ended: TurnBody) -> list[DialectOutput]:
    """A turn has ended."""
    turn = state.turn
    if turn is None or state.is_other(None, ended.id):
        return [ev.Note(f"a turn ended that was not open: {ended.id}")]
    turn.id = ended.id
    text = _stated_answer(ended.items) or text_of(turn)
    end = Ended("completed", text, usage.usage_of(turn.used), turn.cost)
    if ended.status == _INTERRUPTED:
        end = _interrupted(state, end, ended.error)
    elif ended.status != _COMPLETED:
        end = _failed(state, end, ended.error)
    elif turn.blocked and not turn.has_answer:
        # Codex calls it completed; nobody has answered.
        end = replace(end, status="failed", error=turn.blocked)
    asked = _unasked(state)
    left = _cut_off(state) if ended.status == _INTERRUPTED else []
    reason = ended.status if isinstance(ended.status, str) else None
    stats = _stats(state, end, reason)
    before = [*_given_up(turn, end), *asked, *left, stats]
    return [*before, *close(state, end), *_again(state, end)]


def _again(state: CodexState, end: Ended) -> list[DialectOutput]:
    """What was taken too late for an answer gets one; of a turn that failed it is a part."""
    unheeded = offers.unheeded(state)
    if end.status != "completed" or unheeded is None:
        return []
    return [again_line(unheeded, state.thread or "")]


def _interrupted(state: CodexState, end: Ended, error: Any) -> Ended:
    """By us, or by Codex, which then says why."""
    if not error:
        return replace(end, status="cancelled")
    fact = errors.fact_of(error, state.windows.values())
    status, reason = errors.status_of(fact)
    return replace(end, status=status if reason else "cancelled", error=fact, stop_reason=reason)


def _failed(state: CodexState, end: Ended, error: Any) -> Ended:
    turn = state.turn
    fact = errors.fact_of(error, state.windows.values()) if error else None
    fact = fact or (turn.error if turn else None) or errors.fact_of(None)
    fact = errors.explained(fact, turn.retry if turn else None)
    status, reason = errors.status_of(fact)
    return replace(end, status=status, error=fact, stop_reason=reason)


def hooked(state: CodexState, news: HookNews) -> list[DialectOutput]:
    """A hook of Codex's own settings has ended."""
    run, turn = news.run, state.turn
    if run.status not in _HOOK_STATUSES:
        return []
    words = "; ".join(texts_in(run.entries)) or "it did not say why"
    is_mine = turn is not None and not state.is_other(None, news.turn_id)
    if turn and is_mine and run.status in _AGAINST and run.event_name in _FIRST_HOOKS:
        turn.blocked = errors.hook_blocked(words)
    return [ev.Note(f"a hook of Codex ({run.event_name}) {run.status}: {words}")]


def refused(state: CodexState, why: ErrorFact) -> list[DialectOutput]:
    """The open turn was turned down."""
    return close(state, Ended("failed", error=why)) if state.turn else []


def close(state: CodexState, end: Ended) -> list[DialectOutput]:
    """The open turn is over; what still runs may end later."""
    asked = _unasked(state)
    back = offers.settled(state)
    if end.status != "completed":
        back += offers.heeded(state)
    for tool in state.tools.values():
        tool.is_late = True
    if state.turn:
        state.last_turn, state.turn = state.turn.id, None
    return [*back, *asked, end]


def text_of(turn: OpenTurn) -> str | None:
    """What a turn has answered: what was said aside, or a plan, only where nothing else was."""
    return turn.answer or turn.text or turn.aside or turn.plan


def _unasked(state: CodexState) -> list[DialectOutput]:
    return [each for ask in list(state.asks.values()) for each in withdrawn(state, ask.request)]


def withdrawn(state: CodexState, request: Id) -> list[DialectOutput]:
    """A question is not asked any more."""
    return _resolved(state, request, "cancelled", "provider")


def decided(state: CodexState, request: Id, answer: Any) -> list[DialectOutput]:
    """A question was answered."""
    return _resolved(state, request, "allow" if is_allowing(answer) else "deny", "user")


def _resolved(state: CodexState, request: Id, verdict: str, by: str) -> list[DialectOutput]:
    # 1 and "1" are different, and 0 is one of them.
    is_it = (type(request), request)
    names = [n for n, ask in state.asks.items() if (type(ask.request), ask.request) == is_it]
    for name in names:
        del state.asks[name]
    return [ev.ApprovalResolved(name, verdict, by) for name in names]


def gone(state: CodexState, last: Exit) -> Ended | None:
    """How the turn ended that is open or never began; None where others have to say it."""
    if not state.has_spoken:
        return errors.exit_end(last)
    return errors.cut_off_end(last, state.turn.error) if state.turn else None


def _stated_answer(items: Any) -> str | None:
    """The answer as the end of the turn states it."""
    parts = items if isinstance(items, list) else []
    for part in reversed(parts):
        match part:
            case {"type": "agentMessage", "text": str(text)} if text:
                return text
    return None


def _given_up(turn: OpenTurn, end: Ended) -> list[DialectOutput]:
    """A compaction that was going on has failed."""
    if not turn.is_compacting:
        return []
    return [ev.CompactionFailed(end.error.code if end.error else end.status)]


def _cut_off(state: CodexState) -> list[DialectOutput]:
    """Interrupted, Codex leaves its commands running, and a question about them unanswered."""
    said: list[DialectOutput] = []
    for item, tool in state.tools.items():
        if tool.is_late:
            continue
        given = msgspec.json.decode(tool.input)
        said.append(ev.ToolFailed(item, tool.name, given, error=STILL_RUNNING))
        if tool.process is not None:
            said.append(terminate_line(item, tool.process, state.thread or ""))
        tool.is_cut_off = True
    return said


def _stats(state: CodexState, end: Ended, reason: str | None) -> ev.StatsUpdated:
    usage = end.usage
    return ev.StatsUpdated(
        state.model,
        state.context_window,
        usage.cache_read_tokens if usage else None,
        usage.cache_write_tokens if usage else None,
        usage.output_tokens if usage else None,
        reason,
        errors.windows_of(state.windows),
    )
