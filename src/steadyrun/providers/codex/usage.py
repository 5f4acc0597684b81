"""What has a turn used? Codex counts for the whole conversation, and says it more than once.

What the last call has used is said again after a compaction, a failure and a resumption; only the
growth of the sum is new.
"""

from typing import Any

import msgspec

from steadyrun.dialect import DialectOutput
from steadyrun.model import event as ev
from steadyrun.model.usage import Cost, Usage
from steadyrun.providers.codex import offers
from steadyrun.providers.codex.frames import Tokens, TokenUsage, TurnNews, UsageNews
from steadyrun.providers.codex.state import CodexState, OpenTurn
from steadyrun.providers.shared import prices

# A process may serve conversation after conversation.
MOST_THREADS = 100


def counted(state: CodexState, news: UsageNews) -> list[DialectOutput]:
    """The sum has been told."""
    found, turn = news.token_usage, state.turn
    before = _remembered(state, news.thread_id or state.thread or "", found.total)
    state.context_window = found.model_context_window or state.context_window
    state.context_tokens = found.last.total_tokens
    if turn is None or not turn.is_called(news.turn_id):
        return []
    # Of so many, this one may have been forgotten.
    is_full = len(state.totals) >= MOST_THREADS
    new = _growth(before, found, is_resumed=state.is_resumed or is_full)
    if new == Tokens():
        return []
    add(state, turn, new, is_one_call=True)
    turn.retry = None
    usage = usage_of(turn.used) or Usage()
    return [*offers.heeded(state), ev.UsageUpdated(usage, turn.cost)]


def delegated(state: CodexState, news: Any) -> list[DialectOutput]:
    """Something of another conversation: what a sub-agent of this turn uses is used by the turn."""
    turn, thread = state.turn, getattr(news, "thread_id", None)
    if thread is None:
        return []
    if turn and turn.id and isinstance(news, TurnNews) and news.turn.root_turn_id == turn.id:
        state.subagents.add(thread)
    if not isinstance(news, UsageNews):
        return []
    found = news.token_usage
    before = _remembered(state, thread, found.total)
    # It may begin with a conversation that was paid for before.
    new = _growth(before, found, is_resumed=True)
    if turn is None or thread not in state.subagents or new == Tokens():
        return []
    add(state, turn, new, is_one_call=True)
    return [ev.UsageUpdated(usage_of(turn.used) or Usage(), turn.cost)]


def add(state: CodexState, turn: OpenTurn, used: Tokens, *, is_one_call: bool) -> None:
    """Count what was used. Codex names no price, and a long call is dearer than two short ones."""
    more = prices.estimated(state.model, usage_of(used), is_one_call=is_one_call)
    turn.cost = more if turn.used is None else _cost(turn.cost, more)
    turn.used = _sum(turn.used or Tokens(), used)


def usage_of(used: Tokens | None) -> Usage | None:
    """Without what was read from a cache or written to it; None if nothing was told."""
    if used is None:
        return None
    cached, written = used.cached_input_tokens, used.cache_write_input_tokens
    return Usage(max(0, used.input_tokens - cached - written), used.output_tokens, cached, written)


def _remembered(state: CodexState, thread: str, total: Tokens) -> Tokens | None:
    """What a conversation had used when its sum was told before; from now on it is this."""
    before = state.totals.pop(thread, None)
    state.totals[thread] = total
    if len(state.totals) > MOST_THREADS:
        oldest = next(iter(state.totals))
        del state.totals[oldest]
        state.subagents.discard(oldest)
    return before


def _growth(before: Tokens | None, found: TokenUsage, *, is_resumed: bool) -> Tokens:
    now = found.total
    if before is None:
        # What a conversation has used before it was gone on with is told first, as a rule.
        return _parts(found.last if is_resumed else now)
    new = _sum(now, before, sign=-1)
    return _parts(found.last) if min(msgspec.structs.astuple(new)) < 0 else new


def _sum(one: Tokens, other: Tokens, *, sign: int = 1) -> Tokens:
    return Tokens(
        one.input_tokens + sign * other.input_tokens,
        one.cached_input_tokens + sign * other.cached_input_tokens,
        one.cache_write_input_tokens + sign * other.cache_write_input_tokens,
        one.output_tokens + sign * other.output_tokens,
    )


def _cost(one: Cost, other: Cost) -> Cost:
    """What is not known of a part is not known of the sum."""
    if one.usd is None or other.usd is None:
        return Cost()
    return Cost(one.usd + other.usd, "estimated")


def _parts(tokens: Tokens) -> Tokens:
    return _sum(tokens, Tokens())
