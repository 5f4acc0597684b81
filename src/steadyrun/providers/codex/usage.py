"""Measures the tokens and the cost of a turn, and records the limits of the account.

Codex reports totals of the whole conversation. It reports the last call again after a compaction,
a failure and a resume. So only the growth of the total counts.
"""

from typing import Any

from msgspec.structs import astuple, replace

from steadyrun.dialect import DialectOutput
from steadyrun.model import event as ev
from steadyrun.model.usage import Cost, Usage
from steadyrun.providers.codex import frames, offers
from steadyrun.providers.codex.frames import CodexTokens, UsageNotification
from steadyrun.providers.codex.state import CodexState, CodexTurn
from steadyrun.providers.shared import prices

# The number of conversations whose totals are kept. A process may run many of them.
MOST_THREADS = 100


def on_usage(state: CodexState, notification: UsageNotification) -> list[DialectOutput]:
    """Handle a new total of the conversation."""
    token_usage, turn = notification.token_usage, state.turn
    before = _replace_total(state, notification.thread_id or state.thread or "", token_usage.total)
    state.context_window = token_usage.model_context_window or state.context_window
    state.context_tokens = token_usage.last.total_tokens
    if turn is None or not turn.is_called(notification.turn_id):
        return []
    # With so many conversations, the total of this one may have been dropped.
    is_full = len(state.totals) >= MOST_THREADS
    new = _measure_growth(before, token_usage, is_resumed=state.is_resumed or is_full)
    if new == CodexTokens():
        return []
    add_usage(state, turn, new, is_one_call=True)
    turn.retry = None
    usage = to_usage(turn.used) or Usage()
    return [*offers.absorb_taken(state), ev.UsageUpdated(usage, turn.cost)]


def on_rate_limits(
    state: CodexState, notification: frames.RateLimitNotification
) -> list[DialectOutput]:
    """Update the windows that are present. The others keep their values."""
    limits = notification.rate_limits
    for name, window in (("primary", limits.primary), ("secondary", limits.secondary)):
        if window is not None:
            prefix = "" if limits.limit_id in {None, "codex"} else f"{limits.limit_id} "
            state.windows[f"{prefix}{name}"] = window
    return []


def on_sub_agent_usage(state: CodexState, notification: Any) -> list[DialectOutput]:
    """Handle a notification of another conversation. A sub-agent's usage counts for its turn."""
    turn, thread = state.turn, getattr(notification, "thread_id", None)
    if thread is None:
        return []
    if (
        turn
        and turn.id
        and isinstance(notification, frames.TurnNotification)
        and notification.turn.root_turn_id == turn.id
    ):
        state.subagents.add(thread)
    if not isinstance(notification, UsageNotification):
        return []
    token_usage = notification.token_usage
    before = _replace_total(state, thread, token_usage.total)
    # It may continue a conversation whose earlier usage was already counted.
    new = _measure_growth(before, token_usage, is_resumed=True)
    if turn is None or thread not in state.subagents or new == CodexTokens():
        return []
    add_usage(state, turn, new, is_one_call=True)
    return [ev.UsageUpdated(to_usage(turn.used) or Usage(), turn.cost)]


def add_usage(state: CodexState, turn: CodexTurn, used: CodexTokens, *, is_one_call: bool) -> None:
    """Add tokens and their list price to a turn.

    Codex reports no price. `is_one_call` matters, because a long call may have a higher rate.
    """
    more = prices.estimate_cost(state.model, to_usage(used), is_one_call=is_one_call)
    turn.cost = more if turn.used is None else _add_costs(turn.cost, more)
    turn.used = _add_tokens(turn.used or CodexTokens(), used)


def to_usage(used: CodexTokens | None) -> Usage | None:
    """Convert to `Usage`, whose input excludes cached tokens; None if there is no report."""
    if used is None:
        return None
    cached, written = used.cached_input_tokens, used.cache_write_input_tokens
    return Usage(max(0, used.input_tokens - cached - written), used.output_tokens, cached, written)


def _replace_total(state: CodexState, thread: str, total: CodexTokens) -> CodexTokens | None:
    """Store the new total of a conversation, and return the one before."""
    before = state.totals.pop(thread, None)
    state.totals[thread] = total
    if len(state.totals) > MOST_THREADS:
        oldest = next(iter(state.totals))
        del state.totals[oldest]
        state.subagents.discard(oldest)
    return before


def _measure_growth(
    before: CodexTokens | None, token_usage: frames.TokenUsage, *, is_resumed: bool
) -> CodexTokens:
    now = token_usage.total
    if before is None:
        # The first total of a resumed conversation includes its earlier turns.
        return _drop_total(token_usage.last if is_resumed else now)
    new = _add_tokens(now, before, sign=-1)
    return _drop_total(token_usage.last) if min(astuple(new)) < 0 else new


def _add_tokens(one: CodexTokens, other: CodexTokens, *, sign: int = 1) -> CodexTokens:
    """Add token counts. The result has no total."""
    pairs = zip(astuple(_drop_total(one)), astuple(_drop_total(other)), strict=True)
    return CodexTokens(*(count + sign * more for count, more in pairs))


def _add_costs(one: Cost, other: Cost) -> Cost:
    """Add two costs. The sum is unknown if one of them is unknown."""
    if one.usd is None or other.usd is None:
        return Cost()
    return Cost(one.usd + other.usd, "estimated")


def _drop_total(tokens: CodexTokens) -> CodexTokens:
    return replace(tokens, total_tokens=0)
