"""Defines tokens and cost of runs. Unknown values stay unknown; they are never zero."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import astuple

CostKind = Literal["known", "estimated", "unknown"]

# No run uses or costs more. The sum over millions of runs still fits into 63 bits.
MOST_TOKENS = 10**12
MOST_USD = 1e9
USAGE_REFUSED = "a reported number of tokens, or a cost, is not plausible: it is not counted"


class Usage(Struct, frozen=True, omit_defaults=False):
    """Tokens of one run; None where the provider did not report them."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


def add_usage(first: Usage, second: Usage) -> Usage:
    """The sum; unknown where both are unknown."""
    return Usage(*map(_add, astuple(first), astuple(second)))


def _add(a: int | None, b: int | None) -> int | None:
    return None if a is None and b is None else (a or 0) + (b or 0)


def is_plausible_usage(usage: Usage) -> bool:
    """Whether all counts can be stored and added up."""
    return all(count is None or 0 <= count <= MOST_TOKENS for count in astuple(usage))


def count_tokens(usage: Usage) -> int:
    """All tokens: input, output, read from the cache and written to it."""
    return sum(count or 0 for count in astuple(usage))


class Cost(Struct, frozen=True):
    """The cost of one run. `known` comes from the provider, `estimated` from a price list."""

    usd: float | None = None
    kind: CostKind = "unknown"

    def __post_init__(self) -> None:
        if (self.usd is None) != (self.kind == "unknown"):
            raise ValueError(f"a cost of {self.usd} cannot be {self.kind}")


def is_plausible_cost(cost: Cost) -> bool:
    """Whether the cost can be stored and added up. It is not, for example, infinite."""
    return cost.usd is None or 0 <= cost.usd <= MOST_USD


def add_costs(first: Cost, second: Cost) -> Cost:
    """The sum; it is as reliable as the less reliable cost. If one is unknown, the sum is an
    estimate."""
    if first.usd is None or second.usd is None:
        usd = first.usd if second.usd is None else second.usd
        return Cost() if usd is None else Cost(usd, "estimated")
    kind: CostKind = "known" if first.kind == second.kind == "known" else "estimated"
    return Cost(first.usd + second.usd, kind)


class UsageSum(Struct, frozen=True):
    """Totals of many runs, with known, estimated and unknown cost apart."""

    runs: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    known_usd: float = 0.0
    estimated_usd: float = 0.0
    unknown_cost_runs: int = 0
    # The tokens of the runs whose cost is unknown.
    unknown_tokens: int = 0


def add_up(sums: Iterable[UsageSum]) -> UsageSum:
    """The total of several totals."""
    return UsageSum(*map(sum, zip(*map(astuple, sums), strict=True)))
