"""What would this have cost? An estimate, for CLIs that count tokens and name no price.

The prices are in `prices.json`, which `scripts/prices.py` makes of the package genai-prices: those
that were in force on the day it was published. The file is a constant of this package, read when
the first price is asked for; nothing is ever fetched.

What is estimated is the maker's list price of the API. Who has a subscription, a discount, another
service tier or another host for the same model pays something else.
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
    """Which names are meant: one of these tests, or several of them. All of it is lower case."""

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
    """A model, and its rates: those of short calls first; empty if it is not sold by tokens."""

    name: str
    match: Clause
    rates: tuple[Rates, ...]


class Maker(Struct, frozen=True):
    """Who makes models; `match` are the names that can only be theirs."""

    name: str
    match: Clause
    models: tuple[PricedModel, ...]


class PriceList(Struct, frozen=True):
    """All we know of prices. `published` is the day of `source`, and `license` the terms of it."""

    source: str
    published: date
    license: str
    makers: tuple[Maker, ...]


def estimate_cost(model: str | None, usage: Usage | None, *, is_one_call: bool = False) -> Cost:
    """The list price of these tokens; unknown where the model or the tokens are.

    A name is looked up by the rules of the list itself. They match many names to the letter and
    some by how they begin (`claude-opus-4-8[1m]` is a `claude-opus-4-8`); nothing is guessed beyond
    them, so a model that is newer than the list is unknown.

    Makers ask for more where a single call has a long input. The sum of several calls does not say
    whether one of them had, and is priced as short ones; `is_one_call` says that it is no sum.

    Input that was read from or written to a cache has rates of its own. Tokens of a cache that the
    CLI does not tell (None) are among its `input_tokens`, or there are none.
    """
    if model is None or usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return Cost()
    read, written = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    told = (usage.input_tokens, read, written)
    rates = _find_rates(load_prices(), model.lower(), whole_input=sum(told) if is_one_call else 0)
    if rates is None or min(*told, usage.output_tokens) < 0:
        return Cost()
    of_input = rates.input * usage.input_tokens
    of_caches = rates.cache_read * read + rates.cache_write * written
    of_output = rates.output * usage.output_tokens
    return Cost(float((of_input + of_caches + of_output) / 1_000_000), "estimated")


# No state: the file is part of the code, and never another one.
@cache
def load_prices() -> PriceList:
    """The list there is, with the day it is of."""
    return msgspec.json.decode(FILE.read_bytes(), type=PriceList)


def _find_rates(prices: PriceList, name: str, *, whole_input: int) -> Rates | None:
    """The first maker that claims the name decides, and the first of its models that does."""
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
