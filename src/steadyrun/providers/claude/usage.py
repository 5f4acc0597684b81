"""What did a turn use and cost? Claude Code counts for the whole process; this is the difference.

Its `usage` is not enough: it lacks compactions, sub-agents and the call that crosses a budget.
"""

from collections.abc import Mapping
from operator import sub

from msgspec import Struct
from msgspec.structs import astuple

from steadyrun.model.usage import Cost, Usage
from steadyrun.providers.claude.errors import is_aborted
from steadyrun.providers.claude.frames import CallUsage, ModelUsage, ResultLine, StreamMessage
from steadyrun.providers.claude.state import ClaudeState, OpenTurn, Totals
from steadyrun.providers.shared import prices

# More is no sum of money, and a difference of such numbers none either.
_MOST_USD = 1e9
# Sums of fractions are not exact; nobody is billed for less.
_DIGITS = 9


class Spent(Struct, frozen=True):
    """`usage` is None where it is not known."""

    usage: Usage | None
    cost: Cost


def spent(state: ClaudeState, result: ResultLine) -> Spent:
    """What was used since the last result; from now on, it counts from this one."""
    usage = _usage(state, result)
    usd = _usd(state, result.total_cost_usd)
    if is_aborted(result) and not any(astuple(usage)) and not usd:
        # A request was made and cut off: it is paid for, and nobody says how much.
        return Spent(None, Cost())
    return Spent(usage, Cost() if usd is None else Cost(usd, "known"))


def call_begun(turn: OpenTurn, message: StreamMessage, model: str | None) -> None:
    """The model was called: only what it was given is known so far."""
    turn.opening, turn.called_model = message.usage, message.model or model


def call_ended(turn: OpenTurn, usage: CallUsage) -> Spent:
    """What the turn has used with this call. Claude Code names no price before the turn ends: until
    then it is the list price."""
    opening = turn.opening
    call = Totals(
        usage.input_tokens or opening.input_tokens or 0,
        usage.output_tokens or 0,
        usage.cache_read_input_tokens or opening.cache_read_input_tokens or 0,
        usage.cache_creation_input_tokens or opening.cache_creation_input_tokens or 0,
    )
    turn.used = Totals(*map(sum, zip(astuple(turn.used), astuple(call), strict=True)))
    more = prices.estimated(turn.called_model, Usage(*astuple(call)), is_one_call=True).usd
    known = turn.estimated_usd
    turn.estimated_usd = None if known is None or more is None else round(known + more, _DIGITS)
    return Spent(Usage(*astuple(turn.used)), _estimate(turn.estimated_usd))


def _estimate(usd: float | None) -> Cost:
    return Cost() if usd is None else Cost(usd, "estimated")


def _usage(state: ClaudeState, result: ResultLine) -> Usage:
    if not result.model_usage:
        own = result.usage or CallUsage()
        return Usage(*astuple(own))
    before, state.totals = state.totals, _totals(result.model_usage)
    each = [_since(before.get(model), now) for model, now in state.totals.items()]
    return Usage(*map(sum, zip(*each, strict=True)))


def _totals(used: Mapping[str, ModelUsage]) -> dict[str, Totals]:
    return {
        model: Totals(
            each.input_tokens,
            each.output_tokens,
            each.cache_read_input_tokens,
            each.cache_creation_input_tokens,
        )
        for model, each in used.items()
    }


def _since(before: Totals | None, now: Totals) -> tuple[int, ...]:
    """A total that has fallen was begun anew."""
    if before is None:
        return tuple(astuple(now))
    more = tuple(map(sub, astuple(now), astuple(before)))
    return tuple(astuple(now)) if min(more) < 0 else more


def _usd(state: ClaudeState, total: float | None) -> float | None:
    if total is None or not 0 <= total < _MOST_USD:
        return None
    before, state.cost_usd = state.cost_usd, total
    return round(total - before if total >= before else total, _DIGITS)
