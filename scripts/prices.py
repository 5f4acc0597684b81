"""Writes providers/shared/prices.json from the installed version of genai-prices.

For a newer list, pin a newer version: `make lock`, `make setup`, then run this script with the day
on which that version was published (2026-10-30). The package does not contain that date.
"""

import sys
from datetime import date
from decimal import Decimal
from importlib.metadata import distribution

import msgspec
from genai_prices import types as upstream
from genai_prices.data import providers

from steadyrun.providers.shared.prices import FILE, Clause, Maker, PricedModel, PriceList, Rates

PACKAGE = "genai-prices"


def main(published: str) -> int:
    """Write the file."""
    version = distribution(PACKAGE).version
    FILE.write_text(text_of(list_of(date.fromisoformat(published))), encoding="utf-8")
    print(f"{FILE}: {PACKAGE} {version}, {FILE.stat().st_size} bytes")
    return 0


def list_of(day: date) -> PriceList:
    """The prices in force on that day, of all vendors whose models can be recognised by name."""
    package = distribution(PACKAGE)
    [terms] = [file for file in package.files or () if file.name == "LICENSE"]
    makers = [
        Maker(
            each.id, _clause(each.model_match), tuple(_model(model, day) for model in each.models)
        )
        for each in providers
        if each.model_match is not None
    ]
    source = f"{PACKAGE} {package.version}"
    return PriceList(source, day, terms.read_text(encoding="utf-8").strip(), tuple(makers))


def text_of(prices: PriceList) -> str:
    """One line for each model, so that a diff is readable."""
    text = msgspec.json.encode(prices).decode()
    for start in ('"source":', '"makers":', '{"name":'):
        text = text.replace(start, f"\n{start}")
    return f"{text}\n"


def _model(model: upstream.ModelInfo, day: date) -> PricedModel:
    """A model without a price for tokens has no rates; its name must not match another model."""
    return PricedModel(model.id, _clause(model.match), _rates(_in_force(model, day)))


def _in_force(model: upstream.ModelInfo, day: date) -> upstream.ModelPrice:
    """The last price that had started on that day. Prices for hours of the day are left out."""
    if isinstance(model.prices, upstream.ModelPrice):
        return model.prices
    found = model.prices[0].prices
    for each in model.prices:
        match each.constraint:
            case None:
                found = each.prices
            case upstream.StartDateConstraint(start_date=start) if start <= day:
                found = each.prices
            case _:
                pass
    return found


def _rates(price: upstream.ModelPrice) -> tuple[Rates, ...]:
    if price.input_mtok is None or price.output_mtok is None:
        return ()
    kinds = (
        price.input_mtok,
        price.input_mtok if price.cache_read_mtok is None else price.cache_read_mtok,
        price.input_mtok if price.cache_write_mtok is None else price.cache_write_mtok,
        price.output_mtok,
    )
    steps = {0} | {tier.start for kind in kinds for tier in _tiers(kind)}
    return tuple(Rates(step, *(_at(kind, step) for kind in kinds)) for step in sorted(steps))


def _tiers(price: Decimal | upstream.TieredPrices) -> list[upstream.Tier]:
    return price.tiers if isinstance(price, upstream.TieredPrices) else []


def _at(price: Decimal | upstream.TieredPrices, step: int) -> Decimal:
    """The rate of a call that is longer than this step and not longer than the next."""
    if isinstance(price, Decimal):
        return price
    begun = [tier.price for tier in price.tiers if tier.start <= step]
    return begun[-1] if begun else price.base


def _clause(match: upstream.MatchLogic) -> Clause:
    """The same clause. Texts are compared without case; patterns are in lower case."""
    match match:
        case upstream.ClauseOr(or_=several):
            return Clause(any_of=tuple(map(_clause, several)))
        case upstream.ClauseAnd(and_=several):
            return Clause(all_of=tuple(map(_clause, several)))
        case upstream.ClauseRegex(regex=pattern):
            return Clause(regex=pattern)
        case _:
            [(test, text)] = vars(match).items()
            return msgspec.convert({test: text.lower()}, Clause)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
