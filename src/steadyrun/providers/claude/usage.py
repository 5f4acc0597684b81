"""Measures the tokens and the cost of a turn.

Claude Code reports totals of the whole process, so the usage of a turn is a difference. The field
`usage` of a result is not enough: it lacks compactions, sub-agents and the call that crosses a
budget.
"""

from operator import sub

from msgspec import Struct
from msgspec.structs import astuple

from steadyrun.model.usage import MOST_USD, Cost, Usage, add_usage
from steadyrun.providers.claude.errors import is_aborted
from steadyrun.providers.claude.frames import CallUsage, ModelUsage, ResultLine, StreamMessage
from steadyrun.providers.claude.state import ClaudeState, ClaudeTurn
from steadyrun.providers.shared import prices

# Sums of floats are rounded to this many digits.
_DIGITS = 9


class TurnUsage(Struct, frozen=True):
    """The tokens and the cost of a turn. `usage` is None if it is unknown."""

    usage: Usage | None
    cost: Cost


def measure_turn(state: ClaudeState, result: ResultLine) -> TurnUsage:
    """Measure the usage since the last result, and store the new totals."""
    usage = _measure_usage(state, result)
    usd = _measure_cost(state, result.total_cost_usd)
    if is_aborted(result) and not any(astuple(usage)) and not usd:
        # An interrupted request is billed, but its cost is not reported.
        return TurnUsage(None, Cost())
    return TurnUsage(usage, Cost() if usd is None else Cost(usd, "known"))


def begin_call(turn: ClaudeTurn, message: StreamMessage, model: str | None) -> None:
    """Record the start of a model call. Only its input is known so far."""
    turn.opening, turn.called_model = message.usage, message.model or model


def end_call(turn: ClaudeTurn, usage: CallUsage) -> TurnUsage:
    """Add a finished model call, and return the usage of the turn so far.

    Claude Code reports the cost only at the end of the turn. Until then it is the list price.
    """
    opening = turn.opening
    call = Usage(
        usage.input_tokens or opening.input_tokens or 0,
        usage.output_tokens or 0,
        usage.cache_read_input_tokens or opening.cache_read_input_tokens or 0,
        usage.cache_creation_input_tokens or opening.cache_creation_input_tokens or 0,
    )
    turn.used = add_usage(turn.used, call)
    more = prices.estimate_cost(turn.called_model, call, is_one_call=True).usd
    before = turn.estimated_usd
    turn.estimated_usd = None if before is None or more is None else round(before + more, _DIGITS)
    usd = turn.estimated_usd
    return TurnUsage(turn.used, Cost() if usd is None else Cost(usd, "estimated"))


def _measure_usage(state: ClaudeState, result: ResultLine) -> Usage:
    if not result.model_usage:
        return Usage(*astuple(result.usage or CallUsage()))
    before = state.totals
    state.totals = {model: _to_usage(each) for model, each in result.model_usage.items()}
    each = [_subtract(before.get(model), now) for model, now in state.totals.items()]
    return Usage(*map(sum, zip(*each, strict=True)))


def _to_usage(used: ModelUsage) -> Usage:
    """Convert the tokens, whose fields come first and in the order of `Usage`."""
    return Usage(*astuple(used)[:4])


def _subtract(before: Usage | None, now: Usage) -> tuple[int, ...]:
    """Subtract the totals before. A total that fell was reset, and counts as a whole."""
    if before is None:
        return tuple(astuple(now))
    more = tuple(map(sub, astuple(now), astuple(before)))
    return tuple(astuple(now)) if min(more) < 0 else more


def _measure_cost(state: ClaudeState, total: float | None) -> float | None:
    if total is None or not 0 <= total <= MOST_USD:
        return None
    before, state.cost_usd = state.cost_usd, total
    return round(total - before if total >= before else total, _DIGITS)
