"""Estimates the cost of tokens, for CLIs that report tokens but no price.

The prices are in `prices.json`, which `scripts/prices.py` makes from the package genai-prices. They
were in force on the day of its publication. The file is part of this package and is read when the
first price is needed. Nothing is fetched.

The estimate is the list price of the maker's API. A subscription, a discount, another service tier
or another host for the same model has another price.
"""

import re
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct, field

from steadyrun.model.usage import Cost, Usage

FILE = Path(__file__).with_name("prices.json")


class Clause(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition on model names: one test, or a combination. All texts are lower case."""

    equals: str | None = None
    starts_with: str | None = None
    ends_with: str | None = None
    contains: str | None = None
    regex: str | None = None
    any_of: tuple["Clause", ...] = field(default=(), name="or")
    all_of: tuple["Clause", ...] = field(default=(), name="and")


class Rates(Struct, frozen=True, array_like=True):
    """USD for a million tokens, in a call whose whole input is more than `above` tokens."""

    above: int
    input: Decimal
    cache_read: Decimal
    cache_write: Decimal
    output: Decimal


class PricedModel(Struct, frozen=True):
    """A model and its rates, short calls first; empty if it is not priced by tokens."""

    name: str
    match: Clause
    rates: tuple[Rates, ...]


class Maker(Struct, frozen=True):
    """A maker of models; `match` selects the names that belong to this maker only."""

    name: str
    match: Clause
    models: tuple[PricedModel, ...]


class PriceList(Struct, frozen=True):
    """All prices. `published` is the day of `source`, and `license` is its license."""

    source: str
    published: date
    license: str
    makers: tuple[Maker, ...]


def estimate_cost(model: str | None, usage: Usage | None, *, is_one_call: bool = False) -> Cost:
    """Return the list price of these tokens; unknown if the model or the tokens are unknown.

    The rules of the list match a model name exactly or by its beginning (`claude-opus-4-8[1m]` is a
    `claude-opus-4-8`). Nothing else is guessed, so a model that is newer than the list is unknown.

    Some makers have higher rates for a single call with a long input. `is_one_call` states that
    the tokens are those of one call. A sum of several calls is priced as short calls.

    Input that was read from or written to a cache has its own rates. If the CLI does not report
    cache tokens (None), they are part of its `input_tokens`, or there are none.
    """
    if model is None or usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return Cost()
    read, written = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    counts = (usage.input_tokens, read, written)
    rates = _find_rates(load_prices(), model.lower(), whole_input=sum(counts) if is_one_call else 0)
    if rates is None or min(*counts, usage.output_tokens) < 0:
        return Cost()
    of_input = rates.input * usage.input_tokens
    of_caches = rates.cache_read * read + rates.cache_write * written
    of_output = rates.output * usage.output_tokens
    return Cost(float((of_input + of_caches + of_output) / 1_000_000), "estimated")


# The cache holds no state: the file is part of the code and never changes.
@cache
def load_prices() -> PriceList:
    """Load the price list."""
    return msgspec.json.decode(FILE.read_bytes(), type=PriceList)


def _find_rates(prices: PriceList, name: str, *, whole_input: int) -> Rates | None:
    """Find the rates of a model: the first matching maker decides, then its first match."""
    maker = next((each for each in prices.makers if _is_match(each.match, name)), None)
    models = maker.models if maker else ()
    model = next((each for each in models if _is_match(each.match, name)), None)
    rates = model.rates if model else ()
    fitting = [each for each in rates if each.above == 0 or whole_input > each.above]
    return fitting[-1] if fitting else None


def _is_match(clause: Clause, name: str) -> bool:
    return (
        clause.equals == name
        or (clause.starts_with is not None and name.startswith(clause.starts_with))
        or (clause.ends_with is not None and name.endswith(clause.ends_with))
        or (clause.contains is not None and clause.contains in name)
        or (clause.regex is not None and re.search(clause.regex, name) is not None)
        or any(_is_match(each, name) for each in clause.any_of)
        or (bool(clause.all_of) and all(_is_match(each, name) for each in clause.all_of))
    )
