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
from steadyrun.providers.codex.frames import (
    CodexTokens,
    TokenUsage,
    TurnNotification,
    UsageNotification,
)
from steadyrun.providers.codex.state import CodexState, CodexTurn
from steadyrun.providers.shared import prices

# A process may serve conversation after conversation.
MOST_THREADS = 100


def on_usage(state: CodexState, news: UsageNotification) -> list[DialectOutput]:
    """The sum has been told."""
    found, turn = news.token_usage, state.turn
    before = _replace_total(state, news.thread_id or state.thread or "", found.total)
    state.context_window = found.model_context_window or state.context_window
    state.context_tokens = found.last.total_tokens
    if turn is None or not turn.is_called(news.turn_id):
        return []
    # Of so many, this one may have been forgotten.
    is_full = len(state.totals) >= MOST_THREADS
    new = _measure_growth(before, found, is_resumed=state.is_resumed or is_full)
    if new == CodexTokens():
        return []
    add_usage(state, turn, new, is_one_call=True)
    turn.retry = None
    usage = to_usage(turn.used) or Usage()
    return [*offers.absorb_taken(state), ev.UsageUpdated(usage, turn.cost)]


def on_sub_agent_usage(state: CodexState, news: Any) -> list[DialectOutput]:
    """Something of another conversation: what a sub-agent of this turn uses is used by the turn."""
    turn, thread = state.turn, getattr(news, "thread_id", None)
    if thread is None:
        return []
    if (
        turn
        and turn.id
        and isinstance(news, TurnNotification)
        and news.turn.root_turn_id == turn.id
    ):
        state.subagents.add(thread)
    if not isinstance(news, UsageNotification):
        return []
    found = news.token_usage
    before = _replace_total(state, thread, found.total)
    # It may begin with a conversation that was paid for before.
    new = _measure_growth(before, found, is_resumed=True)
    if turn is None or thread not in state.subagents or new == CodexTokens():
        return []
    add_usage(state, turn, new, is_one_call=True)
    return [ev.UsageUpdated(to_usage(turn.used) or Usage(), turn.cost)]


def add_usage(state: CodexState, turn: CodexTurn, used: CodexTokens, *, is_one_call: bool) -> None:
    """Count what was used. Codex names no price, and a long call is dearer than two short ones."""
    more = prices.estimate_cost(state.model, to_usage(used), is_one_call=is_one_call)
    turn.cost = more if turn.used is None else _add_costs(turn.cost, more)
    turn.used = _add_tokens(turn.used or CodexTokens(), used)


def to_usage(used: CodexTokens | None) -> Usage | None:
    """Without what was read from a cache or written to it; None if nothing was told."""
    if used is None:
        return None
    cached, written = used.cached_input_tokens, used.cache_write_input_tokens
    return Usage(max(0, used.input_tokens - cached - written), used.output_tokens, cached, written)


def _replace_total(state: CodexState, thread: str, total: CodexTokens) -> CodexTokens | None:
    """What a conversation had used when its sum was told before; from now on it is this."""
    before = state.totals.pop(thread, None)
    state.totals[thread] = total
    if len(state.totals) > MOST_THREADS:
        oldest = next(iter(state.totals))
        del state.totals[oldest]
        state.subagents.discard(oldest)
    return before


def _measure_growth(
    before: CodexTokens | None, found: TokenUsage, *, is_resumed: bool
) -> CodexTokens:
    now = found.total
    if before is None:
        # What a conversation has used before it was gone on with is told first, as a rule.
        return _drop_total(found.last if is_resumed else now)
    new = _add_tokens(now, before, sign=-1)
    return _drop_total(found.last) if min(msgspec.structs.astuple(new)) < 0 else new


def _add_tokens(one: CodexTokens, other: CodexTokens, *, sign: int = 1) -> CodexTokens:
    return CodexTokens(
        one.input_tokens + sign * other.input_tokens,
        one.cached_input_tokens + sign * other.cached_input_tokens,
        one.cache_write_input_tokens + sign * other.cache_write_input_tokens,
        one.output_tokens + sign * other.output_tokens,
    )


def _add_costs(one: Cost, other: Cost) -> Cost:
    """What is not known of a part is not known of the sum."""
    if one.usd is None or other.usd is None:
        return Cost()
    return Cost(one.usd + other.usd, "estimated")


def _drop_total(tokens: CodexTokens) -> CodexTokens:
    return _add_tokens(tokens, CodexTokens())
