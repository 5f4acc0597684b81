"""What did it use and cost? Unknown stays unknown: it is never a zero."""

from typing import Literal

from msgspec import Struct

CostKind = Literal["known", "estimated", "unknown"]


class Usage(Struct, frozen=True, omit_defaults=False):
    """Tokens of one run; None where the provider did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


class Cost(Struct, frozen=True):
    """Money of one run. `known` is the provider's own figure, `estimated` is from a price list."""

    usd: float | None = None
    kind: CostKind = "unknown"

    def __post_init__(self) -> None:
        if (self.usd is None) != (self.kind == "unknown"):
            raise ValueError(f"a cost of {self.usd} cannot be {self.kind}")


class UsageSum(Struct, frozen=True):
    """Totals over many runs, with the money that is known, estimated and unknown apart."""

    runs: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    known_usd: float = 0.0
    estimated_usd: float = 0.0
    unknown_cost_runs: int = 0
