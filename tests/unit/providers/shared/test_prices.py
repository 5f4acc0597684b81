"""What an unpriced turn would have cost. The worked examples are added up by hand."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time

import genai_prices
import pytest
from genai_prices.data import providers
from genai_prices.types import ModelInfo, TimeOfDateConstraint
from hypothesis import given
from hypothesis import strategies as st

from scripts.prices import list_of, text_of
from steadyrun.model.usage import Cost, Usage
from steadyrun.providers.shared.prices import FILE, Clause, estimate_cost, load_prices

PUBLISHED = datetime.combine(load_prices().published, time(), UTC)
SOME = Usage(input_tokens=1_000, output_tokens=1_000)
LONG = Usage(100_000, 1_000, cache_read_tokens=190_000, cache_write_tokens=10_000)


@pytest.mark.parametrize(
    ("model", "usage", "usd"),
    [
        # 2.50 in, 0.25 read, 15 out: 1000 x 2.50 + 9000 x 0.25 + 200 x 15 = 7750
        ("gpt-5.4", Usage(1_000, 200, cache_read_tokens=9_000), 0.00775),
        # 1.75 in, 0.175 read, 14 out: 2000 x 1.75 + 4000 x 0.175 + 100 x 14 = 5600
        ("gpt-5.2-codex", Usage(2_000, 100, 4_000, 0), 0.0056),
        # 2 in, 0.10 read, 2.50 written, 10 out:
        # 100 x 2 + 1000 x 0.10 + 400 x 2.50 + 50 x 10 = 1800
        ("gpt-6.1-sol", Usage(100, 50, 1_000, 400), 0.0018),
        # 5 in, 0.50 read, 6.25 written, 25 out:
        # 100 x 5 + 20,000 x 0.50 + 8000 x 6.25 + 400 x 25 = 70,500
        ("claude-opus-4-8[1m]", Usage(100, 400, 20_000, 8_000), 0.0705),
        # 15 in, 120 out, and no rate for caches: 10 x 15 + 20 x 15 + 30 x 15 + 1 x 120 = 1020
        ("gpt-5-pro", Usage(10, 1, 20, 30), 0.00102),
    ],
)
def test_tokens_have_the_price_of_their_kind(model: str, usage: Usage, usd: float) -> None:
    assert estimate_cost(model, usage) == Cost(usd, "estimated")


def test_total_of_several_calls_has_the_short_rates() -> None:
    # 100,000 x 2 + 190,000 x 0.10 + 10,000 x 2.50 + 1000 x 10 = 254,000
    assert estimate_cost("gpt-6.1-sol", LONG) == Cost(0.254, "estimated")


def test_long_call_has_the_long_rates() -> None:
    # 100,000 x 4 + 190,000 x 0.20 + 10,000 x 5 + 1000 x 15 = 503,000
    assert estimate_cost("gpt-6.1-sol", LONG, is_one_call=True) == Cost(0.503, "estimated")


@pytest.mark.parametrize(("tokens", "usd"), [(272_000, 0.68), (272_001, 1.360005)])
def test_call_is_long_only_above_the_limit(tokens: int, usd: float) -> None:
    cost = estimate_cost("gpt-5.4", Usage(tokens - 2_000, 0, 0, 2_000), is_one_call=True)

    assert cost == Cost(usd, "estimated")


@pytest.mark.parametrize(
    "model",
    [
        None, "", " ", "gpt", "gpt-5.4 ", "gpt-5.4x", "gpt-5.45", "my-gpt-5.4", "gpt-99", "o1x",
        "claude", "claude-opus-99", "<synthetic>", "sonnet", "llama3:8b", "\x00", "💸" * 1_000,
        "whisper-1", "gpt-5.2-codex-mini",
    ],
)  # fmt: skip
def test_unknown_model_has_no_price(model: str | None) -> None:
    assert estimate_cost(model, SOME) == Cost()


@pytest.mark.parametrize(
    "usage",
    [
        None,
        Usage(),
        Usage(input_tokens=1),
        Usage(output_tokens=1),
        Usage(cache_read_tokens=1),
        Usage(-1, 1),
        Usage(1, -1),
        Usage(1, 1, -1),
        Usage(1, 1, 0, -1),
    ],
)
def test_unknown_tokens_have_no_price(usage: Usage | None) -> None:
    assert estimate_cost("gpt-5.4", usage) == Cost()


def test_zero_tokens_cost_nothing() -> None:
    assert estimate_cost("gpt-5.4", Usage(0, 0, 0, 0)) == Cost(0.0, "estimated")


def test_case_of_a_model_name_is_ignored() -> None:
    assert estimate_cost("GPT-5.4", SOME) == estimate_cost("gpt-5.4", SOME)


def test_price_list_names_its_source_and_its_date() -> None:
    prices = load_prices()

    assert prices.source == f"genai-prices {genai_prices.__version__}"
    assert prices.published >= date(2026, 10, 30)
    assert "MIT" in prices.license
    assert "Copyright (c) Pydantic Services" in prices.license


def test_price_file_equals_the_pinned_package() -> None:
    made = text_of(list_of(load_prices().published))

    is_current = made == FILE.read_text(encoding="utf-8")

    assert is_current, "run: .venv/bin/python scripts/prices.py DAY"


def _names(clause: Clause) -> Iterator[str]:
    yield from filter(None, (clause.equals, clause.starts_with, clause.contains, clause.ends_with))
    for each in (*clause.any_of, *clause.all_of):
        yield from _names(each)


NAMES = sorted(
    {name for maker in load_prices().makers for each in maker.models for name in _names(each.match)}
)


def _theirs(name: str, usage: Usage) -> tuple[ModelInfo, float] | None:
    """What the package itself makes of it: its `input_tokens` are all of the input."""
    plain, out, read, written = (
        usage.input_tokens or 0,
        usage.output_tokens or 0,
        usage.cache_read_tokens or 0,
        usage.cache_write_tokens or 0,
    )
    theirs = genai_prices.Usage(
        input_tokens=plain + read + written,
        output_tokens=out,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
    try:
        found = genai_prices.calc_price(theirs, name, genai_request_timestamp=PUBLISHED)
    except LookupError:
        return None
    return found.model, float(found.total_price)


def _is_comparable(model: ModelInfo) -> bool:
    """Not where the hour decides, and not what is sold by something else than tokens."""
    price = model.get_prices(PUBLISHED)
    has_hours = isinstance(model.prices, list) and any(
        isinstance(each.constraint, TimeOfDateConstraint) for each in model.prices
    )
    return not has_hours and price.input_mtok is not None and price.output_mtok is not None


_counts = st.integers(0, 400_000)
_usages = st.builds(Usage, _counts, _counts, _counts, _counts)
# Where such a date is not in the list, the package looks again with dashes in it. We do not.
UNDASHED = "-20260101"
_endings = st.sampled_from(["", "", "[1m]", UNDASHED, "-2026-01-01", "-latest", "-x", "9"])


@given(st.sampled_from(NAMES), _endings, _usages)
def test_estimate_equals_the_price_of_the_package(name: str, ending: str, usage: Usage) -> None:
    ours, theirs = (
        estimate_cost(name + ending, usage, is_one_call=True),
        _theirs(name + ending, usage),
    )

    if theirs is None or (ours == Cost() and ending == UNDASHED):
        assert ours == Cost()
    elif _is_comparable(theirs[0]):
        assert ours == Cost(theirs[1], "estimated")


def test_every_openai_and_anthropic_model_has_a_price() -> None:
    makers = [each for each in providers if each.id in {"openai", "anthropic"}]
    names = {each.id for maker in makers for each in maker.models if _is_comparable(each)}

    found = {name for name in names if estimate_cost(name, SOME).kind == "estimated"}
    theirs = {name for name in names if _theirs(name, SOME)}

    assert found == theirs
    assert len(found) > 100


def test_estimate_needs_no_package_and_no_network() -> None:
    script = (
        "import sys, socket\n"
        "socket.socket = None\n"
        "from steadyrun.model.usage import Usage\n"
        "from steadyrun.providers.shared.prices import estimate_cost\n"
        "print(estimate_cost('gpt-5.4', Usage(1_000_000, 0)).usd)\n"
        "print({'genai_prices', 'pydantic', 'httpx2', 'asyncio'} & set(sys.modules))\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert done.stdout.decode().split("\n")[:2] == ["2.5", "set()"]
